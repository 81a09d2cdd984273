"""The real ClientApp on the in-process network."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from client.app import app
from client.identity import client_id
from client.refusals import WithheldError, details_withheld, kind_of, say_refusals
from protocol import wire
from protocol.codec import to_array_record, to_arrays
from protocol.hashes import code_hash, model_hash
from protocol.models import build_model, load_arrays, model_arrays
from protocol.questions import AdversarialAnswer, HelloAnswer, HelloQuery, LossAnswer, LossQuery
from riskband.adversaries.registry import adversarial_curves
from riskband.checks import RefusedError
from riskband.flower.testing import InProcessGrid
from riskband.models.evaluation import mean_loss
from tests.transport import adversarial_query, changed
from worlds.datasets import load_dataset
from worlds.population import Population, spec_from_config

CONFIG = {
    "dataset": "digits",
    "seed": 4,
    "examples-per-client": 30,
    "affine-sigma": 0.2,
    "dirichlet-concentration": 1.0,
    "model": "mlp",
    "training-epochs": 2,
    "learning-rate": 0.01,
    "training-margin": 0.0,
    "training-noise": 0.0,
    "num-clients": 4,
    "num-training-clients": 0,
    "answered-by": "fresh",
}
QUERY = LossQuery(loss="zero_one", model="mlp", x_shape=(1, 8, 8), num_classes=10)
MODEL = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=1)


def network(num_clients=2, *, config=CONFIG, **settings):
    return InProcessGrid(app, num_clients=num_clients, run_config=config, **settings)


def send(grid, content, action="query.loss"):
    """The replies of all clients."""
    return list(grid.send_and_receive([Message(content, node, action) for node in grid.get_node_ids()], timeout=30))


def refusal(query=QUERY, arrays=None, *, config=CONFIG, action="query.loss", edit=None, **settings):
    """Return the text of the error that comes back to the server."""
    content = wire.encode_query(query, model_arrays(MODEL) if arrays is None else arrays)
    if edit is not None:
        edit(content)
    (reply,) = send(network(1, config=config, **settings), content, action)
    assert reply.error.code == 2
    return reply.error.reason


@pytest.mark.parametrize("loss", ["zero_one", "brier"])
def test_the_answer_is_the_plain_evaluation_of_the_clients_own_examples(loss):
    query = LossQuery(loss=loss, model="mlp", x_shape=(1, 8, 8), num_classes=10)
    replies = send(network(4), wire.encode_query(query, model_arrays(MODEL)))
    answers = sorted((wire.decode_answer(reply.content, LossAnswer) for reply in replies), key=lambda a: a.client_id)
    population = Population(spec_from_config(CONFIG))
    for k, answer in enumerate(answers):
        examples = population.client(k)
        risk, num_examples = mean_loss(MODEL, examples.x, examples.y, loss=loss)
        assert answer == LossAnswer(
            client_id=f"client-{k:05d}",
            risk=risk,
            num_examples=num_examples,
            loss=loss,
            code_hash=code_hash(),
            model_hash=model_hash(model_arrays(MODEL)),
        )
    assert len({answer.risk for answer in answers}) > 1


def test_answers_read_off_a_loss_table_are_those_of_the_clients_images():
    mixture = {"resolution-alphas": "1,2,2,3", "resolution-levels": "4,5,7,8", "rotation-angles": "0,40"}
    config = CONFIG | mixture | {"affine-sigma": 0, "examples-per-client": 2000}
    population, answered = Population(spec_from_config(config)), {}
    for seed in (1, 2):  # another model has another table
        model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=seed)
        replies = send(network(4, config=config), wire.encode_query(QUERY, model_arrays(model)))
        answers = [wire.decode_answer(reply.content, LossAnswer) for reply in replies]
        answered[seed] = {answer.client_id: answer.risk for answer in answers}
        held = [population.client(k) for k in range(4)]
        risks = [mean_loss(model, each.x, each.y, loss="zero_one")[0] for each in held]
        assert answered[seed] == {f"client-{k:05d}": risk for k, risk in enumerate(risks)}
    assert answered[1] != answered[2]


def test_the_device_is_that_of_the_node_config_or_else_of_the_run():
    def answer(**settings):
        (reply,) = send(network(1, **settings), wire.encode_query(QUERY, model_arrays(MODEL)))
        return wire.decode_answer(reply.content, LossAnswer)

    wrong = CONFIG | {"device": "gpu"}
    assert answer() == answer(config=wrong, node_configs={0: {"device": "cpu"}})
    assert answer().risk == pytest.approx(
        answer(config=CONFIG | {"device": "auto"}).risk, abs=0.04
    )  # one example of 30
    assert "device must be one of auto, cpu, cuda" in refusal(config=wrong)
    if not torch.cuda.is_available():
        assert "torch sees no GPU here" in refusal(node_configs={0: {"device": "cuda"}})


def test_a_client_id_of_the_node_config_comes_first():
    grid = network(1, node_configs={0: {"client-id": "hospital-a"}})
    (reply,) = send(grid, wire.encode_query(QUERY, model_arrays(MODEL)))
    assert wire.decode_answer(reply.content, LossAnswer).client_id == "hospital-a"


def answered_groups(*, config=CONFIG, node_configs=None, num_clients=1):
    """The groups in the answers to either question."""
    groups = []
    for query, action, kind in (
        (QUERY, "query.loss", LossAnswer),
        (ADVERSARIAL_QUERY, "query.adversarial_loss", AdversarialAnswer),
    ):
        grid = network(num_clients, config=config, node_configs=node_configs)
        replies = send(grid, wire.encode_query(query, model_arrays(MODEL)), action)
        answers = [wire.decode_answer(reply.content, kind) for reply in replies]
        groups.append([answer.group for answer in sorted(answers, key=lambda answer: answer.client_id)])
    assert groups[0] == groups[1]
    return groups[0]


def test_a_group_is_what_the_owner_says_else_that_of_the_simulation_else_none():
    assert answered_groups() == [None]
    assert answered_groups(node_configs={0: {"group": "rural"}}) == ["rural"]
    assert answered_groups(node_configs={0: {"group": 7}}) == ["7"]  # a command line makes it a number
    config = CONFIG | {"group-sigmas": "0.1,0.3"}
    spec = spec_from_config(config)
    simulated = [spec.group(k).name for k in range(3)]
    assert answered_groups(config=config, num_clients=3) == simulated
    assert answered_groups(config=config, num_clients=3, node_configs={1: {"group": "own"}}) == [
        simulated[0],
        "own",
        simulated[2],
    ]


@pytest.mark.parametrize("name", ["", "x" * 101, "two\nlines"])
def test_a_group_without_a_usable_name_is_refused_without_showing_it(name, tmp_path):
    own = {"group": name, "query-budget": 1, "query-budget-file": str(tmp_path / "budget.sqlite")}
    text = refusal(node_configs={0: own})
    assert f"'group' must be 1 to 100 printable characters, got {len(name)}" in text.replace("\\'", "'")
    assert not name or name not in text
    (reply,) = send(network(1, node_configs={0: own}), wire.encode_query(HelloQuery()), "query.hello")
    assert wire.decode_answer(reply.content, HelloAnswer).budget_left == 1  # a refused question costs nothing


def test_names_come_from_the_node_config():
    assert client_id({"partition-id": 12}) == "client-00012"
    assert client_id({"client-id": "x", "partition-id": 12}) == "x"
    with pytest.raises(ValueError, match="must have the key 'partition-id'"):
        client_id({})


def without(name):
    return {key: value for key, value in model_arrays(MODEL).items() if key != name}


def test_what_a_client_cannot_answer_it_refuses_by_rule():
    other_loss = LossQuery("accuracy", "mlp", (1, 8, 8), 10)
    assert "loss must be one of brier, cross_entropy, margin, zero_one, got 'accuracy'" in refusal(other_loss)
    assert "No query function registered with name 'everything'" in refusal(action="query.everything")
    old = refusal(edit=lambda content: content["query"].update({"protocol-version": 0}))
    assert "protocol-version must be 3, got 0" in old
    assert "model must be one of" in refusal(LossQuery("brier", "transformer", (1, 8, 8), 10))


def test_a_model_that_does_not_fit_is_refused():
    first_name = next(iter(model_arrays(MODEL)))
    assert repr(first_name) in refusal(arrays=without(first_name)).replace("\\'", "'")
    wide = build_model("mlp", x_shape=(1, 9, 9), num_classes=10, seed=0)
    assert "a model that does not fit" in refusal(arrays=model_arrays(wide))
    wide_query = LossQuery("brier", "mlp", (1, 9, 9), 10)
    assert "a model that does not fit" in refusal(wide_query, model_arrays(wide))


def test_details_of_a_failure_near_the_data_stay_on_the_client():
    secret = "npz:/home/patient-4711.npz"
    text = refusal(config=CONFIG | {"dataset": secret})
    assert "loading this client's examples failed with ValueError" in text
    assert "4711" not in text


def test_labels_outside_the_models_classes_are_refused_without_showing_them():
    small = build_model("mlp", x_shape=(1, 8, 8), num_classes=3, seed=0)
    text = refusal(LossQuery("cross_entropy", "mlp", (1, 8, 8), 3), model_arrays(small))
    assert "evaluating the model failed with ValueError" in text


ADVERSARIAL_QUERY = adversarial_query(
    "zero_one", "mlp", (1, 8, 8), 10, order=2, radii=(0.0, 0.1, 1.0, 10.0), multipliers=(0.05, 0.5)
)


@pytest.mark.parametrize(
    ("change", "guarantee"),
    [
        ({}, "exact"),
        ({"loss": "cross_entropy", "order": 1, "norm": "linf"}, "upper"),
        ({"space": "input", "adversary": "pgd", "box": (-9.0, 9.0), "seed": 3}, "lower"),
        ({"space": "input", "adversary": "sandwich", "order": 1, "norm": "linf"}, "upper"),
        ({"space": "input", "adversary": "pgd", "order": 1, "distances": (0.5, 4.0)}, "lower"),
        ({"space": "layer:2", "order": 1}, "upper"),
    ],
)
def test_the_adversarial_answer_is_the_plain_evaluation_of_the_clients_own_examples(change, guarantee):
    query, config = changed(ADVERSARIAL_QUERY, **change), CONFIG | {"examples-per-client": 4, "seed": 7}
    replies = send(network(2, config=config), wire.encode_query(query, model_arrays(MODEL)), "query.adversarial_loss")
    answers = sorted((wire.decode_answer(r.content, AdversarialAnswer) for r in replies), key=lambda a: a.client_id)
    population = Population(spec_from_config(config))
    for k, answer in enumerate(answers):
        x, y = population.client(k).x, population.client(k).y
        curves = adversarial_curves(MODEL, x, y, query.problem, multipliers=query.multipliers)
        lower, upper = curves.values(query.radii)
        assert answer.client_id == f"client-{k:05d}"
        assert (answer.values_lower, answer.values_upper) == (tuple(lower), tuple(upper))
        low, high = curves.conjugates(query.multipliers)
        assert (answer.conjugates_lower, answer.conjugates_upper) == (tuple(low), tuple(high))
        assert (answer.clean_risk, answer.num_examples) == mean_loss(MODEL, x, y, loss=query.loss)
        assert answer.adversarial_unit == curves.adversarial_unit > 0
        assert (answer.guarantee, answer.budget_left) == (guarantee, None)
        assert answer.model_hash == model_hash(model_arrays(MODEL))


def adversarial_question(model=None, **change):
    """What nobody can build here, as another sender might: the record with some of its keys replaced."""
    content = wire.encode_query(ADVERSARIAL_QUERY, model_arrays(model or MODEL))
    for name, value in change.items():
        content["query"][name.replace("_", "-")] = list(value) if isinstance(value, tuple) else value
    return content


def adversarial_refusal(model=None, **change):
    (reply,) = send(network(1), adversarial_question(model, **change), "query.adversarial_loss")
    return reply.error.reason


def test_an_adversarial_question_that_nobody_can_answer_is_refused_by_rule():
    assert "order must be one of 1, 2, got 7" in adversarial_refusal(order=7)
    assert "norm must be" in adversarial_refusal(norm="linf")
    unknown = adversarial_refusal(space="pixels").replace("\\'", "'")
    assert "space must be one of representation, input, layer:NAME, got 'pixels'" in unknown
    inputs = {"space": "input", "order": 1}
    assert "adversary must be one of auto, pgd" in adversarial_refusal(adversary="exact", **inputs)
    proof = adversarial_refusal(adversary="sandwich", loss="abstain:0.8", **inputs)
    assert "Lipschitz bounds are known for the losses" in proof
    assert "must lie in the box [0.2, 0.4], and some do not" in adversarial_refusal(box=(0.2, 0.4), **inputs)
    assert "no exact adversary" in adversarial_refusal(loss="brier", adversary="exact")
    assert "its linear layers are 1, 3" in adversarial_refusal(head="7")
    assert "must be the output of one nn.Linear" in adversarial_refusal(head="1")
    wide = build_model("mlp", x_shape=(1, 9, 9), num_classes=10, seed=0)
    assert "a model that does not fit" in adversarial_refusal(wide, x_shape=(1, 9, 9))


def test_the_query_budget_is_kept_across_messages_and_processes(tmp_path):
    own = {"query-budget": 12, "query-budget-file": str(tmp_path / "budget.sqlite")}
    adversarial = wire.encode_query(ADVERSARIAL_QUERY, model_arrays(MODEL))
    plain = wire.encode_query(QUERY, model_arrays(MODEL))
    left = []
    for _ in range(2):  # a new grid is a new process as far as the client can tell
        grid = network(1, node_configs={0: own})
        (reply,) = send(grid, adversarial, "query.adversarial_loss")
        if not reply.has_error():
            left.append(wire.decode_answer(reply.content, AdversarialAnswer).budget_left)
    assert left == [12 - 1 - 4 - 2 - 1]  # the clean risk, 4 radii, 2 multipliers and the adversarial unit
    assert "query budget of 12 values, got 8 with 4 left" in reply.error.reason
    for _ in range(4):
        (reply,) = send(network(1, node_configs={0: own}), plain)
        assert not reply.has_error()
    (reply,) = send(network(1, node_configs={0: own}), plain)
    assert "got 1 with 0 left" in reply.error.reason


def test_with_a_box_at_a_layer_no_example_is_made_up(tmp_path):
    """What a layer returns for made-up inputs lies outside a box that the client's own examples fit into."""
    x = Population(spec_from_config(CONFIG)).client(0).x
    noise = np.random.default_rng(0).random(size=x.shape, dtype=np.float32)
    with torch.no_grad():
        own_points, others = (MODEL[:2](torch.from_numpy(np.array(images))) for images in (x, noise))
    box = float(own_points.min()) - 1e-3, float(own_points.max()) + 1e-3
    assert not bool(((others >= box[0]) & (others <= box[1])).all())
    # Two values more than in representation space: at how many examples the attack saw no gradient, and whether the
    # model is unsteady.
    own = {"query-budget": 11, "query-budget-file": str(tmp_path / "budget.sqlite")}
    query = changed(ADVERSARIAL_QUERY, space="layer:1", adversary="min-norm", box=box)
    content = wire.encode_query(query, model_arrays(MODEL))
    (reply,) = send(network(1, node_configs={0: own}), content, "query.adversarial_loss")
    assert wire.decode_answer(reply.content, AdversarialAnswer).budget_left == 1


def test_a_refused_question_costs_nothing(tmp_path):
    own = {"query-budget": 8, "query-budget-file": str(tmp_path / "budget.sqlite")}
    for content in (adversarial_question(order=7), adversarial_question(loss="hinge")):
        (reply,) = send(network(1, node_configs={0: own}), content, "query.adversarial_loss")
        assert reply.has_error()
    content = wire.encode_query(ADVERSARIAL_QUERY, model_arrays(MODEL))
    (reply,) = send(network(1, node_configs={0: own}), content, "query.adversarial_loss")
    assert wire.decode_answer(reply.content, AdversarialAnswer).budget_left == 0


def test_asking_for_a_box_is_paid_for_even_if_the_examples_are_not_in_it(tmp_path):
    # A refusal tells on which side of the box's ends the data lie.
    own = {"query-budget": 10, "query-budget-file": str(tmp_path / "budget.sqlite")}
    query = changed(ADVERSARIAL_QUERY, space="input", adversary="pgd", box=(0.2, 0.4))
    for words in ("must lie in the box", "with 0 left"):
        content = wire.encode_query(query, model_arrays(MODEL))
        (reply,) = send(network(1, node_configs={0: own}), content, "query.adversarial_loss")
        assert words in reply.error.reason


def test_a_hello_says_who_and_how_much_is_left_and_spends_nothing(tmp_path):
    own = {"client-id": "a", "query-budget": 12, "query-budget-file": str(tmp_path / "budget.sqlite")}
    # No data are touched: there is no such dataset.
    grid = network(2, config=CONFIG | {"dataset": "npz:/nowhere/at.all"}, node_configs={0: own})
    for _ in range(2):
        replies = send(grid, wire.encode_query(HelloQuery()), "query.hello")
        answers = sorted(
            (wire.decode_answer(reply.content, HelloAnswer) for reply in replies), key=lambda a: a.client_id
        )
        assert answers == [
            HelloAnswer("a", code_hash(), 12),
            HelloAnswer("client-00001", code_hash(), None),
        ]
    grid = network(1, node_configs={0: own})
    send(grid, wire.encode_query(QUERY, model_arrays(MODEL)))
    (reply,) = send(grid, wire.encode_query(HelloQuery()), "query.hello")
    assert wire.decode_answer(reply.content, HelloAnswer).budget_left == 11


@pytest.mark.parametrize("dataset", ["npz:/data/patients.npz", "hf:a/b", "own_task:load"])
def test_a_server_does_not_choose_what_a_client_with_a_name_reads(dataset):
    own = {0: {"client-id": "a", "partition-id": 0, "num-partitions": 1}}
    config = CONFIG | {"dataset": dataset}
    rule = "not for a server to choose what a client reads"
    assert rule in refusal(config=config, node_configs=own)
    grid = network(1, config=config, node_configs=own)
    (reply,) = send(grid, wire.encode_query(QUERY, model_arrays(MODEL)), "train")
    assert rule in reply.error.reason
    allowed = {0: own[0] | {"allow-run-dataset": True}}
    assert rule not in refusal(config=config, node_configs=allowed)  # tried, and found not to be there


def test_training_is_no_way_around_the_query_budget_of_a_client_that_lets_a_run_name_its_data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    digits = load_dataset("digits", seed=0)
    parts = {"x_train": digits.x_train, "y_train": digits.y_train, "x_test": digits.x_pool, "y_test": digits.y_pool}
    np.savez(tmp_path / "patients.npz", **parts)
    config = CONFIG | {"dataset": f"npz:{tmp_path / 'patients.npz'}"}
    own = {"client-id": "a", "partition-id": 0, "num-partitions": 1, "allow-run-dataset": True}
    content = RecordDict({"config": ConfigRecord({"server-round": 1}), **wire.encode_query(QUERY, model_arrays(MODEL))})
    (refused,) = send(network(1, config=config, node_configs={0: own}), content, "train")
    assert "a client with a query-budget trains on bundled data alone" in refused.error.reason
    (trained,) = send(network(1, config=config, node_configs={0: own | {"query-budget": "none"}}), content, "train")
    assert not trained.has_error()  # thousands of numbers


def test_a_hello_in_another_language_is_refused():
    content = wire.encode_query(HelloQuery())
    content["query"]["protocol-version"] = 1
    (reply,) = send(network(1), content, "query.hello")
    assert "protocol-version must be 3, got 1" in reply.error.reason


def test_a_hello_does_not_pass_over_a_count_that_cannot_be_read(tmp_path):
    path = tmp_path / "budget.sqlite"
    path.write_text("this is not a database, and long enough to be sure of it" * 10)
    own = {"query-budget": 12, "query-budget-file": str(path)}
    (reply,) = send(network(1, node_configs={0: own}), wire.encode_query(HelloQuery()), "query.hello")
    assert "counting the query budget failed with DatabaseError" in reply.error.reason


def test_the_servers_config_does_not_set_the_clients_budget():
    config = CONFIG | {"query-budget": 0, "query-budget-file": "/nowhere/at.all"}
    (reply,) = send(network(1, config=config), wire.encode_query(QUERY, model_arrays(MODEL)))
    assert not reply.has_error()


def federated(num_clients, *, num_rounds, **config):
    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_evaluate_nodes=0, min_available_nodes=2)
    grid = network(num_clients, config=CONFIG | config)
    return fedavg.start(grid, to_array_record(model_arrays(MODEL)), num_rounds=num_rounds)


def test_federated_training_improves_the_model():
    result = federated(4, num_rounds=3, **{"examples-per-client": 300})
    trained = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    load_arrays(trained, to_arrays(result.arrays))
    data = load_dataset("digits", seed=CONFIG["seed"])
    before, _ = mean_loss(MODEL, data.x_pool, data.y_pool, loss="zero_one")
    after, _ = mean_loss(trained, data.x_pool, data.y_pool, loss="zero_one")
    assert before > 0.7
    assert after < 0.3
    assert result.train_metrics_clientapp[3]["train-loss"] < result.train_metrics_clientapp[1]["train-loss"]


def test_federated_training_repeats_bit_for_bit():
    first, second = (federated(2, num_rounds=2, **{"dirichlet-concentration": 0.0}) for _ in range(2))
    for name, array in first.arrays.items():
        # Two clients: their weighted sum does not depend on the order of the replies.
        np.testing.assert_array_equal(array.numpy(), second.arrays[name].numpy())


def test_a_node_on_which_no_client_trains_returns_the_model_with_weight_0():
    grid = network(3, config=CONFIG | {"num-training-clients": 1})
    arrays, config = to_array_record(model_arrays(MODEL)), ConfigRecord({"server-round": 1})
    content = RecordDict({"arrays": arrays, "config": config})
    replies = send(grid, content, "train")
    returned = [reply.content["metrics"]["num-examples"] for reply in replies]
    assert sorted(returned) == [0, 0, 30]
    for reply, num_examples in zip(replies, returned, strict=True):
        is_unchanged = model_hash(to_arrays(reply.content["arrays"])) == model_hash(model_arrays(MODEL))
        assert is_unchanged == (num_examples == 0)


@pytest.mark.parametrize(
    ("own", "name"),
    [
        ({}, "client-00000"),
        ({"client-id": "hospital-a"}, "hospital-a"),
        ({"client-id": "a\nb"}, None),
        ({"client-id": "x" * 101}, None),
    ],
)
def test_a_refusal_says_who_refuses(own, name):
    refused = wire.decode_refusal(refusal(LossQuery("none", "mlp", (1, 8, 8), 10), node_configs={0: own}))
    assert (refused.client_id, refused.code_hash) == (name, code_hash())
    assert refused.text.startswith(("RefusedError: ", "ValueError: "))


class Patient4711Error(PermissionError):
    """As somebody's code may make and raise one for each example."""


class Patient4711RefusedError(RefusedError):
    """The same, of ours."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Patient4711Error(), "PermissionError"),
        (Patient4711RefusedError(), "RefusedError"),
        (type("patient 4711", (UnicodeDecodeError,), {})("utf-8", b"", 0, 1, ""), "UnicodeDecodeError"),
        (type("ValueError", (Exception,), {"__module__": "builtins"})(), "Exception"),
        (type("patient 4711", (SystemExit,), {})(), "SystemExit"),
        (sqlite3.OperationalError(), "OperationalError"),
        (WithheldError(), "WithheldError"),
    ],
    ids=str,
)
def test_of_an_exception_only_a_fixed_set_of_names_travels(error, kind):
    assert kind_of(error) == kind
    with pytest.raises(RuntimeError if kind != "RefusedError" else RefusedError) as caught, details_withheld("a step"):
        raise error
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("error", [KeyError("patient 4711"), RuntimeError("patient 4711"), OSError(2, "patient 4711")])
def test_only_our_own_words_leave_a_client(error):
    def fails(message, context):
        raise error

    reply = say_refusals(
        Message(RecordDict(), 2, "query.loss"), Context(1, 2, {"client-id": "a"}, RecordDict(), {}), fails
    )
    assert "4711" not in reply.error.reason
    refused = wire.decode_refusal(reply.error.reason)
    assert (refused.client_id, reply.error.code) == ("a", 2)
    assert refused.text == f"{type(error).__name__}; the details are in this client's own log"
