"""`python -m client --dry-run` shows what the ClientApp would reply, and leaves no trace."""

from __future__ import annotations

import json
import sqlite3
import sys

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message

from client.__main__ import main
from client.app import app
from protocol import wire
from protocol.models import build_model, model_arrays
from protocol.questions import LossAnswer, LossQuery
from riskband.flower.testing import InProcessGrid
from tests.transport import curves_of

RNG = np.random.default_rng(0)


@pytest.fixture(name="folder")
def _folder(tmp_path):
    np.savez(tmp_path / "data.npz", x=RNG.integers(0, 256, size=(30, 6, 6, 3), dtype=np.uint8), y=np.arange(30) % 4)
    torch.save(build_model("cnn", x_shape=(3, 6, 6), num_classes=4, seed=3).state_dict(), tmp_path / "final_model.pt")
    return tmp_path


def config(folder, **more):
    pairs = {"client-id": "a", "data": str(folder / "data.npz")} | more
    return " ".join(f"{key}={json.dumps(value)}" for key, value in pairs.items())


def dry_run(capsys, node_config, *arguments):
    status = main(["--dry-run", "--node-config", node_config, "--model", "cnn", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def shown(out):
    return json.loads(out[out.index("{") : out.rindex("}") + 1])


def budgeted(folder, limit, **more):
    return config(folder, **{"query-budget": limit, "query-budget-file": str(folder / "b.sqlite")}, **more)


def test_it_shows_what_the_client_would_send(folder, capsys):
    status, out, _ = dry_run(capsys, config(folder), "--checkpoint", str(folder / "final_model.pt"), "--loss", "brier")
    assert status == 0
    grid = InProcessGrid(
        app,
        num_clients=1,
        run_config={"dataset": "none"},
        node_configs={0: {"client-id": "a", "data": str(folder / "data.npz")}},
    )
    arrays = model_arrays(build_model("cnn", x_shape=(3, 6, 6), num_classes=4, seed=3))
    (node,) = grid.get_node_ids()
    content = wire.encode_query(LossQuery("brier", "cnn", (3, 6, 6), 4), arrays)
    (reply,) = grid.send_and_receive([Message(content, node, "query.loss")])
    assert LossAnswer(**shown(out)) == wire.decode_answer(reply.content, LossAnswer)
    assert "it would spend 1 value of the query budget: 256 are left now, 255 afterwards; it is of 256 values a" in out
    assert "no noise; there is no privacy budget" in out


def test_nothing_is_spent_and_no_file_appears(folder, capsys):
    before = sorted(folder.iterdir())
    node_config = budgeted(folder, 9, **{"answer-record-file": str(folder / "r.sqlite")})
    arguments = ("--query", "adversarial_loss", "--radii", "0,1,2", "--multipliers", "0.5")
    for _ in range(2):
        status, out, _ = dry_run(capsys, node_config, *arguments)
        assert status == 0
        assert "spend 6 values of the query budget: 9 are left now, 3 afterwards" in out
        answer = shown(out)
        assert answer["budget_left"] == 3
        assert answer["clean_risk"] <= answer["values_lower"][1] <= answer["values_lower"][2] <= 1
    assert sorted(folder.iterdir()) == before


def test_it_knows_what_is_already_answered(folder, capsys):
    own = {
        "client-id": "a",
        "data": str(folder / "data.npz"),
        "query-budget": 1,
        "query-budget-file": str(folder / "b.sqlite"),
        "answer-record-file": str(folder / "b.sqlite"),
    }
    arrays = model_arrays(build_model("cnn", x_shape=(3, 6, 6), num_classes=4, seed=3))
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    content = wire.encode_query(LossQuery("zero_one", "cnn", (3, 6, 6), 4), arrays)
    grid.send_and_receive([Message(content, node, "query.loss")])
    node_config = " ".join(f"{key}={json.dumps(value)}" for key, value in own.items())
    status, out, _ = dry_run(capsys, node_config, "--checkpoint", str(folder / "final_model.pt"))
    assert status == 0
    assert "would spend nothing: the answer record holds this answer" in out
    status, out, _ = dry_run(capsys, node_config)  # other weights
    assert status == 1
    assert "takes 1 values of the query budget, 0 are left" in out
    with sqlite3.connect(folder / "b.sqlite") as connection:
        assert connection.execute("SELECT SUM(number) FROM answered").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("content", ["no database at all, but long enough to be sure of it" * 10, None])
def test_a_record_that_cannot_be_read_is_the_owners_mistake(folder, capsys, content):
    path = folder / "absent" / "r.sqlite"
    if content is not None:
        path = folder / "r.sqlite"
        path.write_text(content)
    status, _, err = dry_run(capsys, f'{config(folder)} answer-record-file="{path}"')
    assert status == 2
    assert err.startswith("error: ")
    assert ("DatabaseError" if content else "the folder of answer-record-file must exist") in err


def test_an_attack_is_asked_with_all_that_it_needs(folder, capsys):
    asked = ("--query", "adversarial_loss", "--order", "1", "--radii", "0,0.05", "--loss", "margin")
    attack = ("--space", "input", "--adversary", "pgd", "--box", "0,1", "--distances", "0.05,0.2", "--seed", "3")
    status, out, _ = dry_run(capsys, config(folder), *asked, *attack, "--checkpoint", str(folder / "final_model.pt"))
    assert status == 0
    with np.load(folder / "data.npz") as archive:
        x, y = np.moveaxis(archive["x"], -1, 1) / np.float32(255), archive["y"]
    model = build_model("cnn", x_shape=(3, 6, 6), num_classes=4, seed=3)
    settings = {"loss": "margin", "order": 1, "space": "input", "adversary": "pgd", "box": (0, 1), "seed": 3}
    curves = curves_of(model, x, y, distances=(0.05, 0.2), **settings)
    # Not the same bytes: the last digits of an attack may differ (CONTRIBUTING.md, on rounding).
    assert shown(out)["values_lower"] == pytest.approx(curves.values([0.0, 0.05])[0], abs=1e-6)
    assert shown(out)["guarantee"] == "lower"


def test_a_head_and_a_layer_are_named(folder, capsys):
    asked = ("--query", "adversarial_loss", "--order", "1", "--radii", "0,0.01,0.1")
    exact, at_layer = (
        shown(dry_run(capsys, config(folder), *asked, *place)[1])
        for place in (("--head", "9"), ("--space", "layer:8", "--adversary", "sandwich:min-norm"))
    )
    assert (exact["guarantee"], at_layer["guarantee"]) == ("exact", "upper")
    for end in ("values_lower", "values_upper"):
        np.testing.assert_allclose(at_layer[end], exact[end], atol=1e-3)
    assert "head must name an nn.Linear" in dry_run(capsys, config(folder), *asked, "--head", "3")[1]


def test_candidates_are_judged_by_every_loss(folder, capsys):
    torch.save(build_model("cnn", x_shape=(3, 6, 6), num_classes=4, seed=4).state_dict(), folder / "other.pt")
    files = [str(folder / name) for name in ("final_model.pt", "other.pt")]
    arguments = ("--query", "candidates", "--loss", "zero_one,abstain:0.9")
    status, out, _ = dry_run(
        capsys, budgeted(folder, 9), *arguments, *(part for file in files for part in ("--checkpoint", file))
    )
    assert status == 0
    assert "spend 4 values of the query budget: 9 are left now, 5 afterwards" in out
    each = [
        shown(dry_run(capsys, config(folder), "--checkpoint", file, "--loss", loss)[1])["risk"]
        for file in files
        for loss in ("zero_one", "abstain:0.9")
    ]
    assert shown(out)["risks"] == each
    assert len(set(each)) > 1


def test_a_refusal_is_shown_as_the_server_would_see_it(folder, capsys):
    status, out, _ = dry_run(capsys, config(folder), "--loss", "hinge")
    assert status == 1
    assert "loss must be one of" in out


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        (np.array(["a", "b"] * 15), "a client's labels must be an array of numbers"),
        (np.arange(30) % 4 * 1.0, "labels must be whole numbers, got dtype float64"),
    ],
)
def test_labels_that_are_no_whole_numbers_are_told_the_rule(folder, capsys, labels, rule):
    np.savez(folder / "data.npz", x=RNG.random((30, 3, 6, 6)), y=labels)
    status, out, errors = dry_run(capsys, config(folder))
    assert (status, out) == (2, "")
    assert errors.startswith(f"error: {rule}")


@pytest.mark.parametrize("kind", ["query", "privacy"])
def test_a_budget_in_a_folder_that_is_not_there_is_told_what_to_make(folder, capsys, kind):
    limit = {"query": 5, "privacy": "laplace:2"}[kind]
    own = config(folder, **{f"{kind}-budget": limit, f"{kind}-budget-file": str(folder / "none" / "b.sqlite")})
    status, _, errors = dry_run(capsys, own, "--privacy", "laplace:1")
    assert status == 2
    assert errors == f"error: the folder of {kind}-budget-file must exist, and this client's does not; make it\n"


def test_one_value_is_called_one(folder, capsys):
    unlimited = config(folder, **{"query-budget": "none"})
    assert "it would give away 1 value; there is no" in dry_run(capsys, unlimited)[1]
    assert "it would spend 1 value of the query budget" in dry_run(capsys, budgeted(folder, 5))[1]
    assert "it would give away 5 values" in dry_run(capsys, unlimited, "--query", "adversarial_loss")[1]


def test_what_is_no_question_is_not_asked(folder, capsys):
    status, out, errors = dry_run(capsys, config(folder), "--query", "adversarial_loss", "--order", "3")
    assert (status, out) == (2, "")
    assert "order must be one of 1, 2, got 3" in errors


@pytest.mark.guard
@pytest.mark.parametrize(
    ("node_config", "arguments", "rule"),
    [
        ('client-id="a"', (), "must have the key 'data'"),
        ('data="/nowhere.npz"', (), "must have the key 'partition-id'"),
        ('client-id="a" data="/nowhere.npz"', (), "must exist and be .npz or .parquet"),
        ('client-id="a" data=', (), "must have the key 'data'"),
        ('client-id="a" data="/a.npz" privacy_budget="laplace:1"', (), "must be privacy-budget or privacy-budget-file"),
        ('client-id=a data="b"', (), "invalid format"),
        ("OWN", ("--model", "resnet"), "model must be one of"),
        ("OWN", ("--checkpoint", "/nowhere.pt"), "the checkpoint must be a readable state dict"),
        ("OWN", ("--x-shape", "9"), "needs inputs of shape"),
        ("OWN", ("--num-classes", "2"), "labels must lie in 0 .. 1"),
        ("OWN", ("--query", "adversarial_loss", "--box", "0,1"), "box and distances must not be given"),
        ("OWN", ("--query", "adversarial_loss", "--space", "input", "--box", "1"), "box must be two numbers"),
        ("OWN", ("--query", "adversarial_loss", "--seed", "-1"), "seed must be a whole number"),
        ("OWN", ("--checkpoint", "a.pt", "--checkpoint", "b.pt"), "the checkpoint must be a readable state dict"),
    ],
)
def test_a_configuration_that_cannot_answer_is_explained(folder, capsys, node_config, arguments, rule):
    status, _, err = dry_run(capsys, config(folder) if node_config == "OWN" else node_config, *arguments)
    assert status == 2
    assert rule in err


def test_a_flower_quickstarts_checkpoint_and_class(folder, capsys, monkeypatch):
    (folder / "quick_task.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(108, 4)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x.flatten(1))\n"
    )
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("quick_task", None)
    from quick_task import Net

    torch.manual_seed(0)
    net = Net()
    # As the quickstart's ServerApp writes it: through Flower's records.
    torch.save(ArrayRecord(net.state_dict()).to_torch_state_dict(), folder / "flower.pt")
    arguments = ("--checkpoint", str(folder / "flower.pt"), "--model", "quick_task:Net")
    status, out, _ = dry_run(capsys, config(folder), *arguments)
    assert status == 1
    assert "a module that a server names must be one that allow-modules of the node config allows" in out
    status, out, _ = dry_run(capsys, config(folder, **{"allow-modules": "quick_task"}), *arguments)
    assert status == 0
    with np.load(folder / "data.npz") as archive:
        x, y = np.moveaxis(archive["x"], -1, 1) / np.float32(255), archive["y"]
    with torch.no_grad():
        wrong = (net(torch.from_numpy(x)).argmax(1).numpy() != y).mean()
    assert shown(out)["risk"] == pytest.approx(wrong, abs=1e-12)


def test_the_privacy_budget_is_shown_and_not_spent(folder, capsys):
    own = {"privacy-budget": "gaussian:0.5", "privacy-budget-file": str(folder / "p.sqlite")}
    node_config = config(folder, **own)
    for arguments in ((), ("--query", "candidates"), ("--query", "adversarial_loss", "--radii", "0")):
        status, out, _ = dry_run(capsys, node_config, *arguments, "--privacy", "gaussian:0.2")
        assert status == 0
        assert "it would spend rho = 0.2 of the privacy budget: 0.5 are left now, 0.3 afterwards" in out
        assert "rho = 0.5, means epsilon = 5.23 at delta = 1e-06" in out
        assert not (folder / "p.sqlite").exists()
    for privacy, rule in (("gaussian:1", "got rho = 1 with 0.5 left"), ("", "answers with gaussian noise only")):
        status, out, _ = dry_run(capsys, node_config, "--privacy", privacy)
        assert status == 1
        assert "it would REFUSE" in out
        assert rule in out
    status, out, _ = dry_run(capsys, config(folder), "--privacy", "laplace:1")
    assert status == 0
    assert "at epsilon = 1 each; there is no privacy budget" in out
    assert dry_run(capsys, config(folder), "--privacy", "laplace:none")[0] == 2


def test_a_recorded_answer_is_shown_with_the_noise_that_it_had(folder, capsys):
    own = {"client-id": "a", "data": str(folder / "data.npz"), "answer-record-file": str(folder / "r.sqlite")}
    own |= {"privacy-budget": "laplace:1", "privacy-budget-file": str(folder / "p.sqlite")}
    arrays = model_arrays(build_model("cnn", x_shape=(3, 6, 6), num_classes=4, seed=3))
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    content = wire.encode_query(LossQuery("brier", "cnn", (3, 6, 6), 4, "laplace:1"), arrays)
    (reply,) = grid.send_and_receive([Message(content, node, "query.loss")])
    checkpoint = ("--checkpoint", str(folder / "final_model.pt"), "--loss", "brier", "--privacy", "laplace:1")
    status, out, _ = dry_run(capsys, config(folder, **own), *checkpoint)
    assert status == 0
    assert LossAnswer(**shown(out)) == wire.decode_answer(reply.content, LossAnswer)
    assert "nor would it spend any of the privacy budget" in out


OWN = """
from pathlib import Path

def risk(context):
    with Path(context.node_config["calls"]).open("a") as file:
        file.write("called\\n")
    if "words" in context.node_config:
        raise ValueError(context.node_config["words"])
    return 0.25, 8
"""


def test_an_evaluator_says_what_it_would_say_and_each_call_is_paid_for_first(tmp_path, capsys, monkeypatch, caplog):
    (tmp_path / "own_evaluator.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"client-id": "a", "evaluator": "own_evaluator:risk", "calls": str(tmp_path / "calls.txt")}
    limits = {"query-budget": 1, "query-budget-file": str(tmp_path / "b.sqlite")}
    own |= limits | {"answer-record-file": str(tmp_path / "b.sqlite")}

    def asked(**more):
        node_config = " ".join(f"{key}={json.dumps(value)}" for key, value in (own | more).items())
        (tmp_path / "calls.txt").write_text("")
        status = main(["--dry-run", "--node-config", node_config])
        return status, capsys.readouterr().out, (tmp_path / "calls.txt").read_text().count("called")

    status, out, num_calls = asked()
    assert (status, num_calls) == (0, 1)
    said = shown(out)
    assert (said["risk"], said["num_examples"], said["loss"]) == (0.25, 8, "zero_one")
    assert "would spend 1 value of the query budget: 1 are left now" in out

    grid = InProcessGrid(app, num_clients=1, run_config={"evaluator": "own"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    content = wire.encode_query(LossQuery("zero_one", "none", (), 0), {})
    replies = [reply for _ in range(21) for reply in grid.send_and_receive([Message(content, node, "query.loss")])]
    assert LossAnswer(**said) == wire.decode_answer(replies[0].content, LossAnswer)
    refused = [reply.error.reason for reply in replies if reply.has_error()]
    assert len(refused) == 20
    assert "a query must fit the client's query budget of 1 values" in refused[0]
    assert (tmp_path / "calls.txt").read_text().count("called") == 2  # with that of the dry run
    status, out, num_calls = asked()
    assert (status, num_calls) == (1, 0)
    assert "it would REFUSE: the question takes 1 values of the query budget, 0 are left" in out

    own = {key: value for key, value in own.items() if not key.startswith("query")} | {"query-budget": "none"}
    status, out, num_calls = asked(words="the prompt of 4 May")
    assert (status, num_calls) == (1, 1)
    assert "calling the client's evaluator failed with ValueError; the details are in" in out
    assert "4 May" not in out
    assert "the prompt of 4 May" in caplog.text  # on the owner's own machine
