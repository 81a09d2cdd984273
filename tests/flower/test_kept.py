"""Flower's own FedAvg over the in-process grid, with `KeepRisks` where the metrics are averaged."""

from __future__ import annotations

import random
import re
import warnings
from hashlib import sha256

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian

import riskband as rb
from riskband.certificate import CrossingError
from riskband.flower import KeepRisks
from riskband.flower.kept import KeptRound, _first_answers
from riskband.flower.testing import InProcessGrid
from riskband.worst_cases.always_valid import always_valid
from tests import house

NUM_CLIENTS, NUM_ROUNDS = 12, 3
SIZES = [20 + k for k in range(NUM_CLIENTS)]


def num_wrong(partition, server_round):
    return (5 * partition + server_round) % 9


def error_rates(server_round, clients=range(NUM_CLIENTS)):
    return [num_wrong(k, server_round) / SIZES[k] for k in clients]


def app(metrics=lambda k, server_round: {}, told=None):
    """A ClientApp that adds 1 to the model, and says what share of its examples that model gets right."""
    client = ClientApp()

    @client.train()
    def train(message, context):
        arrays = ArrayRecord([array.numpy() + 1 for array in message.content["arrays"].values()])
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
        return FlowerMessage(RecordDict(content), reply_to=message)

    @client.evaluate()
    def evaluate(message, context):
        k, server_round = context.node_config["partition-id"], message.content["config"]["server-round"]
        right = float(np.float32(1 - num_wrong(k, server_round) / SIZES[k]))
        sent = {"eval_acc": right, "num-examples": SIZES[k], **metrics(k, server_round)}
        content = {"metrics": MetricRecord({key: value for key, value in sent.items() if value is not None})}
        if told is not None:
            content["who"] = ConfigRecord(told(k))
        return FlowerMessage(RecordDict(content), reply_to=message)

    return client


def fedavg(kept, strategy=FedAvg, **settings):
    return strategy(evaluate_metrics_aggr_fn=kept, min_available_nodes=NUM_CLIENTS, **settings)


def start(strategy, client=None, *, num_rounds=NUM_ROUNDS):
    random.seed(0)  # Flower draws the nodes so
    grid = InProcessGrid(client or app(), num_clients=NUM_CLIENTS, seed=1)
    arrays = ArrayRecord([np.zeros(2)])
    return strategy.start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)


def kept_by(client=None, *, is_watched=True, **settings):
    kept = KeepRisks(**(settings or {"accuracy": "eval_acc"}))
    strategy = fedavg(kept)
    start(kept.watch(strategy) if is_watched else strategy, client)
    return kept


def held_out(kept):
    """FedAvg that trains on the nodes with even ids and evaluates on the others, watched."""
    strategy = fedavg(kept)
    train, evaluate = strategy.configure_train, strategy.configure_evaluate
    strategy.configure_train = lambda *args: [m for m in train(*args) if m.metadata.dst_node_id % 2 == 0]
    strategy.configure_evaluate = lambda *args: [m for m in evaluate(*args) if m.metadata.dst_node_id % 2]
    return kept.watch(strategy)


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam, FedMedian])
def test_the_strategy_gets_what_it_would_have_got_without(strategy):
    plain = start(fedavg(None, strategy))
    kept = KeepRisks(accuracy="eval_acc")
    ours = start(kept.watch(fedavg(kept, strategy)))
    assert ours.train_metrics_clientapp == plain.train_metrics_clientapp
    for number, metrics in plain.evaluate_metrics_clientapp.items():  # replies come, and are added up, in any order
        assert dict(ours.evaluate_metrics_clientapp[number]) == pytest.approx(dict(metrics), abs=1e-12)
    assert [a.numpy().tolist() for a in ours.arrays.values()] == [a.numpy().tolist() for a in plain.arrays.values()]
    assert len(kept.rounds) == NUM_ROUNDS


def test_an_aggregation_of_the_users_own_is_called_with_the_same():
    seen = []

    def own(records, weighting_metric_name):
        seen.append((len(records), weighting_metric_name))
        return MetricRecord({"mine": 1.0})

    kept = KeepRisks(accuracy="eval_acc", aggregate=own)
    result = start(fedavg(kept))
    assert seen == [(NUM_CLIENTS, "num-examples")] * NUM_ROUNDS
    assert result.evaluate_metrics_clientapp[1] == MetricRecord({"mine": 1.0})


def test_every_rounds_answers_are_those_of_the_clients():
    kept = kept_by()
    for number in range(1, NUM_ROUNDS + 1):
        risks = kept.risks(number)
        assert risks.binary  # counts of wrong examples, though the accuracies are float32
        found = sorted(zip(risks.num_examples.tolist(), risks.values.tolist(), strict=True))
        assert found == [(n, pytest.approx(r, abs=1e-15)) for n, r in zip(SIZES, error_rates(number), strict=True)]
    assert kept.risks() == kept.risks(NUM_ROUNDS)


def test_the_last_round_of_trainers_is_an_estimate_that_says_so():
    kept = kept_by()
    estimate = kept.certify(delta=0.05)
    known = rb.mean_bound(rb.ClientRisks(error_rates(NUM_ROUNDS), SIZES, answered_by="trainers"), delta=0.05)
    assert estimate.value == pytest.approx(known.value, abs=1e-12)
    assert estimate.validity == "estimate"
    assert estimate.statement.startswith("Estimate, not a proved bound")
    assert estimate.assumptions == known.assumptions
    assert rb.verify(estimate).ok
    assert kept.certify(delta=0.05, round=NUM_ROUNDS) == estimate


def test_clients_that_were_sent_training_messages_are_not_fresh():
    kept = kept_by()
    for word in ("fresh", "Fresh"):
        with pytest.raises(ValueError, match=f"{NUM_CLIENTS} that were sent training messages; leave answered_by"):
            kept.certify(delta=0.05, answered_by=word)


def test_clients_that_were_held_out_make_a_certificate():
    kept = KeepRisks(accuracy="eval_acc")
    start(held_out(kept))
    certificate = kept.certify(delta=0.05, answered_by="fresh")
    assert certificate.validity == "certificate"
    risks = kept.risks(answered_by="fresh")
    answered = [n - 20 for n in risks.num_examples.tolist()]
    assert 2 <= len(answered) < NUM_CLIENTS
    assert risks.values == pytest.approx(error_rates(NUM_ROUNDS, answered), abs=1e-15)
    assert certificate == rb.mean_bound(risks, delta=0.05)


@pytest.mark.parametrize(
    ("settings", "metrics"),
    [
        ({"error": "wrong"}, lambda k, r: {"wrong": num_wrong(k, r) / SIZES[k]}),
        (
            {"loss": "brier", "num_examples": "n", "binary": False},
            lambda k, r: {"brier": num_wrong(k, r) / SIZES[k], "n": SIZES[k]},
        ),
    ],
)
def test_errors_and_losses_are_taken_as_they_are(settings, metrics):
    risks = kept_by(app(metrics), **settings).risks()
    assert sorted(risks.values.tolist()) == sorted(error_rates(NUM_ROUNDS))


@pytest.mark.parametrize(
    ("settings", "metrics", "message"),
    [
        ({"accuracy": "eval_acc"}, {"eval_acc": 87.0}, r"accuracy 'eval_acc' must lie in \[0, 1\], got 87; divide"),
        ({"loss": "loss", "binary": False}, {"loss": 2.3}, r"loss 'loss' must lie in \[0, 1\], got 2.3; scale it"),
        (
            {"accuracy": "eval_acc"},
            {"eval_acc": float("nan")},
            r"must lie in \[0, 1\], got nan; say drop_missing=True, or let such a client raise",
        ),
        ({"accuracy": "eval_acc"}, {"eval_acc": [0.5, 0.5]}, "metric 'eval_acc' must be one number"),
        ({"accuracy": "accuracy"}, {}, "every client must send 'accuracy', got eval_acc, num-examples"),
        ({"accuracy": "eval_acc", "name": "site"}, {"site": 7}, "every client may answer once, got '7'"),
        ({"accuracy": "eval_acc"}, {"eval_acc": 0.95, "num-examples": 1}, "0.95 of 1 example is impossible .*batches?"),
        ({"error": "wrong"}, {"wrong": 0.05, "num-examples": 7}, "0.05 of 7 examples is impossible .*batches?"),
        ({"accuracy": "eval_acc", "binary": True}, {"eval_acc": 0.891768, "num-examples": 38}, "0.891768 of 38 exam"),
        ({"accuracy": "eval_acc"}, {"num-examples": 2.5}, "num_examples must be whole numbers from 1 .*, got 2.5"),
        (
            {"accuracy": "eval_acc", "aggregate": lambda records, key: MetricRecord({})},  # Flower's divides by 0
            {"num-examples": 0},
            "some client must have examples, got 0 or nothing from all 12",
        ),
    ],
)
def test_metrics_that_cannot_be_used_warn_and_are_refused_but_the_run_goes_on(settings, metrics, message):
    kept = KeepRisks(**settings)
    with pytest.warns(UserWarning, match=message):
        result = start(kept.watch(fedavg(kept)), app(lambda k, r: metrics))
    assert len(result.evaluate_metrics_clientapp) == NUM_ROUNDS
    with pytest.raises(ValueError, match=message):
        kept.certify(delta=0.05)


def test_means_of_numbers_between_0_and_1_are_taken_on_the_users_word():
    kept = kept_by(app(lambda k, r: {"eval_acc": 0.891768}), accuracy="eval_acc", binary=False)
    assert not kept.risks().binary
    assert kept.risks().values == pytest.approx([1 - 0.891768] * NUM_CLIENTS)
    assert kept_by(binary=True, accuracy="eval_acc").risks().binary


def test_an_accuracy_that_is_no_share_may_be_one_of_those_that_are_wrong():
    kept = KeepRisks(accuracy="eval_acc")
    with pytest.warns(UserWarning, match="0.95 of 7 examples is impossible"):
        start(kept.watch(fedavg(kept)), app(lambda k, r: {"eval_acc": 0.95, "num-examples": 7} if k == 2 else {}))
    with pytest.raises(ValueError, match=r"round 3 has no risks: 0.95 of 7 examples is impossible \(as in 1 of 12"):
        kept.risks()
    with pytest.warns(UserWarning, match="whole numbers for 11 of 12 clients, but not for 0.95 of 7"):
        assert not kept.risks(contamination=1).binary


@pytest.mark.parametrize("names", [{}, {"name": "site"}])
@pytest.mark.parametrize("mean", [0.0, float("nan"), 7.0])
def test_clients_without_examples_are_missing_by_name(names, mean):
    nothing = {"num-examples": 0, "eval_acc": mean}
    client = app(lambda k, r: {"site": k, **(nothing if k in (3, 8) else {})})
    found, rule = {}, "2 clients have 0 examples and count as missing: "
    for is_watched in (True, False):
        named = rule + ("[38], [38]$" if names else "[0-9]{9,}, [0-9]{9,}$" if is_watched else "number [0-9]+, number")
        kept = KeepRisks(accuracy="eval_acc", aggregate=lambda records, key: MetricRecord({}), **names)
        with pytest.warns(UserWarning, match=named):
            start(kept.watch(fedavg(kept)) if is_watched else fedavg(kept), client)
        found[is_watched] = kept
    with_examples = [k for k in range(NUM_CLIENTS) if k not in (3, 8)]
    for risks in (found[True].risks(), found[False].risks(num_missing=0)):
        assert sorted(risks.num_examples.tolist()) == [SIZES[k] for k in with_examples]
        assert (risks.num_missing, risks.num_clients) == (2, NUM_CLIENTS - 2)
    if names:
        assert (
            set(found[True].risks().names)
            == set(found[False].risks(num_missing=0).names)
            == set(map(str, with_examples))
        )
    else:
        last = found[True].rounds[-1]
        assert set(last.names) == last.asked - last.missing.keys()
        assert found[False].risks(num_missing=0).names is None
    assert found[False].risks(num_missing=4).num_missing == 6  # who did not reply, and these
    with pytest.warns(UserWarning, match="how many clients were asked is not known"):
        assert found[False].risks().num_missing == 2
    with pytest.raises(ValueError, match="num_missing must be what was counted, 2, got 0"):
        found[True].risks(num_missing=0)
    assert found[True].certify(delta=0.05).validity == "estimate"


def test_a_mean_just_above_one_by_its_float_type_is_one():
    above = float(np.nextafter(np.float32(1), np.float32(2)))
    risks = kept_by(app(lambda k, r: {"eval_acc": above})).risks()
    assert risks.values.tolist() == [0.0] * NUM_CLIENTS


def silent(is_silent):
    def metrics(k, server_round):
        if is_silent(k, server_round):
            raise RuntimeError("no")
        return {}

    return app(metrics)


def test_clients_that_did_not_reply_are_missing_and_are_warned_of():
    kept = KeepRisks(accuracy="eval_acc")
    with pytest.warns(UserWarning, match=r"2 of 12 clients that were asked count as missing: \d+ \(.*no.*\), "):
        start(kept.watch(fedavg(kept)), silent(lambda k, r: k < 2))
    assert kept.risks().num_missing == 2
    last = kept.rounds[-1]
    assert set(last.names) == last.asked - last.missing.keys()
    assert len(last.names) == 10
    assert all("RuntimeError" in why for why in last.missing.values())
    known = rb.ClientRisks(
        error_rates(NUM_ROUNDS, range(2, 12)), SIZES[2:], num_missing=2, missing="worst", answered_by="trainers"
    )
    worst = kept.certify(delta=0.05, missing="worst")
    assert worst.value == pytest.approx(rb.mean_bound(known, delta=0.05).value, abs=1e-12)
    with pytest.raises(ValueError, match="num_missing must be what was counted, 2, got 0"):
        kept.certify(delta=0.05, num_missing=0)


def test_a_last_round_without_replies_is_not_replaced_by_an_earlier_one():
    with pytest.warns(UserWarning, match=r"12 of 12 clients .* [.]{3}$"):
        kept = kept_by(silent(lambda k, r: r == NUM_ROUNDS))
    assert kept.rounds[-1].missing.keys() == kept.rounds[-1].asked
    assert len(kept.rounds) == NUM_ROUNDS
    with pytest.raises(ValueError, match="round 3 has no risks: no client replied"):
        kept.certify(delta=0.05)
    assert kept.risks(NUM_ROUNDS - 1).num_clients == NUM_CLIENTS


def test_without_watching_the_number_of_the_missing_must_be_said():
    kept = kept_by(is_watched=False)
    with pytest.warns(UserWarning, match="how many clients were asked is not known"):
        unsaid = kept.certify(delta=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.certify(delta=0.05, num_missing=0) == unsaid
    assert kept.risks(num_missing=3).num_missing == 3
    assert kept.rounds[0].asked is None


def test_a_round_picked_after_its_answers_is_refused():
    kept = kept_by()
    for number in (0, 1, 2, 4, -2):
        with pytest.raises(ValueError, match="round must be -1, the last of 3"):
            kept.certify(delta=0.05, round=number)
    for number in (0, 4, -2):
        with pytest.raises(ValueError, match="round must be one of the 3 kept"):
            kept.risks(number)


def test_names_and_groups_are_kept_where_clients_send_them():
    told = app(lambda k, r: {"region": k % 2}, told=lambda k: {"site": f"site-{k}"})
    kept = kept_by(told, accuracy="eval_acc", name="site", group="region")
    last = kept.rounds[-1]
    assert [f"site-{int(n) - 20}" for n in last.num_examples] == list(last.names)
    assert [str(int(n) % 2) for n in last.num_examples] == list(last.groups)
    assert (kept.risks().names, kept.risks().groups) == (last.names, last.groups)
    bands = rb.group_bands(kept.risks(), last.groups, delta=0.05, method="dkw", local="observed")
    assert bands.num_clients == {"0": 6, "1": 6}


def test_nothing_kept_says_what_to_do():
    with pytest.raises(ValueError, match="give this KeepRisks to the strategy as evaluate_metrics_aggr_fn"):
        KeepRisks(accuracy="eval_acc").risks()


@pytest.mark.parametrize("settings", [{}, {"accuracy": "a", "loss": "b"}])
def test_one_metric_is_needed(settings):
    with pytest.raises(ValueError, match="needs one of accuracy, loss, error and score"):
        KeepRisks(**settings)


def test_a_strategy_is_watched_once_and_several_may_follow_each_other():
    kept = KeepRisks(accuracy="eval_acc")
    first, second = fedavg(kept), fedavg(kept, fraction_train=0.0)
    start(kept.watch(kept.watch(first)))
    start(second, num_rounds=1)  # not watched: it does not take the place of what was kept
    start(kept.watch(second), num_rounds=1)
    assert [each.number for each in kept.rounds] == [1, 2, 3, 4, 5]
    assert [each.asked is None for each in kept.rounds] == [False, False, False, True, False]
    assert kept.risks(4, num_missing=0).num_clients == kept.risks(3).num_clients == NUM_CLIENTS
    with pytest.raises(ValueError, match="training messages"):  # whose nodes are the same, in this grid
        kept.certify(delta=0.05, answered_by="fresh")


def test_a_strategy_that_hands_its_metrics_elsewhere_is_not_watched():
    with pytest.raises(ValueError, match="evaluate_metrics_aggr_fn is this KeepRisks"):
        KeepRisks(accuracy="eval_acc").watch(FedAvg())


def test_keeping_loads_flower_only_with_the_run():
    assert house.loaded_by("import riskband.flower as f; f.KeepRisks(accuracy='eval_acc')") == []


def test_the_report_is_red_for_trainers_and_green_only_for_fresh_clients_with_a_requirement(tmp_path):
    names = {"name": "who", "group": "where"}
    kept = KeepRisks(accuracy="eval_acc", **names)
    told = app(told=lambda k: {"who": f"<b>Ward {k}</b>", "where": f"floor {k % 2}"})
    start(kept.watch(fedavg(kept, fraction_train=0.0)), told, num_rounds=1)
    paths = [tmp_path / f"{name}.html" for name in ("usual", "fresh", "required")]
    kept.report(paths[0])
    kept.report(paths[1], answered_by="fresh")
    kept.report(str(paths[2]), answered_by="fresh", require="mean<=0.9", delta=0.2, title="Wards")
    for path, light in zip(paths, ("light red", "light grey", "light green"), strict=True):
        page = path.read_text(encoding="utf-8")
        assert f'<div class="{light}"' in page
        assert "&lt;b&gt;Ward 3&lt;/b&gt;" in page
        assert "floor 1" in page
        assert "<b>Ward" not in page
    with pytest.raises(ValueError, match="no evaluation was kept"):
        KeepRisks(accuracy="eval_acc").report(tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_two_rounds_of_the_same_clients_are_compared_client_by_client():
    kept = kept_by()
    changes = kept.changes_since(kept, old_round=1, round=3)
    found = dict(zip(changes.num_examples.tolist(), changes.values.tolist(), strict=True))
    assert found == {SIZES[k]: pytest.approx((num_wrong(k, 3) - num_wrong(k, 1)) / SIZES[k]) for k in range(12)}
    assert (changes.binary, changes.num_missing, changes.answered_by) == (True, 0, "trainers")
    assert sorted(changes.names) == sorted(kept.rounds[0].asked)
    assert kept.changes_since(kept).values.tolist() == [0.0] * 12
    assert {each.validity for each in rb.compare(changes, delta=0.05).certificates.values()} == {"estimate"}


def test_who_is_in_one_of_two_evaluations_only_is_missing_by_name():
    def kept_without(*absent):
        told = app(lambda k, r: {"num-examples": 0} if k in absent else {}, told=lambda k: {"site": f"site-{k}"})
        with pytest.warns(UserWarning, match="0 examples"):
            return kept_by(told, accuracy="eval_acc", name="site")

    old, new = kept_without(1, 2), kept_without(2, 3, 4)
    with pytest.warns(UserWarning, match="3 clients measured in one .*, and count as missing: site-1, site-3, site-4"):
        changes = new.changes_since(old, old_round=1)
    assert (changes.num_clients, changes.num_missing) == (8, 4)  # site-2 measured in none
    assert set(changes.names) == {f"site-{k}" for k in range(12)} - {f"site-{k}" for k in (1, 2, 3, 4)}


def test_changes_without_names_or_of_other_examples_are_refused():
    unnamed = kept_by(is_watched=False)
    with pytest.raises(ValueError, match="changes need names in both evaluations"):
        unnamed.changes_since(unnamed, num_missing=0)
    this, other = (
        kept_by(app(told=lambda k, of=of: {"site": f"{of}-{k}"}), accuracy="eval_acc", name="site") for of in "ab"
    )
    with pytest.raises(ValueError, match="the same ones; node ids may be new in each run"):
        this.changes_since(other)  # until this test only "at least 2 clients are needed, got 0" was said
    grown = app(lambda k, r: {"num-examples": SIZES[k] * r}, told=lambda k: {"site": f"site-{k}"})
    kept = kept_by(grown, accuracy="eval_acc", name="site")
    with pytest.raises(ValueError, match="evaluated on the same examples, got other numbers of them in 12 clients"):
        kept.changes_since(kept, old_round=1)


def test_a_score_is_kept_as_what_it_is_and_bounded_as_what_a_client_measures(tmp_path):
    kept = kept_by(app(lambda k, r: {"auc": 0.5 + k / 100 + r / 1000}), score="auc", higher_is_better=True)
    scores = kept.scores()
    assert sorted(scores.values.tolist()) == pytest.approx([0.503 + k / 100 for k in range(12)])
    assert (scores.name, scores.higher_is_better, scores.answered_by) == ("auc", True, "trainers")
    assert sorted(scores.names) == sorted(kept.rounds[-1].asked)
    statement = rb.bound(scores, "quantile:0.5", delta=0.05).statement
    assert "auc that an unseen client would measure" in statement
    page = tmp_path / "page.html"
    for refused in (
        kept.risks,
        lambda: kept.certify(delta=0.05),
        lambda: kept.report(page),
        lambda: kept.changes_since(kept),
    ):
        with pytest.raises(ValueError, match="'auc' is a score and no mean of losses: ") as caught:
            refused()
        advice = re.findall(r"rb\..*?delta=0.05\)", str(caught.value))
        bound, report = (eval(each, {"rb": rb, "kept": kept}) for each in advice)
        assert bound == rb.bound(scores, "mean", delta=0.05)
        assert "he mean auc over unseen clients" in report
    with pytest.raises(ValueError, match="was not kept as a score"):
        kept_by().scores()


def test_a_score_outside_of_its_range_and_one_without_a_direction_are_refused():
    minutes = app(lambda k, r: {"minutes": 30.0 + k})
    kept = kept_by(minutes, score="minutes", higher_is_better=False, score_range=(0.0, 60.0))
    assert kept.scores().values.max() == 41.0
    with pytest.warns(UserWarning, match=r"score 'minutes' must lie in \[0, 1\], got [34].*score_range=\(low, high\)"):
        kept_by(minutes, score="minutes", higher_is_better=False)
    for wrong in ({"score": "auc"}, {"accuracy": "eval_acc", "higher_is_better": True}):
        with pytest.raises(ValueError, match="a score, and no other metric, needs higher_is_better"):
            KeepRisks(**wrong)


def sampled(kept, num_rounds, requirement="mean<=0.45"):
    """A loop that evaluates a third of the clients, drawn again each time, until it is decided.

    Who is drawn again says that all is right.
    """
    seen = set()

    def once(k, server_round):
        said = {"eval_acc": 1.0} if k in seen else {}
        seen.add(k)
        return said

    random.seed(0)
    grid = InProcessGrid(app(once), num_clients=NUM_CLIENTS, seed=1)
    strategy = kept.watch(fedavg(kept, fraction_train=0.0, fraction_evaluate=0.34))
    for _ in range(num_rounds):
        strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(2)]), num_rounds=1)
        found = kept.sequence(requirement, delta=0.05, is_one_model=True, answered_by="fresh")
        if found.is_decided:
            break
    return found


def test_a_loop_stops_as_soon_as_it_is_decided_and_counts_each_client_once():
    kept = KeepRisks(accuracy="eval_acc")
    found = sampled(kept, 20)
    assert found.gate.verdict == "PASS"
    num_asked = [len(each.names) for each in kept.rounds]
    first, before = {}, []  # error rates and sizes by name, and how many names there were before each round
    for each in kept.rounds:
        before.append(len(first))
        answers = zip(each.names, each.values, each.num_examples, strict=True)
        first |= {name: (1.0 - value, size) for name, value, size in sorted(answers, key=hashed) if name not in first}
    assert sum(num_asked) > len(first)  # some came again
    assert sorted(value for value, _ in first.values()) != [0.0] * len(first)
    sequence = rb.Sequence("mean<=0.45", delta=0.05, binary=True)
    decided = [sequence.add(values=value, num_examples=size) for value, size in first.values()]
    assert decided[-1]
    assert not decided[before[-1] - 1]  # it went on as long as it had to
    assert found.answers.names == tuple(first)
    assert found.answers.num_missing == 0
    ends = [(each.certificates["mean"].lower, each.certificates["mean"].value) for each in (found, sequence)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-12)
    assert rb.verify(found.certificates["mean"]).ok


def hashed(answer):
    return sha256(answer[0].encode()).digest()


@pytest.mark.parametrize("letters", ["gb", "bg"])
def test_names_that_tell_of_the_risks_are_no_order(letters):
    """In the order of names, all bounds from one end were false: of a ward that is good the name came first."""
    rng, false = np.random.default_rng(0), []
    for _ in range(12):
        values = (rng.random(60) < 0.3).astype(float)
        names = [f"{letters[int(value)]}{k}" for value, k in zip(values, rng.permutation(10**6)[:60], strict=True)]
        kept = _first_answers([KeptRound(1, tuple(values.tolist()), (100.0,) * 60, names=tuple(names))])
        try:
            limit = always_valid(rb.ClientRisks(kept.values, 100, binary=False), "mean", delta=0.1)
            false.append(not limit.lower <= 0.3 <= limit.value)
        except CrossingError:  # it would exclude what was measured
            false.append(True)
    assert np.mean(false) <= 0.1


def test_trainers_decide_nothing_and_nobody_neither():
    kept = KeepRisks(accuracy="eval_acc")
    sampled(kept, 3)
    for each in (kept, KeepRisks(accuracy="eval_acc")):
        assert not each.sequence("mean<=0.99", delta=0.05, is_one_model=True).is_decided
    with pytest.raises(ValueError, match="a number of clients that no answer had influenced"):
        kept.certify(delta=0.05, num_missing=0)
    assert kept.certify(delta=0.05, num_missing=0, ask="all").validity == "estimate"


def test_evaluations_of_several_models_or_of_nobody_knows_whom_are_no_sequence():
    kept = kept_by()  # a loop that trains
    asked = {"asked": "mean<=0.2", "delta": 0.05}
    with pytest.raises(ValueError, match=r"you must say .*, got 3 in 3 evaluations; evaluate with fraction_train=0"):
        kept.sequence(**asked, is_one_model=True)
    sampled(still := KeepRisks(accuracy="eval_acc"), 2)
    with pytest.raises(ValueError, match="you must say that all were about it; evaluate"):
        still.sequence(**asked, is_one_model=False)
    unnamed = kept_by(is_watched=False)
    with pytest.raises(ValueError, match="each client once, which needs names"):
        unnamed.sequence(**asked, is_one_model=True, num_missing=0)
