"""`riskband verify` of a run's folder: an honest one verifies, and whoever changed one is told where."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from riskband.cli import main as command
from riskband.cli.run_folder import certificates_of_run, checks_of_run
from riskband.flower.testing import Delivery
from strategies.asking.query import QuorumError
from tests.server.running import raises, run_app
from tests.server.test_folder import process

CHECKED = [
    "events chained",
    "answers as logged",
    "configuration recorded first",
    "files unchanged",
    "report agrees",
    "nobody left out",
    "answers in ledger",
]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> Path:
    """A run in which one client failed, and one answered under another name."""
    folder = tmp_path_factory.mktemp("honest")
    wrong_name = {3: {"client-id": "hospital-a"}}
    run_app(folder, defaults, behaviours={2: raises}, node_configs=wrong_name, quorum=0.8, num_unseen=0)
    return folder


@pytest.fixture
def folder(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


class Said(list[str]):
    """Exit status and lines of the command."""

    status: int


@pytest.fixture
def verified(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def verify(folder: Path, *options: str) -> Said:
        capsys.readouterr()  # what a run has printed
        status = command(["verify", str(folder), *options])
        shown = capsys.readouterr()
        said = Said((shown.out + shown.err).splitlines())
        said.status = status
        return said

    return verify


def wrong(said: Said) -> list[str]:
    """What is not as it should be."""
    well = (": yes", ": follows from its answers", "last event: ")
    return [line for line in said if not any(each in line for each in well)]


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def edit(path: Path, number: int, old: str, new: str) -> None:
    """Change a line, counted from 1."""
    lines = lines_of(path)
    assert lines[number - 1].count(old.encode()) >= 1, lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old.encode(), new.encode(), 1)
    path.write_bytes(b"".join(lines))


def chained_again(path: Path) -> None:
    """What someone does who knows how the log is made: every line after the change gets the hash that it must have."""
    lines = [json.loads(line) for line in lines_of(path)]
    before = json.dumps(lines[0]["config"], sort_keys=True).encode()
    for line in lines:
        line["before"] = hashlib.sha256(before).hexdigest()
        before = json.dumps(line).encode() + b"\n"
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def test_an_honest_run_with_failures_verifies_and_says_what_was_checked(
    honest: Path, verified: Callable[..., Said]
) -> None:
    said = verified(honest)
    assert (said.status, wrong(said)) == (0, [])
    assert [line.removesuffix(": yes") for line in said if line.endswith(": yes")] == CHECKED
    names = {path.stem for path in (honest / "certificates").glob("*.json")}
    assert {line.partition(":")[0] for line in said if ": follows from its answers" in line} == names
    last = hashlib.sha256(lines_of(honest / "events.jsonl")[-1]).hexdigest()
    assert said[-1] == f"last event: {last}"
    assert verified(honest, "--expect", last).status == 0
    said = verified(honest, "--expect", "0" * 64)
    assert (said.status, said[-1]) == (1, f"last event: {last}, NOT THE EXPECTED {'0' * 64}")


def test_as_json(honest: Path, verified: Callable[..., Said]) -> None:
    found = json.loads("\n".join(verified(honest, "--json")))
    checks = {each.replace(" ", "_") for each in CHECKED} | {"last_event"}
    assert found.keys() == {"schema", "ok", "certificates", *checks}
    assert all(found[each] is True for each in (*checks, "ok"))


SETTINGS: dict[str, dict[str, Any]] = {
    "comparison": {"strategy": "comparison", "old_model": "local"},
    "selection": {"strategy": "selection", "candidate_epochs": "1"},
    "wasserstein": {"strategy": "wasserstein", "cost_budgets": "0.1"},
    "bisection": {"strategy": "wasserstein", "protocol": "bisection", "cost_budgets": "0.1"},
    "dispersion": {"strategy": "dispersion", "group_sigmas": "0.1,0.3"},
    "until-decided": {"ask": "until-decided", "batch_size": 5, "require": "mean<=0.9"},
    "secure": {"strategy": "secure_histogram", "num_clients": 30},
    "secure-private": {"strategy": "secure_histogram", "num_clients": 30, "histogram_sizes": "private"},
    "target": {"num_clients": 40, "group_sigmas": "0.05,0.6", "affine_sigma": 0.0, "target": "group:sigma-0.6"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_of_every_strategy_verifies(
    name: str, tmp_path: Path, defaults: Mapping[str, Any], verified: Callable[..., Said]
) -> None:
    run_app(tmp_path, defaults, num_unseen=0, metrics_port=0, **SETTINGS[name])
    said = verified(tmp_path)
    assert (said.status, wrong(said)) == (0, [])
    assert "answers in ledger: yes" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "certificate", "change", "expected"),
    [
        (
            "secure",
            "mean",
            lambda recipe: recipe["answers"]["counts"].reverse(),
            "answers in ledger: certificates/mean.json has other counts than the sums of its clients in ledger.jsonl",
        ),
        (
            "target",
            "mean@target_chi2_0.2",
            lambda recipe: recipe["arguments"]["target"]["answers"]["values"].pop(),
            "nobody left out: certificates/mean@target_chi2_0.2.json has other answers of the group sigma-0.6 than",
        ),
    ],
)
def test_sums_and_clients_of_a_target_are_compared_too(
    name: str,
    certificate: str,
    change: Callable[[Any], object],
    expected: str,
    tmp_path: Path,
    defaults: Mapping[str, Any],
) -> None:
    run_app(tmp_path, defaults, num_unseen=0, **SETTINGS[name])
    made = certificates_of_run(tmp_path)
    change(made[certificate]["recipe"])
    said = [
        f"{what.replace('_', ' ')}: {each}" for what, problems in checks_of_run(tmp_path, made) for each in problems
    ]
    assert [each.startswith(expected) for each in said] == [True]


def raises_later(message: Any, answer: Any) -> Any:
    return raises(message, answer) if int(message.metadata.group_id) > 1 else [Delivery(answer(message))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"node_configs": {3: {"client-id": "client-00004"}}, "quorum": 0.8},  # two nodes under one name
        {**SETTINGS["bisection"], "behaviours": {3: raises_later}, "quorum": 0.8},  # after it has answered
    ],
    ids=["claimed twice", "silent later"],
)
def test_a_client_that_has_answered_and_failed_is_not_left_out(
    settings: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any], verified: Callable[..., Said]
) -> None:
    run_app(tmp_path, defaults, num_unseen=0, **settings)
    log = (tmp_path / "events.jsonl").read_bytes()
    assert b'"claimed-twice"' in log or b'"client_failed"' in log
    said = verified(tmp_path)
    assert (said.status, wrong(said)) == (0, [])


def test_a_run_that_failed_and_the_resumed_one(
    tmp_path: Path, defaults: Mapping[str, Any], verified: Callable[..., Said]
) -> None:
    """Of the first there are answers and a log, and no report that could be checked: exit status 3."""
    with pytest.raises(QuorumError):
        run_app(tmp_path, defaults, num_unseen=0, behaviours=dict.fromkeys(range(4), raises))
    said = verified(tmp_path)
    assert said.status == 3
    assert wrong(said) == ["run complete: NOT VERIFIED: it failed, was killed or goes on"]
    assert "answers as logged: yes" in said
    with (tmp_path / "events.jsonl").open("a") as log:
        log.write('{"time": "2026-01-01T00:0')  # as a kill leaves it
    with (tmp_path / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"client_id": "clie')
    torn = verified(tmp_path)
    assert torn.status == 1
    assert wrong(torn)[0].startswith("events chained: the last line of events.jsonl is torn")
    run_app(tmp_path, defaults, num_unseen=0, resume="true")
    said = verified(tmp_path)
    assert (said.status, wrong(said)) == (0, [])
    assert b'"torn_line_cut", "num_bytes": 25' in (tmp_path / "events.jsonl").read_bytes()


def killed_while_answers_come(ready: Any, folder: Path, defaults: Mapping[str, Any]) -> None:
    """Between an answer and its event."""
    from server.run.folder import ResultFolder

    logged = ResultFolder.log_event

    def log(self: ResultFolder, event: str, **fields: Any) -> None:
        if event == "answer_accepted" and fields["client_id"] == "client-00005":
            os.kill(os.getpid(), signal.SIGKILL)
        logged(self, event, **fields)

    ResultFolder.log_event = log  # type: ignore[method-assign]
    ready.set()
    run_app(folder, defaults, num_unseen=0)


def test_a_run_that_was_killed_between_an_answer_and_its_event_goes_on_honestly(
    tmp_path: Path, defaults: Mapping[str, Any], verified: Callable[..., Said]
) -> None:
    with process(killed_while_answers_come, tmp_path, defaults) as child:
        child.join(30)
    assert child.exitcode == -signal.SIGKILL
    last = json.loads(lines_of(tmp_path / "ledger.jsonl")[-1])
    assert last["client_id"] == "client-00005"
    said = verified(tmp_path)
    assert (said.status, len(wrong(said))) == (3, 1)
    run_app(tmp_path, defaults, num_unseen=0, resume="true")
    said = verified(tmp_path)
    assert (said.status, wrong(said)) == (0, [])


# Each kind of tampering, by name.


def place_of(path: Path, text: str) -> int:
    """The first line with a text, from 1."""
    return next(number for number, line in enumerate(lines_of(path), start=1) if text.encode() in line)


def edit_an_event(folder: Path) -> str:
    number = place_of(folder / "events.jsonl", '"client_failed"')
    edit(folder / "events.jsonl", number, "client-raised", "node-missing")
    return f"events chained: line {number + 1} of events.jsonl does not follow"


def drop_an_event(folder: Path) -> str:
    number = place_of(folder / "events.jsonl", '"client_failed"')
    lines = lines_of(folder / "events.jsonl")
    (folder / "events.jsonl").write_bytes(b"".join(lines[: number - 1] + lines[number:]))
    return f"events chained: line {number} of events.jsonl does not follow"


def swap_events(folder: Path) -> str:
    number = place_of(folder / "events.jsonl", '"answer_accepted"')
    lines = lines_of(folder / "events.jsonl")
    lines[number - 1], lines[number] = lines[number], lines[number - 1]
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    return f"events chained: line {number} of events.jsonl does not follow"


def begin_with_another_configuration(folder: Path) -> str:
    edit(folder / "events.jsonl", 1, '"seed": 0', '"seed": 1')
    return "events chained: line 1 of events.jsonl does not follow"


def tear_the_end(folder: Path) -> str:
    (folder / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes()[:-5])
    return "events chained: the last line of events.jsonl is torn"


def drop_the_end(folder: Path) -> str:
    (folder / "events.jsonl").write_bytes(b"".join(lines_of(folder / "events.jsonl")[:-1]))
    return "run complete: events.jsonl does not end with the run, whose report.json is there"


def change_an_answer(folder: Path) -> str:
    number = place_of(folder / "ledger.jsonl", '"client-00007"')
    edit(folder / "ledger.jsonl", number, '"num_examples": 40', '"num_examples": 41')
    return f"answers as logged: line {number} of ledger.jsonl is not what was logged (client-00007)"


def drop_an_answer(folder: Path) -> str:
    lines = lines_of(folder / "ledger.jsonl")
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:4] + lines[5:]))
    return f"answers as logged: line 5 of ledger.jsonl is not what was logged ({json.loads(lines[4])['client_id']})"


def drop_the_last_answer(folder: Path) -> str:
    lines = lines_of(folder / "ledger.jsonl")
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    return f"answers as logged: line {len(lines)} of ledger.jsonl is not what was logged"


def add_an_answer(folder: Path) -> str:
    lines = lines_of(folder / "ledger.jsonl")
    (folder / "ledger.jsonl").write_bytes(b"".join([*lines, lines[-1]]))
    return f"answers as logged: line {len(lines) + 1} of ledger.jsonl was never logged"


def change_the_recorded_configuration(folder: Path) -> str:
    edit(folder / "ledger.jsonl", 1, '"delta": 0.05', '"delta": 0.06')
    return "answers as logged: line 1 of ledger.jsonl is not what was logged (ledger_begun)"


def edit_the_report(folder: Path) -> str:
    report = json.loads((folder / "report.json").read_text())
    report["network"]["num_failed"] = 0
    (folder / "report.json").write_text(json.dumps(report))
    return "files unchanged: report.json was changed, added or removed"


def replace_a_certificate(folder: Path) -> str:
    """By one that is right, of the same answers."""
    shutil.copy(folder / "certificates" / "survival.json", folder / "certificates" / "mean.json")
    return "files unchanged: certificates/mean.json was changed, added or removed"


def add_a_certificate(folder: Path) -> str:
    shutil.copy(folder / "certificates" / "mean.json", folder / "certificates" / "mine.json")
    return "files unchanged: certificates/mine.json was changed, added or removed"


def remove_the_report(folder: Path) -> str:
    (folder / "report.json").unlink()
    return "files unchanged: report.json was changed, added or removed"


def edit_the_page(folder: Path) -> str:
    (folder / "report.html").write_text((folder / "report.html").read_text().replace("clients", "Clients"))
    return "files unchanged: report.html was changed, added or removed"


def edit_the_page_and_its_hash(folder: Path) -> str:
    """The event with the hash is not the last: another one follows it."""
    before = sha256_of(folder / "report.html")
    edit_the_page(folder)
    number = place_of(folder / "events.jsonl", '"files_written"')
    edit(folder / "events.jsonl", number, before, sha256_of(folder / "report.html"))
    return f"events chained: line {number + 1} of events.jsonl does not follow"


def add_a_page(folder: Path) -> str:
    shutil.copy(folder / "report.html", folder / "certificates" / "for-the-board.html")
    return "files unchanged: certificates/for-the-board.html was changed, added or removed"


def add_a_ledger(folder: Path) -> str:
    shutil.copy(folder / "ledger.jsonl", folder / "ledger-1.jsonl")
    return "files unchanged: ledger-1.jsonl was changed, added or removed"


SIMPLE = [
    edit_an_event,
    drop_an_event,
    swap_events,
    begin_with_another_configuration,
    tear_the_end,
    drop_the_end,
    change_an_answer,
    drop_an_answer,
    drop_the_last_answer,
    add_an_answer,
    change_the_recorded_configuration,
    edit_the_report,
    replace_a_certificate,
    add_a_certificate,
    remove_the_report,
    edit_the_page,
    edit_the_page_and_its_hash,
    add_a_page,
    add_a_ledger,
]


@pytest.mark.parametrize("tamper", SIMPLE, ids=lambda each: each.__name__)
def test_what_was_changed_is_named(tamper: Callable[[Path], str], folder: Path, verified: Callable[..., Said]) -> None:
    expected = tamper(folder)
    said = verified(folder)
    assert said.status == 1
    assert any(line.startswith(expected) for line in said), said


# And of one who makes the hashes fit again: the files still have to say the same.


def with_hashes_that_fit(folder: Path) -> None:
    with_files(folder, lambda files: files.update({name: sha256_of(folder / name) for name in files}))


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def with_files(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    """Change the list of files, and the chain with it."""
    events = [json.loads(line) for line in lines_of(folder / "events.jsonl")]
    change(events[-2]["files"])
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    chained_again(folder / "events.jsonl")


def changed(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content, indent=1) + "\n")


def improve_the_bound_in_the_report(folder: Path) -> str:
    changed(folder, "report.json", lambda report: report["certificates"]["mean"].update(value=0.1))
    return "report agrees: report.json and certificates/mean.json differ"


def leave_a_certificate_out(folder: Path) -> str:
    changed(folder, "report.json", lambda report: report["certificates"].pop("survival"))
    return "report agrees: report.json and certificates/survival.json differ"


def improve_the_bound_everywhere(folder: Path) -> str:
    improve_the_bound_in_the_report(folder)
    changed(folder, "certificates/mean.json", lambda certificate: certificate.update(value=0.1))
    return "mean: DOES NOT FOLLOW from its answers"


def certified_again(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the answers in a certificate, and what follows from them, by the library itself."""
    import riskband as rb

    path = folder / "certificates" / "mean.json"
    recipe = json.loads(path.read_text())["recipe"]
    change(recipe["answers"])
    certificate = rb.mean_bound(rb.ClientRisks(**recipe["answers"]), **recipe["arguments"])
    certificate.save(path)
    made = certificate.to_dict()
    changed(
        folder,
        "report.json",
        lambda report: report["certificates"]["mean"].update(
            {key: made[key] for key in made.keys() & report["certificates"]["mean"].keys()}
        ),
    )


def improve_an_answer_in_a_certificate(folder: Path) -> str:
    certified_again(folder, lambda answers: answers["values"].__setitem__(4, 0.0))
    who = json.loads((folder / "report.json").read_text())["network"]["client_ids"][4]
    return f"answers in ledger: certificates/mean.json has other values of {who} than ledger.jsonl"


def improve_an_answer_as_if_only_sums_were_seen(folder: Path) -> str:
    changed(folder, "report.json", lambda report: report.update(secure_aggregation={"num_bins": 3}))
    return improve_an_answer_in_a_certificate(folder)


def leave_clients_out(folder: Path) -> str:
    """The last three of those that answered, in every file but the ledger: they were never there, nor failed."""
    left_out: list[str] = []

    def forget(report: Any) -> None:
        left_out.extend(report["network"]["client_ids"][7:])
        report["network"] |= {"client_ids": report["network"]["client_ids"][:7], "num_answered": 7}
        report["certificates"] = {"mean": report["certificates"]["mean"]}

    certified_again(folder, lambda answers: answers.update({k: answers[k][:7] for k in ("values", "num_examples")}))
    changed(folder, "report.json", forget)
    others = {f"certificates/{p.name}" for p in (folder / "certificates").glob("*.json")} - {"certificates/mean.json"}
    for name in others:
        (folder / name).unlink()
    with_files(folder, lambda files: [files.pop(name) for name in others])
    why = "and report.json neither certifies nor fails that client"
    return f"nobody left out: ledger.jsonl has an answer of {left_out[0]}, {why}"


def forget_the_failures(folder: Path) -> str:
    changed(folder, "report.json", lambda report: report["network"].update(failures=[], num_failed=0))
    return "nobody left out: report.json has other failures, or another number of answers, than events.jsonl"


def certify_as_if_nobody_had_failed(folder: Path) -> str:
    certified_again(folder, lambda answers: answers.update(num_missing=0))
    return "nobody left out: certificates/mean.json has 0 clients missing, and 2 failed"


def certify_a_client_that_failed(folder: Path) -> str:
    def fail(report: Any) -> None:
        report["network"]["failures"][0]["client_id"] = report["network"]["client_ids"][0]

    changed(folder, "report.json", fail)
    return "nobody left out: report.json certifies client-00000, which failed"


def say_another_configuration(folder: Path) -> str:
    changed(folder, "report.json", lambda report: report["config"].update(delta=0.06))
    return "report agrees: report.json has another configuration, or other hashes, than ledger.jsonl"


def say_another_code(folder: Path) -> str:
    changed(folder, "report.json", lambda report: report["hashes"].update(code="0" * 64))
    return "report agrees: report.json has another configuration, or other hashes, than ledger.jsonl"


def record_the_configuration_late(folder: Path) -> str:
    lines = lines_of(folder / "events.jsonl")
    number = place_of(folder / "events.jsonl", '"ledger_begun"')
    begun = lines.pop(number - 1)
    lines.insert(place_of(folder / "events.jsonl", '"round_asked"'), begun)
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    return "configuration recorded first: events.jsonl does not say that ledger.jsonl was begun before the first"


def begin_with_another_seed(folder: Path) -> str:
    edit(folder / "events.jsonl", 1, '"seed": 0', '"seed": 1')
    return "configuration recorded first: events.jsonl begins with another configuration than ledger.jsonl"


CAREFUL = [
    leave_clients_out,
    forget_the_failures,
    certify_as_if_nobody_had_failed,
    certify_a_client_that_failed,
    improve_the_bound_in_the_report,
    leave_a_certificate_out,
    improve_the_bound_everywhere,
    improve_an_answer_in_a_certificate,
    improve_an_answer_as_if_only_sums_were_seen,
    say_another_configuration,
    say_another_code,
    record_the_configuration_late,
    begin_with_another_seed,
]


@pytest.mark.parametrize("tamper", CAREFUL, ids=lambda each: each.__name__)
def test_what_was_changed_with_all_hashes_is_named_and_the_last_hash_is_another(
    tamper: Callable[[Path], str], folder: Path, honest: Path, verified: Callable[..., Said]
) -> None:
    known = hashlib.sha256(lines_of(honest / "events.jsonl")[-1]).hexdigest()
    expected = tamper(folder)
    with_hashes_that_fit(folder)
    said = verified(folder, "--expect", known)
    assert said.status == 1
    assert [line for line in said if line.startswith(("events chained", "files unchanged"))] == [
        "events chained: yes",
        "files unchanged: yes",
    ]
    assert any(line.startswith(expected) for line in said), said
    assert said[-1].endswith(f"NOT THE EXPECTED {known}")


def test_a_report_that_is_not_on_the_list_of_files_is_named(folder: Path, verified: Callable[..., Said]) -> None:
    """Its hash, and with that all that it says, would be checked by nobody."""
    improve_the_bound_in_the_report(folder)
    with_files(folder, lambda files: files.pop("report.json"))
    said = verified(folder)
    assert said.status == 1
    assert "files unchanged: report.json was changed, added or removed" in said


def test_a_report_that_is_neither_there_nor_on_the_list_is_missed(folder: Path, verified: Callable[..., Said]) -> None:
    """Without it nothing would compare certificates with the ledger."""
    (folder / "report.json").unlink()
    with_files(folder, lambda files: files.pop("report.json"))
    said = verified(folder)
    assert said.status == 1
    assert "files unchanged: report.json was changed, added or removed" in said


def test_what_lies_elsewhere_is_no_file_of_the_folder(folder: Path, verified: Callable[..., Said]) -> None:
    """A list may name what an auditor's machine holds, or what never ends."""
    elsewhere = folder.parent / "secret"
    elsewhere.write_bytes((folder / "report.html").read_bytes())
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(elsewhere)
    names = ["../secret", str(elsewhere)]
    with_files(
        folder, lambda files: files.update(dict.fromkeys(names, hashlib.sha256(elsewhere.read_bytes()).hexdigest()))
    )
    said = verified(folder)
    assert said.status == 1
    for name in [*names, "report.html"]:
        assert f"files unchanged: {name} was changed, added or removed" in said


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\rb\nreport agrees: yes"


def with_hostile_names(folder: Path) -> None:
    """Of a file, a client and a certificate."""
    with_files(folder, lambda files: files.update({HOSTILE: "0" * 64}))
    number = place_of(folder / "events.jsonl", '"client-00007"')
    edit(folder / "events.jsonl", number, '"client-00007"', json.dumps(HOSTILE))
    change_an_answer(folder)
    mean = folder / "certificates" / "mean.json"
    shutil.copy(mean, mean.with_stem(HOSTILE))


def with_a_hostile_field(folder: Path) -> None:
    changed(folder, "certificates/mean.json", lambda certificate: certificate.update({HOSTILE: 1}))


@pytest.mark.parametrize(
    ("tamper", "expected", "num_named"), [(with_hostile_names, 1, 6), (with_a_hostile_field, 2, 1)]
)
def test_nothing_in_a_folder_speaks_to_the_terminal_or_makes_lines_of_its_own(
    tamper: Callable[[Path], None], expected: int, num_named: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tamper(folder)
    assert command(["verify", str(folder)]) == expected
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert text.count("owned") == num_named
    assert text.replace("\n", "").isprintable()
    assert "\nreport agrees: yes" not in text


@pytest.mark.timeout(60)
def test_what_never_ends_is_not_read(honest: Path, tmp_path: Path, verified: Callable[..., Said]) -> None:
    names = "events.jsonl", "ledger.jsonl", "certificates/mean.json", "report.json"
    for number, name in enumerate((*names, names[2])):
        folder = Path(shutil.copytree(honest, tmp_path / str(number)))
        (folder / name).unlink()
        if number < len(names):
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to("/dev/zero")
        said = verified(folder)
        if name == "report.json":
            assert (said.status, wrong(said)) == (1, ["files unchanged: report.json was changed, added or removed"])
        else:
            assert said.status == 2
            assert f"{name} must be as a run writes it, got no regular file, which may never end" in said[-1]


def test_who_rewrites_all_of_it_is_found_by_the_last_hash_alone(
    folder: Path, honest: Path, verified: Callable[..., Said], defaults: Mapping[str, Any]
) -> None:
    """Which is why it must be kept elsewhere."""
    shutil.rmtree(folder)
    run_app(folder, defaults, num_unseen=0, behaviours={2: raises}, node_configs={3: {"client-id": "b"}}, quorum=0.8)
    assert verified(folder).status == 0
    known = hashlib.sha256(lines_of(honest / "events.jsonl")[-1]).hexdigest()
    assert verified(folder, "--expect", known).status == 1


# What cannot be read: exit status 2.


def not_json(folder: Path) -> None:
    edit(folder / "events.jsonl", 3, "{", "")


def no_ledger(folder: Path) -> None:
    (folder / "ledger.jsonl").unlink()


def empty_log(folder: Path) -> None:
    (folder / "events.jsonl").write_text("")


def no_object(folder: Path) -> None:
    (folder / "certificates" / "mean.json").write_text("[1]")


def no_recipe(folder: Path) -> None:
    changed(folder, "certificates/mean.json", lambda certificate: certificate.pop("recipe"))


def no_hash(folder: Path) -> None:
    changed(folder, "report.json", lambda report: report.pop("hashes"))


def never_settled(folder: Path) -> None:
    path = folder / "events.jsonl"
    path.write_bytes(b"".join(line for line in lines_of(path) if b'"answers_settled"' not in line))
    chained_again(path)


def brackets(folder: Path) -> None:
    (folder / "report.json").write_text("[" * 100_000)


@pytest.mark.guard
@pytest.mark.parametrize(
    "damage",
    [not_json, no_ledger, empty_log, no_object, no_recipe, no_hash, never_settled, brackets],
    ids=lambda each: each.__name__,
)
def test_what_cannot_be_read_is_no_traceback(
    damage: Callable[[Path], None], folder: Path, verified: Callable[..., Said]
) -> None:
    damage(folder)
    said = verified(folder)
    assert said.status == 2
    assert any(str(folder) in line or "mean" in line for line in said), said


def test_a_folder_of_others_and_an_expectation_of_a_file_are_refused(
    honest: Path, tmp_path: Path, verified: Callable[..., Said]
) -> None:
    said = verified(tmp_path)
    assert said.status == 2
    assert "give the folder of a run" in said[0]
    said = verified(honest / "certificates" / "mean.json", "--expect", "0" * 64)
    assert said.status == 2
    assert "--expect is of the log of a run" in said[0]


def test_a_ledger_alone_is_told_to_come_with_its_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["verify", str(folder / "ledger.jsonl")]) == 2
    assert "of a run give its folder, as a whole" in capsys.readouterr().err
