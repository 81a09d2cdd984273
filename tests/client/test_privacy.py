"""A client with a privacy budget: what leaves it has the noise that it says, is counted first, and never exceeds it."""

from __future__ import annotations

import json
import math
import sqlite3
from fractions import Fraction

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from client.app import app
from client.numbers import summed_steps
from client.privacy import PrivacyBudget, privacy_from_config
from protocol import wire
from protocol.mechanisms import LOSS_STEPS
from protocol.models import build_model, model_arrays
from protocol.questions import Candidate, CandidatesQuery, LossAnswer, LossQuery
from protocol.weight_sets import joined
from riskband.flower.testing import InProcessGrid
from riskband.models.evaluation import example_losses, mean_loss
from tests.client.test_noise import laplace_masses, p_value
from tests.transport import adversarial_query, curves_of

MODEL = build_model("mlp", x_shape=(3,), num_classes=2, seed=1)
SIMULATED = {"dataset": "digits", "examples-per-client": 30, "affine-sigma": 0.2, "dirichlet-concentration": 1.0}
DIGITS = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=1)


def question(privacy, loss="zero_one"):
    return LossQuery(loss, "mlp", (3,), 2, privacy)


def examples(seed=0, num_examples=40):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_examples, 3)).astype(np.float32), rng.integers(0, 2, size=num_examples)


@pytest.fixture(name="own")
def _own(tmp_path):
    x, y = examples()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return {
        "client-id": "a",
        "data": str(tmp_path / "data.npz"),
        "privacy-budget": "laplace:2",
        "privacy-budget-file": str(tmp_path / "client.sqlite"),
    }


def ask(own, query, *, config=None, arrays=None):
    """The answer, or the text of the refusal; each call is a new process as far as the client can tell."""
    grid = InProcessGrid(app, num_clients=1, run_config=config or {"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    model = DIGITS if query.x_shape == (1, 8, 8) else MODEL
    arrays = model_arrays(model) if arrays is None else arrays
    if isinstance(query, CandidatesQuery):
        arrays = joined([arrays])
    message = Message(wire.encode_query(query, arrays), node, wire.message_type(query))
    (reply,) = grid.send_and_receive([message], timeout=30)
    if reply.has_error():
        return reply.error.reason
    return wire.decode_answer(reply.content, wire.answer_type(query))


def left(own):
    return privacy_from_config(own).left()


def test_every_answer_is_counted_exactly_and_the_budget_holds(own):
    numbers = [ask(own, question("laplace:0.3", "brier")).risk for _ in range(6)]
    assert len(set(numbers)) > 1  # without an answer record each is drawn anew, and paid for
    assert left(own) == Fraction(2) - 6 * Fraction("0.3") == Fraction("0.2")
    refused = ask(own, question("laplace:0.3"))
    assert "must fit the client's privacy-budget, got epsilon = 0.3 with 0.2 left" in refused
    assert isinstance(ask(own, question("laplace:0.2")).risk, float)  # what is left to the last digit
    assert left(own) == 0
    assert "with 0 left" in ask(own, question("laplace:0.000001"))


@pytest.mark.guard
@pytest.mark.parametrize(
    ("privacy", "rule"),
    [
        ("", "answers with laplace noise only; ask with privacy = 'laplace:EPSILON'"),
        ("gaussian:0.1", "answers with laplace noise only"),
        ("laplace:1e9", "got epsilon = 1000000000 with 2 left"),
        ("laplace:2.000000000001", "got epsilon = 2.000000000001 with 2 left"),
        ("laplace:0", "privacy must be 'laplace:EPSILON'"),
        ("laplace:nan", "privacy must be 'laplace:EPSILON'"),
        ("gauss:1", "privacy must be 'laplace:EPSILON'"),
    ],
)
def test_what_is_not_private_in_the_clients_way_is_refused_and_costs_nothing(own, privacy, rule):
    own |= {"query-budget": 9, "query-budget-file": own["privacy-budget-file"]}
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    content = wire.encode_query(question("laplace:1"), model_arrays(MODEL))
    content["query"]["privacy"] = privacy
    (reply,) = grid.send_and_receive([Message(content, node, "query.loss")], timeout=30)
    assert rule in reply.error.reason.replace("\\'", "'")
    assert left(own) == 2
    assert ask(own, CandidatesQuery("mlp", (3,), 2, (Candidate("b", 0, "brier"),), "laplace:0.5")).budget_left == 8


def adversarial(privacy, *, radii=(0.0,), **changes):
    settings = {"order": 1, "multipliers": (0.1, 0.5, 2.0), "radii": radii, "privacy": privacy} | changes
    return adversarial_query(**{"loss": "zero_one", "model": "mlp", "x_shape": (3,), "num_classes": 2} | settings)


def test_an_adversarial_answer_has_noise_on_the_risk_and_on_every_conjugate(own, tmp_path):
    own["privacy-budget"] = "gaussian:1e12"
    x, y = examples(num_examples=10)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    exact = curves_of(MODEL, x, y, loss="zero_one", order=1, multipliers=(0.1, 0.5, 2.0))
    expected = [exact.clean_risk, *exact.conjugates((0.1, 0.5, 2.0))[0]]
    noise = []
    for _ in range(20):
        answer = ask(own, adversarial("gaussian:50"))
        assert answer.values_lower == answer.values_upper == (answer.clean_risk,)
        assert answer.conjugates_lower == answer.conjugates_upper
        assert (answer.adversarial_unit, answer.guarantee, answer.num_examples) == (0.0, "exact", 10)
        noise.append(np.array([answer.clean_risk, *answer.conjugates_upper]) - expected)
    # s = sqrt(4 numbers / (2 * 50)) / 10 examples; rounding up adds a millionth. Fails by chance once in a million.
    assert kstest(np.ravel(noise), "norm", args=(0.0, 0.02)).pvalue > 1e-6
    assert kstest(np.ravel(noise), "norm", args=(0.0, 0.0008)).pvalue < 1e-6
    assert abs(np.corrcoef(np.transpose(noise))[0, 1:]).max() < 0.95
    assert left(own) == 10**12 - 1000


def test_a_question_that_cannot_be_tried_on_a_made_up_example_is_refused_before_anything_is_spent(own):
    query = adversarial("laplace:1", space="layer:1", adversary="pgd", box=(0.0, 1.0))
    assert "with privacy there must be no box at a layer" in ask(own, query)
    assert left(own) == 2


def test_values_at_other_radii_are_not_asked_for_with_noise():
    with pytest.raises(ValueError, match="with privacy radii must be 0 alone"):
        adversarial("laplace:1", radii=(0.0, 1.0))
    with pytest.raises(ValueError, match="with privacy radii must be 0 alone"):
        adversarial("laplace:1", radii=())


@pytest.mark.parametrize("changes", [{"space": "input", "adversary": "pgd"}, {"loss": "brier"}])
def test_the_guarantee_and_the_numbers_do_not_show_an_example_on_which_the_adversary_fails(own, tmp_path, changes):
    x, y = examples(num_examples=4)
    y[0] = 9
    np.savez(tmp_path / "data.npz", x=x, y=y)
    own["privacy-budget"] = "laplace:1e12"
    answer = ask(own, adversarial("laplace:1e9", **changes))
    kept = ask({"client-id": "a", "data": own["data"]}, adversarial("laplace:1e9", **changes))
    assert answer.guarantee == kept.guarantee == ("lower" if "space" in changes else "upper")
    assert answer.clean_risk >= 0.25 - 1e-6  # that example counts with 1
    assert min(answer.conjugates_upper) >= 0.25 - 1e-6


def test_a_recorded_answer_is_repeated_with_its_noise_and_costs_nothing(own, tmp_path):
    own["answer-record-file"] = str(tmp_path / "record.sqlite")
    first = ask(own, question("laplace:1.5", "brier"))
    assert [ask(own, question("laplace:1.5", "brier")) for _ in range(3)] == [first] * 3
    assert left(own) == Fraction("0.5")
    second = ask(own, question("laplace:0.5", "brier"))
    assert second != first  # another privacy is another question
    assert left(own) == 0
    assert ask(own, question("laplace:1.5", "brier")) == first  # also when nothing is left
    with sqlite3.connect(tmp_path / "record.sqlite") as connection:
        texts = [row[0] for row in connection.execute("SELECT answer FROM answers")]
    connection.close()
    # The record holds what was sent, and nothing without noise.
    assert sorted(texts) == sorted(json.dumps({"risk": each.risk, "num_examples": 40}) for each in (first, second))
    assert mean_loss(MODEL, *examples(), loss="brier")[0] not in (first.risk, second.risk)


def test_the_record_of_an_answer_without_noise_does_not_open_a_private_client(own, tmp_path):
    own["answer-record-file"] = str(tmp_path / "record.sqlite")
    before = {key: value for key, value in own.items() if not key.startswith("privacy")}
    assert isinstance(ask(before, question("")), LossAnswer)
    assert "answers with laplace noise only" in ask(own, question(""))


def test_a_lost_record_is_paid_for_again(own, tmp_path):
    own["answer-record-file"] = str(tmp_path / "record.sqlite")
    ask(own, question("laplace:1.5"))
    (tmp_path / "record.sqlite").unlink()
    assert "with 0.5 left" in ask(own, question("laplace:1.5"))


@pytest.mark.parametrize("num_values", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_answer_is_the_sum_with_whole_number_noise_of_the_laplace_law(tmp_path, num_values):
    x, y = examples(num_examples=4)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    mistakes = int(example_losses(MODEL, x, y, loss="zero_one").sum())
    if num_values == 1:
        query, arrays = question("laplace:0.5"), model_arrays(MODEL)
    else:
        candidates = tuple(Candidate(name, 0, "zero_one") for name in "ab")
        query, arrays = CandidatesQuery("mlp", (3,), 2, candidates, "laplace:0.5"), joined([model_arrays(MODEL)])
    own = {"client-id": "a", "data": str(tmp_path / "data.npz"), "query-budget": "none"}
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    content = wire.encode_query(query, arrays)
    messages = [Message(content, node, wire.message_type(query)) for _ in range(150)]
    kind = wire.answer_type(query)
    answers = [wire.decode_answer(reply.content, kind) for reply in grid.send_and_receive(messages, timeout=100)]
    risks = np.array([[answer.risk] if num_values == 1 else answer.risks for answer in answers])
    np.testing.assert_allclose(risks * 4, np.rint(risks * 4), atol=1e-9)
    noise = np.rint(risks * 4).astype(int) - mistakes
    if num_values == 2:  # the noise of the two is not the same: fails by chance with probability 1e-6
        assert abs(np.corrcoef(noise.T)[0, 1]) < 0.3
    # The noise is the operating system's: fails by chance with probability 1e-6.
    assert p_value(noise.ravel(), lambda k: laplace_masses(2 * num_values, k)) > 1e-6


@pytest.mark.slow
def test_other_losses_are_rounded_up_and_their_noise_is_gaussian(own):
    own["privacy-budget"] = "gaussian:1000"
    losses = example_losses(MODEL, *examples(), loss="brier")
    total = sum(math.ceil(loss * LOSS_STEPS) for loss in losses)
    risks = np.array([ask(own, question("gaussian:2", "brier")).risk for _ in range(40)])
    noise = risks * 40 * LOSS_STEPS - total
    np.testing.assert_allclose(noise, np.rint(noise), atol=1e-3)  # whole numbers of steps
    # s = steps / sqrt(2 rho) = steps / 2; a law so wide is a Gaussian to any test. Fails by chance once in a million.
    assert kstest(noise, "norm", args=(0.0, LOSS_STEPS / 2)).pvalue > 1e-6
    assert kstest(noise + LOSS_STEPS, "norm", args=(0.0, LOSS_STEPS / 2)).pvalue < 1e-6


@settings(max_examples=settings().max_examples // 2)  # an example is looked at on a copy of the model
@given(seed=st.integers(0, 10**6), index=st.integers(0, 2), loss=st.sampled_from(["zero_one", "brier", "margin"]))
def test_one_example_moves_a_sum_by_at_most_one_loss(seed, index, loss):
    """Whatever takes the place of the example, even what the model cannot be evaluated on."""
    x, y = examples(seed, 3)
    steps = 1 if loss == "zero_one" else LOSS_STEPS
    before = summed_steps(MODEL, x, y, losses={loss})[loss]
    for entry, label in ((0.0, 0), (1e6, 1), (np.float32(3e38), 0), (np.nan, 1), (0.0, 77)):
        others_x, others_y = x.copy(), y.copy()
        others_x[index], others_y[index] = entry, label
        after = summed_steps(MODEL, others_x, others_y, losses={loss})[loss]
        assert abs(after - before) <= steps
        if label == 77 or not np.isfinite(entry):  # fails, and counts as the worst
            assert after >= before


class Mixer(torch.nn.Module):
    """Lets an example decide what is said of the others in its batch, and fails if it meets a certain one."""

    def forward(self, x):
        if float(x.max()) > 50.0:
            raise RuntimeError("patient-4711 is here")
        return x[:, :2] * 0 + x[:, 2].max()


def test_no_model_makes_one_example_speak_for_others():
    x, y = examples(0, 20)
    before = summed_steps(Mixer(), x, y, losses={"brier"})["brier"]
    x[3] = 100.0
    assert abs(summed_steps(Mixer(), x, y, losses={"brier"})["brier"] - before) <= LOSS_STEPS


def test_an_example_on_which_the_evaluation_fails_does_not_show(own, tmp_path):
    """Weights that overflow on some examples only: without noise an error would tell that there are such."""
    arrays = {name: value * np.float32(1e30) for name, value in model_arrays(MODEL).items()}
    x, y = examples()
    x[::2] = 1e-35
    np.savez(tmp_path / "data.npz", x=x, y=y)
    plain = {key: value for key, value in own.items() if not key.startswith("privacy")}
    plain["query-budget"] = "none"
    assert "evaluating the model failed" in ask(plain, question(""), arrays=arrays)
    own["privacy-budget"] = "laplace:100000"
    arrays = {name: value.astype(np.float32) for name, value in model_arrays(MODEL).items()}
    y[5] = 9
    np.savez(tmp_path / "data.npz", x=x, y=y)
    assert "evaluating the model failed" in ask(plain, question(""), arrays=arrays)
    answer = ask(own, question("laplace:50000"), arrays=arrays)
    assert answer.risk == pytest.approx(summed_steps(MODEL, x, y, losses={"zero_one"})["zero_one"] / 40)


def simulated_answers(*, num_clients=3, run_seed=4, privacy="laplace:1", node_configs=None):
    query = LossQuery("brier", "mlp", (1, 8, 8), 10, privacy)
    config = SIMULATED | {"seed": run_seed}
    grid = InProcessGrid(app, num_clients=num_clients, run_config=config, node_configs=node_configs)
    messages = [
        Message(wire.encode_query(query, model_arrays(DIGITS)), node, "query.loss") for node in grid.get_node_ids()
    ]
    answers = [wire.decode_answer(reply.content, LossAnswer) for reply in grid.send_and_receive(messages, timeout=60)]
    return {answer.client_id: answer.risk for answer in answers}


def test_a_simulations_noise_is_the_same_again_whatever_the_order_and_differs_between_clients():
    risks = simulated_answers()
    assert simulated_answers() == risks
    assert simulated_answers(num_clients=2).items() <= risks.items()
    plain = simulated_answers(privacy="")
    noise = {name: risk - plain[name] for name, risk in risks.items()}
    assert len(set(noise.values())) == 3
    assert all(0.0 < abs(each) < 1.0 for each in noise.values())
    assert simulated_answers(run_seed=5) != risks
    assert simulated_answers(privacy="laplace:1.0") != risks  # another question


@pytest.mark.parametrize("what", ["client-id", "privacy-budget", "data"])
def test_the_noise_of_a_client_that_is_somebodys_cannot_be_repeated_by_a_server(tmp_path, what):
    """Who knows the seed of the noise can take it away, and the server sets the run's seed."""
    own = {"privacy-budget": {"privacy-budget": "laplace:9", "privacy-budget-file": str(tmp_path / "p")}}
    own |= {"client-id": {"client-id": "hospital"}}
    np.savez(tmp_path / "data.npz", x=np.zeros((30, 1, 8, 8)), y=np.arange(30) % 10)
    own |= {"data": {"data": str(tmp_path / "data.npz")}}
    first, second = (simulated_answers(num_clients=1, node_configs={0: own[what]}) for _ in range(2))
    assert first != second


def test_a_client_with_a_privacy_budget_does_not_train(tmp_path):
    own = {"privacy-budget": "laplace:9", "privacy-budget-file": str(tmp_path / "p")}
    grid = InProcessGrid(app, num_clients=1, run_config=SIMULATED | {"seed": 1}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    content = wire.encode_query(LossQuery("brier", "mlp", (1, 8, 8), 10), model_arrays(DIGITS))
    (reply,) = grid.send_and_receive([Message(content, node, "train")], timeout=30)
    assert "a client with a privacy-budget does not train" in reply.error.reason


@pytest.mark.parametrize("content", ["no database at all, but long enough to be sure of it" * 10, None])
def test_a_sum_that_cannot_be_read_is_an_error_and_not_a_free_pass(own, tmp_path, content):
    path = tmp_path / "client.sqlite"
    if content is None:
        ask(own, question("laplace:1"))
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE privacy SET spent = 'much'")
        connection.close()
    else:
        path.write_text(content)
    refused = ask(own, question("laplace:1"))
    assert ("must hold sums, got another thing" if content is None else "failed with DatabaseError") in refused
    assert str(path) not in refused


def test_without_a_budget_noise_is_added_for_whoever_asks_and_nothing_is_counted(own):
    plain = {key: value for key, value in own.items() if not key.startswith("privacy")}
    assert ask(plain, question("")).risk == mean_loss(MODEL, *examples(), loss="zero_one")[0]
    assert len({ask(plain, question("laplace:0.1")).risk for _ in range(5)}) > 1
    assert privacy_from_config(plain | {"client-id": "a"}) == PrivacyBudget("a")
