"""The mean per example: what it agrees with, what it says it assumes, who reads it, and what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import riskband as rb
from riskband.cli import main
from riskband.functionals.functional import interval_of

RNG = np.random.default_rng(11)
SIZES = RNG.integers(20, 200, 60)
WRONG = RNG.binomial(SIZES, np.where(SIZES > 120, 0.4, 0.1))
RISKS = rb.ClientRisks(WRONG / SIZES, SIZES, binary=True, names=[f"H{number}" for number in range(60)])
NAME = "example_mean:200"


def test_with_equal_numbers_it_is_the_mean_over_clients():
    equal = rb.ClientRisks(RNG.binomial(80, 0.2, 30) / 80, 80)
    assert interval_of(equal, "example_mean:80", delta=0.1) == interval_of(equal, "mean", delta=0.1)
    (low, high), (lower, higher) = (interval_of(equal, f"example_mean:{most}", delta=0.1) for most in (80, 160))
    assert lower < low < high < higher  # what was known is less


def test_it_is_of_no_order_and_about_what_all_examples_show():
    certificate = rb.dispersion_certificate(RISKS, NAME, delta=0.1)
    pooled = WRONG.sum() / SIZES.sum()
    assert certificate.details["measured"] == pytest.approx(pooled, rel=1e-12)
    assert rb.measured_dispersion(RISKS, NAME) == pytest.approx(pooled, rel=1e-12)
    assert RISKS.values.mean() < certificate.lower < pooled < certificate.value
    backwards = interval_of(RISKS.of_clients(np.arange(60)[::-1]), NAME, delta=0.1)
    assert backwards == pytest.approx((certificate.lower, certificate.value), abs=1e-12)


def test_the_certificate_says_what_it_is_of_and_what_it_assumes():
    certificate = rb.dispersion_certificate(RISKS, NAME, delta=0.1)
    assert (certificate.name, certificate.method) == (NAME, "betting with constant stakes")
    assert "per example, not per client" in certificate.statement
    assert "no client can have more than 200 examples, which was known before any of them answered" in (
        certificate.assumptions
    )
    assert any("all its own, and not the size of a sample" in line for line in certificate.assumptions)
    stored = json.loads(certificate.to_json())
    assert rb.verify(stored).ok
    stored["recipe"]["answers"]["num_examples"][0] = 199  # it counts here
    stored["recipe"]["answers"]["binary"] = False
    assert not rb.verify(stored).ok


@pytest.mark.parametrize(
    ("ask", "rule"),
    [
        (
            lambda: interval_of(RISKS, "example_mean:150", delta=0.1),
            "at most 150 examples, got one of 199; name a number",
        ),
        (lambda: interval_of(RISKS, "example_mean", delta=0.1), "write 'example_mean:most_examples'"),
        (lambda: interval_of(RISKS, "example_mean:0.5", delta=0.1), "a whole number >= 1, got 0.5"),
        (
            lambda: interval_of(rb.band(RISKS, delta=0.1), NAME),
            "neither a band nor a distribution of risks says how many",
        ),
        (lambda: rb.dispersion_certificate(rb.band(RISKS, delta=0.1), NAME), "neither a band"),
        (lambda: rb.extremal_distributions(rb.band(RISKS, delta=0.1), NAME), "neither a band"),
        (
            lambda: rb.group_certificate(rb.group_bands(RISKS, ["a", "b"] * 30, delta=0.1), "largest_gap", NAME),
            "neither a band",
        ),
        (lambda: rb.plan(f"{NAME}<=0.4", prior="beta:0.1:0.05", num_examples=50, delta=0.1), "nor a distribution"),
        (lambda: rb.select({"only": RISKS}, objective=NAME, delta=0.1), "a term of an objective must be one of"),
        (
            lambda: interval_of(rb.ClientRisks(RISKS.values, SIZES, contamination=1), NAME, delta=0.1),
            "does not know missing or wrong answers; use the mean over clients",
        ),
        (
            lambda: interval_of(rb.ClientRisks(RISKS.values, SIZES, num_missing=1, missing="worst"), NAME, delta=0.1),
            "use the mean over clients",
        ),
        (
            lambda: interval_of(rb.ClientRisks(RISKS.values, SIZES, True, noise="laplace:9"), NAME, delta=0.1),
            "needs answers without noise",
        ),
    ],
)
def test_what_does_not_say_it_is_refused(ask, rule):
    with pytest.raises(ValueError, match=re.escape(rule)):
        ask()


def test_the_command_certifies_requires_shows_and_verifies_it(tmp_path, capsys):
    table, out, page, figure = (tmp_path / name for name in ("t.csv", "t.json", "t.html", "t.svg"))
    rows = zip(RISKS.names, RISKS.values.tolist(), SIZES.tolist(), strict=True)
    table.write_text("hospital,loss,n\n" + "".join(f"{name},{loss!r},{n}\n" for name, loss, n in rows))
    command = ["certify", str(table), "--num-examples", "n", "--client", "hospital", "--measure", NAME, "mean"]
    asked = ["--require", f"{NAME}<=0.6", f"{NAME}>=0.1", "--plot-dispersion", str(figure), "--out", str(out)]
    assert main([*command, *asked]) == 0
    assert capsys.readouterr().out.count("PASS: example_mean:200") == 2
    assert main(["verify", str(out)]) == 0
    assert main(["report", str(out), "--out", str(page)]) == 0
    shown = page.read_text()
    assert f"{WRONG.sum() / SIZES.sum():.4f}" in shown
    assert "ean risk per example, not per client" in shown
    capsys.readouterr()
    assert main([*command, "--at-once"]) == 2
    assert "nothing bounds 'example_mean:200' of a band, but of risks" in capsys.readouterr().err


def test_a_bound_of_one_says_how_many_clients_would_do():
    few = rb.dispersion_certificate(RISKS.of_clients(np.arange(4)), "example_mean:2000", delta=0.05)
    assert few.value == 1.0
    assert "4 clients are too few; with" in rb.verification.why_it_says_nothing(few)
