"""Everything that reads what others wrote, under hostile input: a value, or the ValueError it declares, in words.

Each reader gets valid input that was changed, 300,000 times in the slow suite. It may raise nothing else, nor take
long or much memory, and what it accepts it writes and reads again as it is. A function that calls a parser is reached
by a reader here, or stands in `OWN`: a new one cannot be forgotten, nor a new message.
"""

from __future__ import annotations

import ast
import copy
import gzip
import io
import json
import random
import re
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from PIL import Image

import riskband as rb
from client.answer_record import _numbers, checked_numbers, record_from_config
from client.app import _drawn
from client.budget import budget_from_config
from client.data import _image, data_place, read_files
from client.evaluator import evaluator_place
from client.identity import client_id
from client.privacy import privacy_from_config
from protocol import questions, wire
from protocol.models import load_checkpoint
from riskband.answers.doors import Wanted
from riskband.answers.evaluations import Evaluation, inspect_log, lm_eval_log
from riskband.answers.files import UNSAID, read_risks
from riskband.cli import main, verify
from riskband.cli.run_folder import _entries
from server.config import load_config
from server.run import ledger
from server.run.folder import ResultFolder, read_events
from server.run.lock import LOCK_FILE, _holder
from simulations.options import default_run_config, scenario_config
from tests import house
from tests.ledgers import CONFIG
from tests.protocol.test_wire import ADVERSARIAL_QUERY, QUERY, SECURE
from worlds.datasets import load_dataset
from worlds.loaders import leaf
from worlds.movielens import load_ratings

PARSERS = re.compile(
    r"(json|tomllib|pickle|yaml|marshal|ast)\.(loads?|literal_eval)|np\.(load|loadtxt|genfromtxt|frombuffer)|torch\.load"
    r"|csv\.\w*[rR]eader|.*\.(read_table|read_parquet|read_excel|read_csv|validate_json|decompress)|json_object|Image\.open|b64decode"
)
OWN = {  # what a process of ours wrote, or a file of the installation
    "riskband.__init__._version": "pyproject.toml of a checkout",
    "riskband.certificate._content": "a certificate's own JSON",
    "deploy.requirements.deployed_requirements": "pyproject.toml of the checkout",
    "deploy.flower.ask": "what the installed `flwr` prints",
    "simulations.launcher.run_status": "what the installed `flwr` prints",
    "simulations.options.default_run_config": "pyproject.toml of the app",
    "simulations.ray_cluster.reached_cluster": "what a process that was just started prints",
    "server.preparation.handed_over": "what a process that was just started hands over",
    "worlds.datasets._digits": "a file of scikit-learn",
    "server.run.events.append_event": "the line that it has just written",
    "server.run.folder.read_events": "lines of the log that a run wrote, by `json_object`, which is reached",
    "client.kept_model.find": "whatever is raised, the weights are not there; and their hash was compared",
    "client.answer_record.find": "bytes of any length are numbers, and a digest was compared",
    "protocol.secure.cryptography._stream": "bytes of a cipher made here",
    "strategies.secure.secure_sum._unmasked": "vectors whose length was checked",
    "riskband.answers.ledgers.header_of": "the first line of a ledger that is read as a whole beside it",
    "riskband.cli.monitor._of_run": "the report of a run; whatever is wrong with it is said",
    "worlds.federations._cards": "a file of the installation",
    "worlds.federations._table": "a package whose hash was compared",
}
NUMBERS = [0, 1, -1, 7, 2**31, 2**62, 0.0, 0.5, -0.0, 1.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf")]
TEXTS = ["", "a", "a\nb", "\x00", "x" * 3000, "🙂" * 50, "../..", "NaN", "1e999", "os:abort", "\ud800", "laplace:1"]
PLAIN = [None, True, *NUMBERS, 10**400, *TEXTS, [], [[]], {}, {"a": 1}, [0.5] * 400, ["a", 1]]
IN_RECORD = [True, *NUMBERS, *TEXTS, b"", b"\x80\x04K\x07.", [], [1, 2], [0.5], ["a", "a"], [b"x"], [1] * 400, [True]]
TOKENS = [b'"', b"{", b"]", b",", b"\n", b"\r", b":", b"null", b"NaN", b"1e400", b"-", b"\xff", b"\x00", b"\\ud800"]
TOKENS += [b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\xef\xbb\xbf", b"0.5", b"\x93NUMPY", b"PK\x03\x04", b";"]
NUMBER = re.compile(rb"\d+")
SHORTEST = 10  # characters of an error in words
LONGEST = 5.0  # seconds of a processor for a message
MOST_MEMORY = 1_000_000  # kB


@dataclass(frozen=True)
class Reader:
    """How one kind of message is made, read and written again; `num` changed ones, of a million."""

    valid: tuple[Any, ...]
    read: Callable[[Any], Any]
    num: int
    write: Callable[[Any], Any] | None = None
    change: Callable[[random.Random, Any], Any] | None = None
    reaches: str = ""  # functions that call parsers


def changed_bytes(rng: random.Random, valid: bytes) -> bytes:
    found = bytearray(valid)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(found) + 1)
        end = min(at + rng.choice((1, 1, 4, 30)), len(found))
        what = rng.randrange(6)
        if what == 0:
            del found[at:end]
        elif what == 1:
            found[at:end] = rng.randbytes(end - at)
        elif what == 2:
            found[at:at] = rng.choice(TOKENS)
        elif what == 3:
            found[at:at] = found[at:end]
        elif what == 4 and (number := NUMBER.search(found, at)):
            found[slice(*number.span())] = rng.choice((b"-1", b"0", b"1e999", b"99999999999", b"NaN", b'"a"'))
        elif what == 5 and rng.random() < 0.3:
            del found[at:]
    return bytes(found)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(each, dict | list):
            yield from places(each)


def changed_plain(rng: random.Random, valid: Any, hostile: list[Any] = PLAIN) -> Any:
    found = copy.deepcopy(valid)
    for _ in range(rng.choice((1, 1, 1, 3))):
        if not (known := list(places(found))):
            return found
        inside, key = rng.choice(known)
        what, value = rng.randrange(5), rng.choice(hostile)
        if what == 0:
            del inside[key]
            continue
        if what == 1 and isinstance(inside, dict):
            key = rng.choice((*TEXTS, *inside))
        elif what == 2:
            value = rng.choice(list(inside.values()) if isinstance(inside, dict) else inside)
        inside[key] = copy.deepcopy(value)
    return found


def changed_json(rng: random.Random, valid: Any) -> bytes:
    text = json.dumps(changed_plain(rng, valid)).encode()
    return changed_bytes(rng, text) if rng.random() < 0.3 else text


def changed_lines(rng: random.Random, valid: list[Any]) -> bytes:
    at = rng.randrange(len(valid))
    return b"".join(
        (changed_json(rng, each) if k == at else json.dumps(each).encode()) + b"\n" for k, each in enumerate(valid)
    )


def changed_record(rng: random.Random, valid: RecordDict) -> RecordDict:
    ((name, record),) = valid.items()
    return RecordDict({name: ConfigRecord(flower_values(changed_plain(rng, dict(record), IN_RECORD)))})


def flower_values(entries: dict[str, Any]) -> dict[str, Any]:
    """What Flower takes: its lists are of one type, and hold no lists."""
    kinds = {key: set(map(type, value)) if isinstance(value, list) else set() for key, value in entries.items()}
    return {key: value for key, value in entries.items() if len(kinds[key]) < 2 and list not in kinds[key]}


def changed_array(rng: random.Random, valid: Array) -> RecordDict:
    fields = {"dtype": valid.dtype, "shape": valid.shape, "stype": valid.stype}
    fields |= rng.choice([{}, {}, {"dtype": "object"}, {"stype": "pickle"}, {"shape": (2**40,)}])
    return RecordDict({"arrays": ArrayRecord({"w": Array(**fields, data=changed_bytes(rng, valid.data))})})


def changed_config(rng: random.Random, valid: Any) -> Any:
    """Flower's configurations have no lists, and are UTF-8."""
    found = changed_plain(rng, valid, [each for each in IN_RECORD if not isinstance(each, list)])
    return {key: value for key, value in found.items() if "\ud800" not in (key, value)}


def saved(write: Callable[..., Any], *args: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    write(file, *args, **named)
    return file.getvalue()


LOSS_ANSWER = questions.LossAnswer("a", 0.25, 4, "zero_one", "c", "m", group="g", sampling_weight=2.0)
OF_MODEL = {"client_id": "a", "loss": "zero_one", "code_hash": "c", "model_hash": "m", "budget_left": 3, "group": "g"}
CURVES = {"values_lower": (0.1,), "values_upper": (0.2,), "conjugates_lower": (), "conjugates_upper": ()}
ADVERSARIAL_ANSWER = questions.AdversarialAnswer(
    **OF_MODEL, **CURVES, num_examples=4, clean_risk=0.1, adversarial_unit=0.5, guarantee="exact"
)
MESSAGES = {
    "loss": (QUERY, LOSS_ANSWER),
    "adversarial_loss": (ADVERSARIAL_QUERY, ADVERSARIAL_ANSWER),
    "candidates": (
        questions.CandidatesQuery("mlp", (3,), 2, (questions.Candidate("a", 0, "brier"),)),
        questions.CandidatesAnswer(**OF_MODEL, risks=(0.5,), num_examples=4),
    ),
    "comparison": (
        questions.ComparisonQuery("zero_one", "mlp", (3,), 2),
        questions.ComparisonAnswer(**OF_MODEL, old_risk=0.5, new_risk=0.25, num_worse=0, num_examples=4),
    ),
    "hello": (questions.HelloQuery("q"), questions.HelloAnswer("a", "c", 3)),
    **SECURE,
}
REFUSAL = {"refusal": "ValueError: no", "client-id": "a", "code-hash": "c"}
NODE_CONFIG = {
    "client-id": "a",
    "partition-id": 0,
    "num-partitions": 4,
    "data": "/data/x.npz",
    "query-budget": 5,
    "query-budget-file": "/state/q.sqlite",
    "privacy-budget": "laplace:2",
    "privacy-budget-file": "/state/p.sqlite",
    "answer-record-file": "/state/a.sqlite",
    "evaluator": "a:b",
    "group": "g",
    "stratum": "s",
    "cluster": "k",
    "sampling-weight": 2.0,
    "allow-run-dataset": True,
}
NODE_READERS = (
    *(client_id, budget_from_config, privacy_from_config, record_from_config, _drawn),
    *(partial(evaluator_place, run_config={}), partial(data_place, run_config={"dataset": "none"})),
)
RECORDED = {"risk": 0.5, "num_examples": 4}
NVFLARE = {"site-1": {"SRV": {"loss": 0.25}}, "site-2": {"SRV": {"loss": 0.5}}}
ASKED = {"adversarial_loss": {"asked": {"radii": [0.1], "multipliers": []}}}
ARRAYS = (Array(np.zeros((2, 3), np.float32)), Array(np.array(7)))
FL4HEALTH = {"host_type": "client", "rounds": {"1": {"eval_round_metrics": {"loss": 0.5}}}}
CSV = b"client,loss,n\na,0.5,10\nb,0.25,12\n"
HEADER = {"schema": ledger.SCHEMA, "recorded": "now", "hashes": {"model": "m", "code": "c"}, "config": {"seed": 0}}
INSPECT = {
    "status": "success",
    "samples": [
        {"id": 1, "metadata": {"user": "a"}, "scores": {"match": {"value": "C"}}},
        {"id": 2, "metadata": {"user": "b"}, "scores": {"match": {"value": {"x": 0.5}}}},
    ],
}
LM_EVAL = [{"doc_id": 1, "doc": {"subject": "a"}, "metrics": ["acc"], "acc": 1.0, "filter": "none"}]
EVENTS = [
    {"time": "t", "event": "run_started", "round": 1},
    {"time": "t", "event": "answer_accepted", "client_id": "a"},
]


def lines_of(*kinds: str) -> list[Any]:
    """A ledger of answers of these kinds."""
    return [
        HEADER,
        *(
            {**vars(MESSAGES[kind][1]), "client_id": f"c{k}", "node": "17"} | ASKED.get(kind, {})
            for k, kind in enumerate(kinds)
        ),
    ]


def written_ledger(found: Any) -> bytes:
    header, entries = found
    lines = [header]
    for entry in entries:
        asked = {"asked": {"radii": entry.radii, "multipliers": entry.multipliers}} if is_adversarial(entry) else {}
        node = {} if entry.node is None else {"node": entry.node}
        lines.append({**vars(entry.answer), **node, **asked})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def is_adversarial(entry: Any) -> bool:
    return isinstance(entry.answer, questions.AdversarialAnswer)


def read_node_config(config: Mapping[str, Any]) -> None:
    for read in NODE_READERS:
        read(config)


def verified(path: Path) -> None:
    """What `riskband verify` does, but print."""
    document = verify.read_document(str(path))
    if all(rb.verify(entry).ok for entry in document["certificates"].values()):
        list(verify._rest(str(path), document))


def table(path: Path, *, framework: str | None = None, loss: str = "loss", **columns: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return read_risks(str(path), Wanted(columns.pop("n", 10), loss=loss, **columns), framework=framework)


def logged(log: Evaluation, column: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return log.table(Wanted("num_examples", accuracy=column), on_error="leave_out")


def certified(folder: Path) -> dict[str, bytes]:
    """What `riskband certify --out` and `riskband report` write."""
    answers, *files = (folder / name for name in ("answers.csv", "certified.json", "certified.html"))
    answers.write_bytes(b"client,loss\n" + b"".join(b"c%d,0.%d\n" % (k, k % 4 + 1) for k in range(12)))
    with redirect_stdout(io.StringIO()):
        main(["certify", str(answers), "--num-examples", "50", "--require", "mean <= 0.9", "--out", str(files[0])])
        main(["report", str(files[0]), "--out", str(files[1])])
    return {file.suffix: file.read_bytes() for file in files}


def as_text(message: bytes) -> str:
    return message.decode("utf-8", "replace")


def readers(folder: Path) -> dict[str, Reader]:
    """By name. Those of files write the message into the folder first."""

    def of_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
        def read_again(content: bytes) -> Any:
            (folder / name).write_bytes(content)
            return read(folder / name)

        return read_again

    def of_record(value: Any, decode: Callable[..., Any], encode: Callable[[Any], RecordDict]) -> Reader:
        return Reader((encode(value),), partial(decode, kind=type(value)), 22_000, encode, changed_record)

    frame = pd.DataFrame({"client": ["a", "b"], "loss": [0.5, 0.25], "n": [10, 12]})
    of_table = partial(table, client="client", n="n")
    documents = certified(folder)
    answers = rb.ClientRisks([0.1, 0.2, 0.4] * 10, 100)
    certificates = (
        rb.mean_bound(answers, delta=0.05).to_dict(),
        rb.survival(rb.band(answers, delta=0.05), thresholds=[0.2, 0.5]).to_dict(),
    )
    examples = {"x": np.zeros((3, 2), np.float32), "y": np.array([0, 1, 1])}
    features = pd.DataFrame({"features": [[0.1, 0.2], [0.3, 0.4]], "label": [0, 1]})
    pictures = [saved(Image.fromarray(np.zeros((4, 4), np.uint8)).save, format=kind) for kind in ("png", "jpeg", "gif")]
    x, y = np.zeros((4, 2, 2)), np.arange(4) % 2
    world = saved(np.savez, x_train=x, y_train=y, x_test=x, y_test=y)
    ratings = saved(np.savez, user=np.arange(4), item=np.arange(4), rating=np.ones(4), timestamp=np.arange(4))
    scenario = (house.ROOT / "simulations" / "scenarios" / "secure.toml").read_bytes()
    queries = {name: of_record(query, wire.decode_query, wire.encode_query) for name, (query, _) in MESSAGES.items()}
    replies = {name: of_record(reply, wire.decode_answer, wire.encode_answer) for name, (_, reply) in MESSAGES.items()}
    return {
        **{f"question {name}": reader for name, reader in queries.items()},
        **{f"answer {name}": reader for name, reader in replies.items()},
        "array": Reader(ARRAYS, wire.decode_weights, 60_000, change=changed_array),
        "refusal": Reader(
            (REFUSAL,),
            lambda message: wire.decode_refusal(as_text(message)),
            60_000,
            lambda found: b"" if found is None else json.dumps(json.loads(wire.encode_refusal(found))).encode(),
            changed_json,
            "protocol.wire.decode_refusal",
        ),
        "ledger": Reader(
            tuple(lines_of(kind, kind) for kind in ("loss", "adversarial_loss", "candidates", "comparison")),
            of_file("ledger.jsonl", ledger._read),
            100_000,
            written_ledger,
            changed_lines,
            "server.run.ledger._checked server.run.ledger._header server.run.ledger._entry riskband.checks.json_object",
        ),
        "ledger as table": Reader(
            ([{**HEADER, "config": {**CONFIG, "num-clients": 2}}, *lines_of("loss", "loss")[1:]],),
            of_file("ledger.jsonl", lambda path: read_risks(str(path), UNSAID)),
            10_000,
            change=changed_lines,
            reaches="riskband.answers.ledgers.ledger_table",
        ),
        "events": Reader((EVENTS,), of_file("events.jsonl", read_events), 60_000, change=changed_lines),
        "run folder": Reader(
            (EVENTS,),
            of_file("events.jsonl", _entries),
            10_000,
            change=changed_lines,
            reaches="riskband.cli.run_folder._entries",
        ),
        "lock": Reader(
            ({"pid": 1, "host": "h", "started": "t"},),
            of_file(LOCK_FILE, lambda path: _holder(path.parent)),
            30_000,
            change=changed_json,
            reaches="server.run.lock._holder",
        ),
        "result": Reader(
            ({"timing": {"run_id": "1"}, "a": [1]},),
            of_file("report.json", lambda path: ResultFolder(path.parent, "1").read_json(path.name)),
            30_000,
            change=changed_json,
            reaches="server.run.folder.read_json",
        ),
        "recorded answer": Reader(
            (RECORDED,),
            lambda message: checked_numbers(QUERY, _numbers(as_text(message))),
            60_000,
            lambda found: json.dumps(found).encode(),
            changed_json,
            "client.answer_record._numbers",
        ),
        "certificate": Reader(
            certificates,
            lambda message: rb.Certificate.from_json(as_text(message)),
            20_000,
            lambda found: found.to_json().encode(),
            changed_json,
            "riskband.certificate.from_json",
        ),
        "document": Reader(
            (json.loads(documents[".json"]),),
            of_file("certificates.json", verified),
            1_000,
            change=changed_json,
            reaches="riskband.cli.verify.read_document",
        ),
        "page": Reader(
            (documents[".html"],),
            of_file("page.html", lambda path: verify.read_document(str(path))),
            5_000,
            reaches="riskband.cli.verify.stored_certificates",
        ),
        "LEAF": Reader(
            ({"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[0.5, 1], [2, 3]], "y": [0, 1]}}},),
            of_file("leaf/all.json", lambda path: leaf(path.parent)),
            10_000,
            change=changed_json,
            reaches="worlds.loaders._users",
        ),
        "csv": Reader(
            (CSV, CSV.replace(b",", b";"), gzip.compress(CSV)),
            of_file("table", of_table),
            30_000,
            reaches="riskband.answers.tables.read_table riskband.answers.tables._csv_table",
        ),
        "parquet": Reader((saved(frame.to_parquet),), of_file("table", of_table), 2_000),
        "xlsx": Reader(
            (saved(frame.to_excel, index=False),),
            of_file("table", of_table),
            500,
            reaches="riskband.answers.tables._excel_table",
        ),
        "nvflare": Reader(
            (NVFLARE,),
            of_file("cross_val_results.json", partial(table, framework="nvflare", loss="SRV/loss")),
            10_000,
            change=changed_json,
            reaches="riskband.answers.evaluations.object_of",
        ),
        "fl4health": Reader(
            (FL4HEALTH,),
            of_file("fl4health/client.json", lambda path: table(path.parent, framework="fl4health")),
            10_000,
            change=changed_json,
        ),
        "inspect": Reader(
            (INSPECT,),
            of_file("log.json", lambda path: logged(inspect_log(path, "metadata:user"), "match")),
            10_000,
            change=changed_json,
            reaches="riskband.answers.evaluations.object_of",
        ),
        "lm_eval": Reader(
            (LM_EVAL,),
            of_file(
                "samples_a_2026-01-01T00-00-00.jsonl",
                lambda path: logged(lm_eval_log(path, "subject"), "acc"),
            ),
            10_000,
            change=changed_lines,
        ),
        "examples": Reader(
            (saved(np.savez, **examples), saved(np.savez_compressed, **examples)),
            of_file("x.npz", read_files),
            10_000,
            reaches="client.data._npz",
        ),
        "examples in parquet": Reader(
            (saved(features.to_parquet),), of_file("x.parquet", read_files), 2_000, reaches="client.data._parquet"
        ),
        "image": Reader(
            tuple(pictures), lambda content: _image(io.BytesIO(content)), 10_000, reaches="client.data._image"
        ),
        "dataset": Reader(
            (world,),
            of_file("world.npz", lambda path: load_dataset.__wrapped__(f"npz:{path}")),
            5_000,
            reaches="worlds.datasets.npz_arrays",
        ),
        "ratings": Reader((ratings,), of_file("ratings.npz", load_ratings), 5_000),
        "ratings.dat": Reader((b"1::2::5::9\n2::3::4::8\n",), of_file("ratings.dat", load_ratings), 10_000),
        "checkpoint": Reader(
            (STATE,), of_file("model.pt", load_checkpoint), 5_000, reaches="protocol.models.load_checkpoint"
        ),
        "node config": Reader((NODE_CONFIG,), read_node_config, 40_000, change=changed_config),
        "run config": Reader((default_run_config(),), load_config, 2_000, change=changed_config),
        "scenario": Reader(
            (scenario,),
            of_file("scenario.toml", lambda path: scenario_config(str(path))),
            10_000,
            reaches="simulations.options.scenario_config",
        ),
    }


def sent(reader: Reader, valid: Any) -> Any:
    """A valid message, as it is before any change."""
    if reader.change is changed_json:
        return json.dumps(valid).encode()
    if reader.change is changed_lines:
        return b"".join(json.dumps(each).encode() + b"\n" for each in valid)
    return RecordDict({"arrays": ArrayRecord({"w": valid})}) if reader.change is changed_array else valid


def problem_of(reader: Reader, message: Any) -> str:
    """What a reader does with a message that it must not; nothing, if it is well."""
    started = time.process_time()
    try:
        try:
            found = reader.read(message)
        except ValueError as error:
            return "" if len(str(error)) >= SHORTEST else f"says only {error!s}"
        again = found if reader.write is None else reader.read(reader.write(found))
        if repr(again) != repr(found):
            return f"reads {found!r:.200} again as {again!r:.200}"
    except Exception as error:
        return "".join(traceback.format_exception(error)[-3:])
    return f"took {time.process_time() - started} s" if time.process_time() - started > LONGEST else ""


DEEP = b"[" * 100_000
CERTIFICATE = rb.mean_bound(rb.ClientRisks([0.1, 0.2, 0.4] * 10, 100), delta=0.05).to_dict()
ARCHIVE = saved(np.savez_compressed, x=np.zeros((30, 2)), y=np.zeros(30, np.int64))
COLLECTION = {"schema": "riskband.certificates/1", "findings": {}, "certificates": {"mean": CERTIFICATE}}
NOT_DECIDED = {"requirements": [], "delta": 0.05}
STATE = saved(lambda file: torch.save({"w": torch.zeros(2, 3), "n": torch.tensor(1)}, file))
ONCE_TAKEN_BADLY = [  # each ended in another error than ValueError, or in a value that could not be shown or saved
    ("nvflare", json.dumps({"a": {"SRV": {"loss": 10**400}}, "b": {"SRV": {"loss": 0.5}}}).encode()),
    ("nvflare", DEEP),
    ("inspect", json.dumps(INSPECT | {"samples": [{**INSPECT["samples"][0], "id": [1]}]}).encode()),
    (
        "inspect",
        json.dumps(INSPECT | {"samples": [{**each, "scores": {"match": {}}} for each in INSPECT["samples"]]}).encode(),
    ),
    ("lm_eval", json.dumps(LM_EVAL[0] | {"acc": 10**400}).encode()),
    ("lm_eval", json.dumps(LM_EVAL[0] | {"acc": None}).encode()),
    ("ledger as table", DEEP + b"\n"),
    ("scenario", b"seed = " + DEEP),
    ("lock", DEEP),
    ("result", DEEP),
    ("certificate", json.dumps(CERTIFICATE | {"quantity": 0.05}).encode()),
    ("certificate", json.dumps(CERTIFICATE | {"recipe": {**CERTIFICATE["recipe"], "band": -np.inf}}).encode()),
    ("certificate", json.dumps(CERTIFICATE | {"value": 1e308}).encode()),
    ("document", json.dumps({**COLLECTION, "gate": NOT_DECIDED}).encode()),
    ("examples", ARCHIVE[:55] + b"\xff" * 8 + ARCHIVE[63:]),
    ("examples", re.sub(rb"(PK\x01\x02....)\x00", rb"\1 ", ARCHIVE)),
    ("checkpoint", STATE.replace(b"q\x05", b"h\x99")),
    ("node config", {"partition-id": float("inf")}),
    ("image", b"GIF87a" + b"\xff" * 4 + b"\x80\x00\x00" + b"\x00" * 6 + b"," + b"\x00" * 4 + b"\xff" * 4 + b"\x00\x02"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    folder = tmp_path_factory.mktemp("readers")
    (folder / "leaf").mkdir()
    (folder / "fl4health").mkdir()
    (folder / "fl4health" / "other.json").write_text(json.dumps(FL4HEALTH))
    return readers(folder)


@pytest.mark.filterwarnings("ignore")  # of huge numbers and images; and numpy leaves a broken archive open
@pytest.mark.parametrize("share", [0.002, pytest.param(0.3, marks=pytest.mark.slow)])
def test_whatever_is_read_is_taken_or_refused_in_words(found: dict[str, Reader], share: float) -> None:
    problems, num_messages = [], 0
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, reader in found.items():
        rng = random.Random(name)
        for valid in reader.valid:
            reader.read(sent(reader, valid))
        for _ in range(max(int(share * reader.num), 2)):
            message = (reader.change or changed_bytes)(rng, rng.choice(reader.valid))
            num_messages += 1
            if (problem := problem_of(reader, message)) and len(problems) < 20:
                problems.append(f"{name} {problem}, from {message!r:.600}")
    assert not problems, "\n".join(problems)
    assert num_messages >= share * 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MOST_MEMORY


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("name", "message"), ONCE_TAKEN_BADLY, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_was_once_taken_badly(found: dict[str, Reader], name: str, message: Any) -> None:
    assert problem_of(found[name], message) == ""


def test_no_reader_and_no_message_is_forgotten(found: dict[str, Reader]) -> None:
    reached = {name for reader in found.values() for name in reader.reaches.split()}
    calling = set()
    for path in (each for each in house.python_files(*house.PRODUCT) if PARSERS.search(each.read_text())):
        module = ".".join(path.relative_to(house.ROOT).with_suffix("").parts)
        functions = (node for node in ast.walk(house.tree_of(path)) if isinstance(node, house.FUNCTIONS))
        for function in functions:
            calls = (ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))
            if any(map(PARSERS.fullmatch, calls)):
                calling.add(f"{module}.{function.name}")
    assert reached.isdisjoint(OWN)
    assert calling == reached | OWN.keys()
    assert [(type(query), type(reply)) for query, reply in MESSAGES.values()] == [
        (query, reply) for query, (_, reply) in wire.MESSAGES.items()
    ]
