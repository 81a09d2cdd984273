"""What the owner of data need not say to be protected: a query budget, and no code but what is here already."""

from __future__ import annotations

import ast
import re
import sys

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from client.__main__ import main
from client.app import app
from client.budget import DEFAULT_LIMIT, QueryBudget, QueryBudgetError, Request, budget_from_config, request_of
from protocol import wire
from protocol.hashes import code_hash
from protocol.models import build_model, model_arrays
from protocol.questions import Candidate, CandidatesQuery, ComparisonQuery, HelloQuery, LossQuery
from protocol.weight_sets import joined
from riskband.flower.testing import InProcessGrid
from tests.house import ROOT, python_files, tree_of
from tests.transport import adversarial_query

ARRAYS = model_arrays(build_model("mlp", x_shape=(3,), num_classes=2, seed=0))
PLAIN = LossQuery("brier", "mlp", (3,), 2)
MODULE = """
from pathlib import Path
Path(__file__).with_suffix(".imported").touch()
from protocol.models import build_model
def net(*, x_shape, num_classes): return build_model("mlp", x_shape=x_shape, num_classes=num_classes, seed=0)
def risk(context): return 0.25, 8
def data(partition_id=0):
    import numpy as np
    return np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
from riskband.adversaries.attacks.pgd import Pgd
class Attack(Pgd): pass
"""


@pytest.fixture(name="own")
def _own(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((5, 3), np.float32), y=np.zeros(5, np.int64))
    return {"client-id": "a", "data": str(tmp_path / "own.npz")}


def ask(own, query=PLAIN, arrays=ARRAYS, **run):
    """The answer, or the words of the refusal."""
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"} | run, node_configs={0: own})
    (node,) = grid.get_node_ids()
    content = wire.encode_query(query, joined(arrays) if isinstance(arrays, list) else arrays)
    (reply,) = grid.send_and_receive([Message(content, node, wire.message_type(query))])
    if reply.has_error():
        return wire.decode_refusal(reply.error.reason).text
    return wire.decode_answer(reply.content, wire.answer_type(query))


def candidates(number):
    losses = [Candidate(f"{n}", 0, f"abstain:{n / 1000}") for n in range(1, number + 1)]
    return CandidatesQuery("mlp", (3,), 2, tuple(losses))


def test_a_client_that_nobody_gave_a_budget_does_not_answer_about_three_hundred_models(own):
    assert "256 values a month, got 300 with 256 left" in ask(own, candidates(300), [ARRAYS])
    assert ask(own, candidates(255), [ARRAYS]).budget_left == 1
    assert ask(own).risk >= 0
    assert "got 1 with 0 left; ask for fewer radii and multipliers, or ask its owner" in ask(own)
    assert ask(own | {"query-budget": "none"}, candidates(300), [ARRAYS]).budget_left is None


def test_the_largest_question_of_an_ordinary_study_fits_the_default_budget(own):
    radii, multipliers = np.arange(100.0), np.arange(24.0)  # as the defaults of the app's configuration
    query = adversarial_query("zero_one", "mlp", (3,), 2, order=2, space="input", radii=radii, multipliers=multipliers)
    assert request_of(query).size == 252 <= budget_from_config(own).limit


@pytest.mark.parametrize("own", [{"data": "/x"}, {"evaluator": "m:f"}, {"client-id": "a", "allow-run-dataset": True}])
def test_whoever_has_data_of_its_own_has_a_budget(own, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert DEFAULT_LIMIT == "256/month"
    budget = budget_from_config({"partition-id": 0, **own})
    assert (budget.limit, budget.path) == (256, tmp_path / "riskband" / "query-budget.sqlite")
    assert re.fullmatch(r"20\d\d-\d\d", budget.month)
    recorded = budget_from_config({"partition-id": 0, **own, "answer-record-file": "/state/a.sqlite"})
    assert str(recorded.path) == "/state/a.sqlite"
    named = budget_from_config({"partition-id": 0, **own, "query-budget-file": "/b", "query-budget": 7})
    assert (named.limit, str(named.path), named.month) == (7, "/b", "")
    assert budget_from_config({"partition-id": 0, "client-id": "a"}).limit is None  # of a simulated population


def test_a_new_month_has_its_own_count(tmp_path):
    november, december, ever = (QueryBudget("a", 3, tmp_path / "b", month) for month in ("2026-11", "2026-12", ""))
    assert november.spend(Request(losses=3), question="q") == 0
    with pytest.raises(QueryBudgetError, match="budget of 3 values a month, got 1 with 0 left"):
        november.spend(Request(losses=1))
    assert december.spend(Request(losses=3), question="q") == 3  # it has been paid for
    assert december.spend(Request(losses=2)) == 1
    assert ever.left() == 3
    assert budget_from_config({"client-id": "a", "query-budget": "9/month", "query-budget-file": "/b"}).limit == 9


def test_a_client_without_a_place_to_count_refuses(own, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/proc/nowhere")
    assert 'name a query-budget-file or answer-record-file on a disk that lasts, or say query-budget="none"' in ask(own)
    assert ask(own | {"query-budget": "none"}).num_examples == 5


@pytest.fixture(name="module")
def _module(tmp_path, monkeypatch):
    (tmp_path / "hospital").mkdir()
    (tmp_path / "hospital" / "nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "hospital" / "nets.imported"
    for name in ("hospital", "hospital.nets"):
        sys.modules.pop(name, None)


NAMED = "hospital.nets:net"
OF_A_MODEL = [
    (LossQuery("brier", NAMED, (3,), 2), ARRAYS),
    (adversarial_query("brier", NAMED, (3,), 2, order=1, radii=(0.0, 0.1), multipliers=(1.0,)), ARRAYS),
    (CandidatesQuery(NAMED, (3,), 2, (Candidate("one", 0, "brier"),)), [ARRAYS]),
    (ComparisonQuery("brier", NAMED, (3,), 2), [ARRAYS, ARRAYS]),
]
OF_AN_ATTACK = {
    name: adversarial_query(
        "brier", "mlp", (3,), 2, order=1, radii=(0.0, 0.1), multipliers=(1.0,), space="input", adversary=name
    )
    for name in ("hospital.nets:Attack", "sandwich:hospital.nets:Attack")
}
PLACES = {
    **{f"model of a {type(query).__name__}": ({}, query, arrays, {}) for query, arrays in OF_A_MODEL},
    **{f"adversary {name}": ({}, query, ARRAYS, {}) for name, query in OF_AN_ATTACK.items()},
    "dataset of the run": ({"allow-run-dataset": True}, PLAIN, ARRAYS, {"dataset": "hospital.nets:data"}),
    "evaluator of the run": (
        {"allow-run-dataset": True},
        LossQuery("own", "none", (1,), 2),
        ARRAYS,
        {"evaluator": "hospital.nets:risk"},
    ),
}


def ask_at(place, own, allowed):
    """The reply to what names a module there, of a client whose owner allows these."""
    more, query, arrays, run = PLACES[place]
    own = {"client-id": "a", **more} if more else own
    return ask(own | {"allow-modules": allowed}, query, arrays, **run)


@pytest.mark.parametrize("allowed", ["", "hospitals,hospital.net, ,", "hospital.nets.deeper"])
def test_a_module_that_a_message_names_is_not_imported_unasked(own, module, allowed):
    for place in PLACES:
        refusal = ask_at(place, own, allowed)
        assert "must be one that allow-modules of the node config allows" in refusal, place
        assert "got 'hospital.nets'; the client's owner may add it there" in refusal
        assert not module.exists()


@pytest.mark.parametrize("allowed", ["hospital", "other, hospital.nets"])
def test_the_owner_allows_a_module_or_its_package(own, module, allowed):
    sizes = {"dataset of the run": 4, "evaluator of the run": 8}
    for place in PLACES:
        assert ask_at(place, own, allowed).num_examples == sizes.get(place, 5)
    assert module.exists()


def test_the_owners_own_choice_needs_no_leave_and_a_simulated_client_none_at_all(module):
    assert ask({"client-id": "a", "data": "hospital.nets:data"}).num_examples == 4
    simulated = {"client-id": "a", "partition-id": 0}
    assert "hospital" not in ask(simulated, LossQuery("brier", "hospital.no:net", (1, 8, 8), 10), dataset="digits")


IMPORTING = {
    # Who calls these in a client is in the next test.
    "client/data.py: import_module(module)",
    "protocol/models.py: import_module(module)",
    "riskband/adversaries/registry.py: import_module(module)",  # app._numbers asks
    # Names that stand in our code.
    "riskband/adversaries/__init__.py: import_module(f'{__name__}.{_MODULES[name]}')",
    "riskband/answers/tables.py: import_module(engine)",
    "riskband/wording/shown.py: import_module(_FIGURES)",
    "riskband/__init__.py: import_module(f'riskband.{_MODULES[name]}')",
    "riskband/cli/__init__.py: import_module(f'riskband.cli.{name}')",
}


def test_code_is_imported_by_a_name_nowhere_else():
    """Who adds such a place asks `client.data.require_allowed` first, and adds it to `PLACES`."""
    dangerous = re.compile(r"import_module|__import__|exec|eval|run_path|run_module|exec_module|resolve_name|locate")
    found = set()
    some = re.compile(rf"(?:{dangerous.pattern})\(")
    for path in (
        path for path in python_files("client", "protocol", "worlds", "riskband") if some.search(path.read_text())
    ):
        for call in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            is_name = call.args and not isinstance(call.args[0], ast.Constant) and dangerous.fullmatch(name)
            found |= {f"{path.relative_to(ROOT)}: {name}({ast.unparse(call.args[0])})"} if is_name else set()
    assert found == IMPORTING


def test_who_imports_by_a_name_of_a_message_is_known():
    """In the client: what builds a model, reads a data function or calls an evaluator."""
    found = set()
    for path in python_files("client"):
        for function in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef)):
            calls = {getattr(node.func, "id", "") for node in ast.walk(function) if isinstance(node, ast.Call)}
            found |= {
                f"{path.stem}.{function.name}: {name}" for name in calls & {"build_model", "imported", "load_data"}
            }
    assert found == {
        "numbers.queried_model: build_model",  # app._numbers asks
        "simulated.own_weights: build_model",  # app._own_weights asks
        "simulated.trained: build_model",  # app.train asks
        "data.load_data: imported",  # data.data_place asks
        "evaluator.evaluator_of: imported",  # evaluator.evaluator_place asks
        "app._fitting_examples: load_data",  # of data.data_place
        "__main__.main: load_data",  # the owner's own
        "__main__._question: build_model",  # the owner's own
    }


def test_a_client_with_an_evaluator_trains_no_model_of_a_module_that_it_does_not_allow(module):
    own = {"partition-id": 0, "evaluator": "hospital.nets:risk", "group": "north"}
    population = {"seed": 0, "examples-per-client": 30, "affine-sigma": 0.2, "dirichlet-concentration": 1.0}
    run = {"dataset": "digits", "model": "hospital.nets:net", **population}
    grid = InProcessGrid(app, num_clients=1, run_config=run, node_configs={0: own})
    content = RecordDict({"config": ConfigRecord({"server-round": 1}), **wire.encode_query(PLAIN, ARRAYS)})
    (reply,) = grid.send_and_receive([Message(content, next(iter(grid.get_node_ids())), "train")])
    assert "allow-modules" in reply.error.reason
    digits = model_arrays(build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0))
    query = ComparisonQuery("brier", "mlp", (1, 8, 8), 10, is_old_local=True)
    assert "allow-modules" in ask(own, query, [digits], **run)
    assert not module.exists()


def test_an_owner_pins_the_code(own, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--print-app-hash"])
    assert ended.value.code == 0
    pinned = capsys.readouterr().out.strip()
    assert pinned == code_hash()
    assert ask(own | {"app-hash": pinned}).num_examples == 5
    for other in ("0" * 64, pinned[:-1], "", 7):
        for query in (PLAIN, HelloQuery("")):
            refusal = ask(own | {"app-hash": other}, query)
            assert f"must be the one of app-hash of the node config, got {pinned}; run the app that" in refusal
    assert "must be app-hash, got another" in ask(own | {"app-hsh": pinned})
