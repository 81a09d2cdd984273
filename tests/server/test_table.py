import copy
from typing import Any

import pytest
from rich.console import Console

from riskband.answers.responses import FRESH_CLIENTS
from riskband.wording import TRAINERS_ANSWERED
from server.report.table import report_table


def entry(kind: str, value: Any, observed: Any, **changes: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "quantity": "a quantity",
        "method": "betting",
        "divergence": None,
        "event": "band",
        "validity": "certificate",
        "delta": 0.05,
        "axes": {},
        "value": value,
        "check": {"holds": True, "smallest_margin": 0.01, "observed": observed},
        **changes,
    }


REPORT = {
    "scenario": "tiny",
    "config": {"strategy": "f_divergence", "ask": "all", "breakdown-threshold": 0.3},
    "unseen": {"num_clients": 7},
    "network": {
        "num_clients": 10,
        "num_asked": 9,
        "num_answered": 8,
        "answered_by": "fresh",
        "failures": [{"client_id": None, "reason": "node-missing", "detail": ""}] * 2,
    },
    "certificates": {
        "mean": entry("mean", 0.1234, 0.1111, event="own", quantity="the mean risk over unseen clients"),
        "survival": entry("share", [0.9, 0.4321, 0.2], [0.8, 0.3, 0.1], axes={"threshold": [0.1, 0.25, 0.4]}),
        "worst_case_mean_kl": entry(
            "mean@kl", [0.2222, 0.3333], [0.2, 0.3], axes={"budget": [0.05, 0.1]}, divergence="kl"
        ),
    },
    "metrics": {
        "num_rounds": 2,
        "num_messages": 19,
        "num_replies": 17,
        "bytes_sent": 41_000_000,
        "bytes_received": 11_900,
        "num_answers_in_ledger": 0,
    },
    "timing": {"seconds": {"answers": 3.14}, "configuration_recorded": "2026-11-22T06:31:07+00:00"},
    "findings": {
        "statement": "with probability at least 0.95 all of this holds together",
        "beside": [],
        "breakdowns": [{"statement": "Up to budget 0.5 it is certified that all is well."}],
        "says_nothing": {"mean": "too few"},
        "more_clients": "",
        "assumptions": ["clients are drawn independently"],
    },
}


def rendered(report: dict[str, Any]) -> str:
    console = Console(width=140, no_color=True)
    with console.capture() as capture:
        console.print(report_table(report))
    return capture.get()


@pytest.mark.guard
@pytest.mark.parametrize(
    "text",
    [
        "mean risk",
        "0.124",
        "P(risk ≥ 0.25)",  # the last point of the curve at or below the threshold 0.3
        "0.433",
        "within KL 0.05",
        "0.334",
        "10 expected, 9 asked, 8 answered validly; failures: 2 × node-missing",
        "2 rounds, 19 messages (41.0 MB), 17 replies (11.9 kB); the answers took 3.1 s.",
        "With probability at least 0.95 all of this holds together.",
        "Up to budget 0.5 it is certified that all is well.",
        "Where mean is 1 it says nothing: too few.",
        "all 3 certificates hold on the unseen clients",
        "clients are drawn independently",
    ],
)
def test_it_says_in_words(text: str) -> None:
    assert text in rendered(REPORT)


def test_a_number_with_a_delta_of_its_own_takes_the_row_of_the_curve_that_holds_it() -> None:
    report = copy.deepcopy(REPORT)
    share = entry("share", [0.3456], [0.2], axes={"threshold": [0.3]}, event="own")
    report["certificates"]["share"] = share
    text = rendered(report)
    (row,) = (line for line in text.splitlines() if "P(risk ≥" in line)
    assert ("0.3)" in row, "0.346" in row, "its own" in row) == (True, True, True)


def test_a_failed_certificate_is_not_hidden() -> None:
    report = copy.deepcopy(REPORT)
    report["certificates"]["mean"]["check"] = {"holds": False, "smallest_margin": -0.1, "observed": 0.2234}
    text = rendered(report)
    assert "NO" in text
    assert "the unseen clients exceed mean" in text
    assert "NO" not in rendered(REPORT)


def test_what_is_required_has_a_row_and_unchecked_ones_are_not_counted() -> None:
    report = copy.deepcopy(REPORT)
    report["certificates"]["require_gini"] = entry("gini", 0.7777, None, lower=0.5, event="own", quantity="the Gini")
    report["certificates"]["require_gini"]["check"] = None
    text = rendered(report)
    assert "The Gini" in text
    assert "0.778" in text
    assert "all 3 certificates hold" in text


def test_estimates_from_trainers_say_so_in_red_above_all_numbers() -> None:
    report = copy.deepcopy(REPORT)
    report["network"]["answered_by"] = "trainers"
    report["findings"] |= {"assumptions": [TRAINERS_ANSWERED], "breakdowns": []}
    for each in report["certificates"].values():
        each["validity"] = "estimate"
    console = Console(width=140, force_terminal=True, color_system="standard", legacy_windows=False)
    with console.capture() as capture:
        console.print(report_table(report))
    lines = capture.get().splitlines()
    assert lines[0].startswith(f"\x1b[1;31mNOTHING IS CERTIFIED: {TRAINERS_ANSWERED}; ")
    assert f"  - \x1b[1;31m{TRAINERS_ANSWERED}\x1b[0m" in lines
    text = rendered(report)
    assert "tiny: estimated for clients and networks that nobody has measured" in text
    assert "mean risk (estimate)" in text
    assert "Check: all 3 estimates hold on the unseen clients" in text
    assert "certificate" not in text
    assert TRAINERS_ANSWERED not in rendered(REPORT)
    assert rendered(REPORT).startswith(f"taken as true: {FRESH_CLIENTS}; if they had, nothing is certified")


@pytest.mark.guard
@pytest.mark.parametrize(
    ("estimates", "word", "checked"),
    [
        ((), "certified", "all 3 certificates hold"),
        (("survival", "worst_case_mean_kl"), "certified", "all 3 certificates hold"),
        (("mean", "survival", "worst_case_mean_kl"), "estimated", "all 3 estimates hold"),
    ],
)
def test_nothing_is_said_to_be_estimated_that_is_certified(estimates: tuple[str, ...], word: str, checked: str) -> None:
    report = copy.deepcopy(REPORT)
    for name in estimates:
        report["certificates"][name]["validity"] = "estimate"
    text = rendered(report)
    assert f"tiny: {word} for clients and networks that nobody has measured" in text
    assert f"Check: {checked} on the unseen clients" in text
    assert text.count(" (estimate)") == len(estimates) + ("worst_case_mean_kl" in estimates)  # a row for each budget


def test_a_table_of_no_certificates_does_not_speak_of_estimates() -> None:
    text = rendered(REPORT | {"certificates": {}})
    assert "tiny: certified for clients" in text
    assert "estimate" not in text


def test_answers_of_an_interrupted_run_are_told_apart() -> None:
    report = copy.deepcopy(REPORT)
    report["metrics"]["num_answers_in_ledger"] = 5
    assert "took 3.1 s, and 5 were in the ledger." in rendered(report)


def test_without_unseen_clients_nothing_is_said_about_them() -> None:
    report = copy.deepcopy(REPORT)
    report["unseen"]["num_clients"] = 0
    for certificate in report["certificates"].values():
        certificate["check"] = None
    assert "unseen" not in rendered(report)
    assert "0.124" in rendered(report)


def test_each_failure_is_named_by_the_best_name_there_is() -> None:
    refusal = {
        "client_id": "hospital-a",
        "node_name": "hospital-a",
        "reason": "client-raised",
        "detail": "no [more] \\",
    }
    silent = {"client_id": None, "node_name": None, "reason": "no-reply", "detail": "no reply within 3 s"}
    keyed = silent | {"node_name": "hospital-c", "detail": "no reply within 4 s"}
    missing = {"client_id": None, "reason": "node-missing", "detail": ""}
    network = REPORT["network"] | {"failures": [missing, silent, keyed, refusal]}
    timing = REPORT["timing"] | {"nodes_of_failures": [None, "4711", "4712", "4713"]}
    text = rendered(REPORT | {"network": network, "timing": timing})
    assert "node 4711: no-reply: no reply within 3 s" in text
    assert "node 4712, registered as 'hospital-c': no-reply" in text
    assert "  - hospital-a: client-raised: no [more] \\" in text
    assert text.count("node-missing") == 1


def test_of_many_failures_the_table_shows_some() -> None:
    failures = [{"client_id": f"c{k}", "reason": "no-reply", "detail": f"after {k} s"} for k in range(13)]
    text = rendered(REPORT | {"network": REPORT["network"] | {"failures": failures}})
    assert text.count(": no-reply:") == 10
    assert "and 3 more" in text
    alike = [{"client_id": f"c{k}", "reason": "client-raised", "detail": "no data"} for k in range(13)]
    text = rendered(REPORT | {"network": REPORT["network"] | {"failures": alike}})
    assert text.count("no data") == 1
    assert "c0 and 12 more: client-raised: no data" in text
