"""The `riskband` command, used as a user would: files in, printed numbers, files and exit status out."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import riskband as rb
from riskband.answers.responses import FRESH_CLIENTS
from riskband.cli import COMMANDS, main
from riskband.functionals.functional import interval_of
from riskband.report.findings import findings
from riskband.wording import TRAINERS_ANSWERED, rounded_down, rounded_up

NUM_EXAMPLES = 100


@pytest.fixture
def losses():
    rng = np.random.default_rng(3)
    return rng.binomial(NUM_EXAMPLES, rng.beta(3, 21, 60)) / NUM_EXAMPLES


@pytest.fixture
def table(tmp_path, losses):
    path = tmp_path / "risks.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "loss", "n", "accuracy"])
        for index, loss in enumerate(losses):
            writer.writerow([f"client-{index}", loss, NUM_EXAMPLES, 100 - 100 * loss])
    return path


def run(*arguments):
    return main(["certify", *map(str, arguments)])


def certificates(path):
    entries = json.loads(path.read_text())["certificates"]
    return {name: rb.Certificate.from_dict(entry) for name, entry in entries.items()}


def test_certificates_are_those_of_the_library(tmp_path, table, losses, capsys):
    out = tmp_path / "certificate.json"
    status = run(table, "--num-examples", 100, "--delta", 0.1, "--divergence", "chi2", "--budget", 0.2, "--out", out)
    assert status == 0
    risks = rb.ClientRisks(losses, NUM_EXAMPLES)
    (worst,) = certificates(out).values()  # one number is asked for, and has all of delta
    expected = rb.worst_case_mean(risks, divergence="chi2", budget=0.2, delta=0.1)
    np.testing.assert_array_equal(worst.value, expected.value)
    printed = capsys.readouterr().out
    assert f"(10\u00a0% of the clients may become 23.5\u00a0%) <= {rounded_up(worst.value)}" in printed
    assert "with probability at least 0.9 this holds (delta = 0.1):" in printed
    assert run(table, "--num-examples", 100, "--delta", 0.1, "--out", out) == 0
    found, part = certificates(out), 0.1 / 3
    assert found["mean"].value == rb.mean_bound(risks, delta=part).value
    assert found["quantile:0.9"].value == rb.quantile(risks, 0.9, delta=part).value
    assert found["cvar:0.9"].value == rb.cvar(risks, 0.9, delta=part).value
    assert "0.9 all of this holds together (delta = 0.1, shared among 3: 0.0334 each):" in capsys.readouterr().out


def test_numbers_stand_alone_unless_all_are_wanted_at_once(tmp_path, table, losses, capsys):
    out, found, printed = tmp_path / "certificate.json", {}, {}
    asked = ("--mean", "--quantile", 0.9, "--cvar", 0.9, "--divergence", "chi2", "--measure", "gini", "--survival", 0.3)
    for flags in ((), ("--at-once",)):
        assert run(table, "--num-examples", 100, *asked, "--target", 0.3, "--out", out, *flags) == 0
        printed[flags] = capsys.readouterr().out.splitlines()
        found[flags] = certificates(out)
        assert main(["verify", str(out)]) == 0
        capsys.readouterr()
    alone, together = found.values()
    numbers = {"mean", "quantile:0.9", "cvar:0.9", "share:0.3", "gini", "mean@chi2"}
    assert alone.keys() == numbers
    assert together.keys() == numbers | {"share@chi2"}
    assert {each.recipe["band"] is None for each in alone.values()} == {True}
    assert {json.dumps(each.recipe["band"]) for each in together.values()} == {
        json.dumps({"delta": 0.05, "method": "berk_jones", "local": "marginal", "sides": "two", "eta": "every"})
    }
    assert {each.delta for each in alone.values()} == {0.05 / 6}
    said = "with probability at least 0.95 all of this holds together (delta = 0.05"
    assert f"{said}, shared among 6: 0.00834 each):" in printed[()]
    assert f"{said} for one band, off which all is read):" in printed["--at-once",]
    assert any("in χ² divergence it is certified that the mean risk is at most 0.3" in line for line in printed[()])


def test_number_of_examples_may_be_a_column(tmp_path, table, capsys):
    assert run(table, "--num-examples", "n") == 0
    by_column = capsys.readouterr().out
    assert run(table, "--num-examples", "100") == 0
    assert capsys.readouterr().out == by_column


def test_accuracies_in_percent_give_the_same_certificates(table, capsys):
    assert run(table, "--num-examples", "n") == 0
    from_losses = capsys.readouterr().out
    assert run(table, "--num-examples", "n", "--column", "accuracy", "--percent") == 0
    from_percent = capsys.readouterr().out
    assert from_percent.splitlines()[2:] == from_losses.splitlines()[2:]
    assert "'loss' read as losses, where 0 is best" in from_losses.splitlines()[1]
    assert "'accuracy' read as accuracies in percent" in from_percent.splitlines()[1]


def test_percent_without_the_flag_is_an_error_that_names_it(table, capsys):
    assert run(table, "--num-examples", "n", "--column", "accuracy") == 2
    error = capsys.readouterr().err
    assert "--percent" in error
    assert "[0, 1]" in error


def test_percent_flag_on_fractions_is_an_error(tmp_path, capsys):
    path = tmp_path / "fractions.csv"
    path.write_text("accuracy\n0.9\n0.8\n1\n")
    assert run(path, "--num-examples", 10, "--column", "accuracy", "--percent") == 2
    assert "no value of column 'accuracy' is above 1; drop --percent" in capsys.readouterr().err


def test_all_errors_are_shown_at_once(table, capsys):
    status = run(table, "--num-examples", "size", "--delta", 5, "--budget", -1, "--cvar", 1, "--plot", "x.gif")
    assert status == 2
    error = capsys.readouterr()  # and --budget needs --divergence
    assert error.out == ""
    lines = error.err.splitlines()
    assert len(lines) == 6
    for rule in (
        "delta must be in (0, 1)",
        "budget must be finite",
        "level must be one number in [0, 1)",
        "x.gif",
        "'size'",
    ):
        assert sum(rule in line for line in lines) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0.1", "abc", "7.3%"], "line 3: 'abc'; line 4: '7.3%'; write numbers alone"),
        (["0.1", "7", "abc"], "line 3: 7"),
        (
            ["0.1", "NaN", "NA"],
            "got none in line 3; line 4; --drop-missing drops such rows and counts them as missing\n",
        ),
        (["0.1", "-0.2"], "line 3: -0.2"),
        (["0.1"], "at least 2 clients"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path, capsys, rows, message):
    path = tmp_path / "bad.csv"
    path.write_text("client,loss\n" + "".join(f"c{i},{row}\n" for i, row in enumerate(rows)))
    assert run(path, "--num-examples", 10) == 2
    assert message in capsys.readouterr().err


def test_blanks_around_the_names_of_columns_are_no_part_of_them(tmp_path, capsys):
    path = tmp_path / "blanks.csv"
    path.write_text("client, loss, n \na, 0.1, 10\nb, 0.2, 10\n")
    assert run(path, "--num-examples", "n") == 0
    assert "2 clients with 10 examples each" in capsys.readouterr().out


def test_what_is_wrong_in_both_columns_is_said_at_once(tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("loss,n\n0.1,10\n1.5,\nabc,-1\n0.2,2.5\n-1,inf\n,many\n")
    assert run(path, "--num-examples", "n") == 2
    lines = capsys.readouterr().err.splitlines()
    for found in ("line 4: 'abc'", "none in line 7", "line 3: 1.5; line 6: -1", "none in line 3", "line 7: 'many'"):
        assert sum(found in line for line in lines) == 1
    assert sum("line 4: -1; line 5: 2.5; line 6: inf" in line and "whole numbers" in line for line in lines) == 1
    assert len(lines) == 6
    assert run(path, "--num-examples", "0") == 2
    error = capsys.readouterr().err
    assert "whole numbers from 1" in error
    assert "line 3: 1.5; line 6: -1" in error


def test_lines_are_counted_as_an_editor_does(tmp_path, capsys):
    path = tmp_path / "gaps.csv"
    path.write_text('client,loss\n\n"a\nb",0.1\n\nc,x\n')
    assert run(path, "--num-examples", 10) == 2
    assert "line 6: 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must have a header and a row for each client, got nothing"),
        (b"loss,loss\n0.1,0.2\n0.1,0.3\n", "once"),
        ("loss,größe\n0.1,1\n".encode("latin-1"), "UTF-8"),
        (b"loss\n" + b"1" * 200_000 + b"\n", "CSV"),
    ],
)
def test_odd_files_are_refused_in_words(tmp_path, capsys, content, message):
    path = tmp_path / "odd.csv"
    path.write_bytes(content)
    assert run(path, "--num-examples", 10) == 2
    assert message in capsys.readouterr().err


def test_huge_numbers_of_examples_are_refused(table, capsys):
    assert run(table, "--num-examples", "99999999999999999999") == 2
    assert "whole numbers from 1" in capsys.readouterr().err


def test_a_bound_of_one_is_called_what_it_is(table, capsys):
    assert run(table, "--num-examples", 100, "--quantile", 0.999) == 0
    printed = capsys.readouterr().out
    needed = rb.num_clients_needed(0.999, delta=0.05)  # all clients below a quantile: 0.999^K <= 0.05
    assert needed == 2995
    assert f"no bound below 1; 60 clients are too few; with {needed} that answer as these did it would be" in printed
    assert "1.0000" not in printed


def test_missing_file_is_an_error_with_its_name(capsys):
    assert run("absent.csv", "--num-examples", 10) == 2
    assert "absent.csv" in capsys.readouterr().err


def test_breakdown_is_printed_from_the_safe_end(table, losses, capsys):
    assert run(table, "--num-examples", 100, "--divergence", "kl", "--target", 0.4, "--at", 0.4) == 0
    band = rb.band(rb.ClientRisks(losses, 100), delta=0.025, sides="lower")  # the worst mean has the rest
    bracket = rb.breakdown(band, divergence="kl", target=0.4, threshold=0.4)
    printed = re.search(r"Up to budget ([0-9.]+) in KL divergence", capsys.readouterr().out)
    assert printed
    assert bracket.lower * (1.0 - 1e-3) <= float(printed[1]) <= bracket.lower


def test_figure_is_written_and_the_same_every_time(tmp_path, table):
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run(table, "--num-examples", 100, "--divergence", "kl", "--plot", path) == 0
    assert first.read_bytes() == second.read_bytes()
    assert b"<!-- certificate: at least this share in any network within" in first.read_bytes()


def test_what_cannot_be_written_is_refused_before_anything_is_computed(tmp_path, table, capsys):
    nowhere, there = tmp_path / "nowhere", tmp_path / "there.png"
    there.mkdir()
    status = run(
        *(table, "--num-examples", 100, "--delta", 5, "--out", nowhere / "x.json", "--plot", there),
        *("--measure", "gini", "--plot-dispersion", table / "x.png"),
    )
    assert status == 2
    error = capsys.readouterr()
    assert error.out == ""
    lines = error.err.splitlines()
    assert len(lines) == 4
    assert f"make {nowhere} first" in lines[1]
    assert f"--plot must be a file, got '{there}'" in lines[2]
    assert "--plot-dispersion must be in a folder" in lines[3]
    assert not nowhere.exists()
    assert run(table, "--num-examples", 100, "--out", "") == 2


def test_verify_accepts_what_certify_wrote_and_nothing_else(tmp_path, table, capsys):
    out = tmp_path / "certificate.json"
    assert run(table, "--num-examples", 100, "--divergence", "kl", "tv", "--out", out) == 0
    assert main(["verify", str(out)]) == 0
    document = json.loads(out.read_text())
    document["certificates"]["mean@kl"]["value"][0] = 0.0
    out.write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["verify", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "mean@kl: DOES NOT FOLLOW" in printed
    assert "value: stored [0.0" in printed
    statement = next(line for line in printed.splitlines() if "statement: stored" in line)
    assert len(set(re.findall(r"0\.\d{4} at budget 0\.05", statement))) == 2  # a long field is shown where it differs


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "{}",
        "[1, 2]",
        '{"schema": "riskband.certificate/999"}',
        '{"schema": "riskband.certificates/1", "certificates": {}}',
        '{"schema": "riskband.certificates/1"}',
        '{"schema": "riskband.certificates/1", "certificates": [1]}',
        '{"schema": "riskband.certificates/1", "certificates": {"mean": null}}',
        "[" * 100_000,
    ],
)
def test_verify_refuses_other_files(tmp_path, capsys, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    assert main(["verify", str(path)]) == 2
    assert capsys.readouterr().err.startswith("riskband: ")


def test_single_certificate_files_are_verified_too(tmp_path, losses):
    path = tmp_path / "single.json"
    rb.mean_bound(rb.ClientRisks(losses, 100), delta=0.05).save(path)
    assert main(["verify", str(path)]) == 0


def test_command_is_installed(tmp_path):
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="riskband")
    assert entry.load() is main
    assert Path(rb.__file__).name == "__init__.py"


def test_dispersion_is_certified_on_both_sides(tmp_path, table, losses, capsys):
    out = tmp_path / "certificate.json"
    assert run(table, "--num-examples", 100, "--measure", "gini", "atkinson:0.5", "--out", out) == 0
    found = certificates(out)["gini"]
    again = rb.dispersion_certificate(rb.ClientRisks(losses, NUM_EXAMPLES), "gini", delta=0.025)
    assert (found.lower, found.value) == (again.lower, again.value)
    assert f"{rounded_down(found.lower)} <= the Gini coefficient" in capsys.readouterr().out
    assert main(["verify", str(out)]) == 0


def test_a_flag_may_be_given_again(tmp_path, table):
    out = tmp_path / "certificate.json"
    assert (
        run(table, "--num-examples", 100, "--measure", "gini", "--measure", "hoover", "--quantile", 0.5, "--out", out)
        == 0
    )
    assert certificates(out).keys() == {"gini", "hoover", "quantile:0.5"}  # what was asked, and nothing else


def test_the_figure_of_dispersion_shows_the_measures_and_is_the_same_every_time(tmp_path, table, losses, capsys):
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        measures = ("--measure", "gini", "hoover", "--at-once")
        assert run(table, "--num-examples", 100, *measures, "--plot-dispersion", path) == 0
    assert f"figure: {second}" in capsys.readouterr().out
    assert first.read_bytes() == second.read_bytes()
    risks = rb.ClientRisks(losses, NUM_EXAMPLES)
    lower, upper = interval_of(rb.band(risks, delta=0.05), "hoover")
    assert f"<!-- Hoover index: {rounded_down(lower, 3)} to {rounded_up(upper, 3)} -->".encode() in first.read_bytes()
    assert run(table, "--num-examples", 100, "--measure", "gini", "hoover", "--plot-dispersion", first) == 0
    lower, upper = interval_of(risks, "gini", delta=0.05 / 3)  # beside the band, a number that stands alone
    drawn = first.read_bytes()
    assert f"<!-- Gini coefficient: {rounded_down(lower, 3)} to {rounded_up(upper, 3)} -->".encode() in drawn
    assert b"each by itself" in drawn


def test_the_figure_of_dispersion_needs_measures_and_a_known_ending(table, capsys):
    assert run(table, "--num-examples", 100, "--plot-dispersion", "x.gif") == 2
    error = capsys.readouterr().err
    assert "--plot-dispersion must end in one of .png, .svg, .pdf, got 'x.gif'" in error
    assert "--plot-dispersion needs --measure" in error


def test_unknown_measures_are_refused(table, capsys):
    assert run(table, "--num-examples", 100, "--measure", "ginny") == 2
    assert "number must be one of" in capsys.readouterr().err


def test_missing_and_wrong_answers_reach_every_certificate(tmp_path, table, losses, capsys):
    out = tmp_path / "certificate.json"
    doubt = ("--num-missing", 3, "--missing", "worst", "--contamination", 2)
    asked = ("--mean", "--cvar", 0.9, "--measure", "gini")
    assert run(table, "--num-examples", 100, *doubt, *asked, "--out", out) == 0
    risks = rb.ClientRisks(losses, NUM_EXAMPLES, num_missing=3, missing="worst", contamination=2)
    found, part = certificates(out), 0.05 / 3
    assert found["mean"].value == rb.mean_bound(risks, delta=part).value
    assert found["cvar:0.9"].value == rb.cvar(risks, level=0.9, delta=part).value
    assert found["gini"].value == interval_of(rb.band(risks, delta=part), "gini").upper
    printed = capsys.readouterr().out
    assert "Clients asked without a valid answer: 3, counted as the worst possible" in printed
    assert "Answers that may be wrong in any way: up to 2, which the bounds allow for" in printed
    assert "shared among 3, one of them a band: 0.0167 each" in printed
    assert "missing at random" not in printed
    assert main(["verify", str(out)]) == 0


def test_answers_of_trainers_certify_nothing(tmp_path, table, losses, capsys):
    out, figure = tmp_path / "certificate.json", tmp_path / "band.svg"
    options = (table, "--num-examples", 100, "--measure", "gini", "--divergence", "kl", "--target", 0.5)
    assert run(*options, "--out", out, "--plot", figure) == 0
    printed = capsys.readouterr().out
    assert f"  - {FRESH_CLIENTS}" in printed
    assert printed.splitlines()[0].startswith(f"taken as true: {FRESH_CLIENTS}; if they had, nothing is certified")
    assert "NOTHING IS CERTIFIED" not in printed
    assert {each.validity for each in certificates(out).values()} == {"certificate"}
    assert run(*options, "--answered-by", "trainers", "--out", out, "--plot", figure) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith(f"NOTHING IS CERTIFIED: {TRAINERS_ANSWERED}; ")
    assert f"  - {TRAINERS_ANSWERED}" in printed
    assert FRESH_CLIENTS not in printed
    assert "[certificate]" not in printed
    assert "with probability at least" not in printed
    assert {each.validity for each in certificates(out).values()} == {"estimate"}
    assert main(["verify", str(out)]) == 0
    out.write_text(out.read_text().replace('"validity": "estimate"', '"validity": "certificate"'))
    assert main(["verify", str(out)]) == 1
    with pytest.raises(SystemExit, match="2"):
        run(*options, "--answered-by", "friends")


@pytest.mark.parametrize("flags", [(), ("--json",), ("--tune", "mean"), ("--require", "mean<=0.9"), ("--at-once",)])
@pytest.mark.parametrize(("taken", "other"), [("fresh", "trainers"), ("trainers", "fresh")])
def test_the_first_line_says_who_made_the_model_and_how_to_change_it(table, capsys, flags, taken, other):
    said = () if taken == "fresh" else ("--answered-by", taken)
    run(table, "--num-examples", 100, *said, *flags)
    printed = capsys.readouterr()
    first = (printed.err if "--json" in flags else printed.out).splitlines()[0]
    assert (FRESH_CLIENTS if taken == "fresh" else TRAINERS_ANSWERED) in first
    assert first.endswith(f"say --answered-by {other}")


def test_missing_and_wrong_answers_are_checked_with_everything_else(table, capsys):
    doubt = ("--missing", "worst", "--contamination", -1)
    assert run(table, "--num-examples", 100, "--delta", 3, *doubt) == 2
    printed = capsys.readouterr().err
    assert printed.count("contamination must be a whole number >= 0, got -1") == 1
    assert "--missing worst needs --num-missing" in printed
    assert "delta must be in (0, 1)" in printed
    assert run(table, "--num-examples", 100, "--contamination", 60) == 2
    assert "contamination must be below the number of clients that answered, 60" in capsys.readouterr().err


def test_noisy_answers_are_named_and_refused_with_percentages(tmp_path, losses, capsys):
    out, path = tmp_path / "certificate.json", tmp_path / "answers.csv"
    answers = losses + np.random.default_rng(5).integers(-20, 21, losses.size) / NUM_EXAMPLES
    path.write_text("loss\n" + "\n".join(f"{value:.17g}" for value in answers) + "\n")
    assert answers.min() < 0.0
    assert run(path, "--num-examples", 100, "--binary", "--noise", "laplace:0.2", "--out", out) == 0
    risks = rb.ClientRisks(answers, NUM_EXAMPLES, binary=True, noise="laplace:0.2")
    assert certificates(out)["mean"].value == rb.mean_bound(risks, delta=0.05 / 3).value
    text = capsys.readouterr().out
    assert "Noise for privacy: laplace:0.2, on every answer" in text
    assert "discrete Laplace noise of its own (epsilon = 0.2 for an answer of one number)" in text
    assert run(path, "--num-examples", 100) == 2
    assert "must lie in [0, 1]" in capsys.readouterr().err
    assert run(path, "--num-examples", 100, "--noise", "laplace:0", "--percent", "--delta", 2) == 2
    problems = capsys.readouterr().err
    assert "--noise needs losses" in problems
    assert "delta must be in (0, 1)" in problems


@pytest.mark.parametrize(
    ("digits", "note"), [(5, "0-1 losses (inferred"), (1, "by chance; for a 0-1 loss say --binary")]
)
def test_rounded_counts_are_recognised_and_a_doubt_is_said(tmp_path, capsys, digits, note):
    path = tmp_path / "rounded.csv"
    counts = np.random.default_rng(0).binomial(33, 0.2, 40)
    path.write_text("loss\n" + "\n".join(f"{count / 33:.{digits}f}" for count in counts) + "\n")
    assert run(path, "--num-examples", 33) == 0
    assert note.replace("by chance", "may be chance") in capsys.readouterr().out


def test_too_many_examples_are_suspected(table, capsys):
    assert run(table, "--num-examples", 100) == run(table, "--num-examples", 1_000, "--binary") == 0
    assert "too large" not in capsys.readouterr().out
    assert run(table, "--num-examples", 1_000) == 0
    assert (
        "CHECK --num-examples, which may be too large: values * num_examples are multiples" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("flags", "scale"), [(["--accuracy"], 1), (["--percent"], 100), (["--accuracy", "--percent"], 100)]
)
@pytest.mark.parametrize("num_examples", [150, 3_000_017])
def test_accuracies_give_the_certificates_of_exact_counts(tmp_path, capsys, flags, scale, num_examples):
    counts = np.random.default_rng(1).binomial(num_examples, 0.1, 30)
    out, found = tmp_path / "certificate.json", []
    for name, values, more in (
        ("loss", counts / num_examples, []),
        ("accuracy", scale * (1.0 - counts / num_examples), ["--column", "accuracy", *flags]),
    ):
        path = tmp_path / f"{name}.csv"
        path.write_text(f"{name}\n" + "\n".join(map(repr, values.tolist())) + "\n")
        assert run(path, "--num-examples", num_examples, *more, "--quantile", 0.8, "--out", out) == 0
        assert "0-1 losses" in capsys.readouterr().out
        found.append(certificates(out)["quantile:0.8"].value)
    assert found[0] < 1.0
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_accuracies_of_float32_keep_their_counts(tmp_path, capsys):
    path = tmp_path / "accuracy.csv"
    counts = np.random.default_rng(1).binomial(150, 0.1, 30)
    path.write_text("accuracy\n" + "\n".join(str(value) for value in (1 - counts / 150).astype(np.float32)) + "\n")
    assert run(path, "--num-examples", 150, "--column", "accuracy", "--accuracy") == 0
    assert f"mean loss {np.mean(counts / 150):.4f}" in (text := capsys.readouterr().out)
    assert "0-1 losses" in text


def shares_of(num_examples, values):
    return "client,accuracy,n\n" + "".join(f"c{k},{value},{num_examples}\n" for k, value in enumerate(values))


@pytest.mark.parametrize(
    ("num_examples", "values", "flag", "said"),
    [
        (1, [0.75, 0.95, 1.0, 0.9], "--accuracy", "line 2: 0.75 of 1 example is impossible (as in 3 of 4 clients)"),
        (1, [75, 95, 100, 90], "--percent", "line 2: 0.75 of 1 example is impossible (as in 3 of 4 clients)"),
        (38, [0.5, 0.891768, 0.851161, 0.965024], "--accuracy", "line 3: 0.891768 of 38 examples is impossible"),
    ],
)
def test_accuracies_that_are_no_share_of_the_examples_are_refused(tmp_path, capsys, num_examples, values, flag, said):
    path = tmp_path / "accuracy.csv"
    path.write_text(shares_of(num_examples, values))
    asked = [path, "--num-examples", "n", "--column", "accuracy", flag]
    assert run(*asked) == 2
    assert said in (error := capsys.readouterr().err)
    assert "is num_examples the number of batches?" in error
    assert run(*asked, "--not-binary") == 0  # the user's word that these are means of other numbers
    assert run(*asked, "--contamination", 3) == 0  # or that they are wrong


@pytest.mark.parametrize("flags", [["--accuracy"], [], ["--accuracy", "--not-binary"], ["--noise", "laplace:9"]])
def test_a_column_of_scores_is_refused_by_its_name(tmp_path, capsys, flags):
    path = tmp_path / "auc.csv"
    path.write_text(shares_of(10, [0.9, 0.8, 1.0]).replace("accuracy", "val_AUC"))
    assert run(path, "--num-examples", "n", "--column", "val_AUC", *flags) == 2
    assert "'val_AUC' names a score (auc) that is no mean" in capsys.readouterr().err


def test_losses_that_may_lie_anywhere_need_a_word_and_others_are_marked(tmp_path, capsys):
    path = tmp_path / "loss.csv"
    path.write_text("loss,cross_entropy,n\n0.123,0.123,10\n0.3456,0.3456,10\n")
    asked = [path, "--num-examples", "n"]
    assert run(*asked, "--column", "cross_entropy") == 2
    assert "say --not-binary, otherwise give the accuracy" in capsys.readouterr().err
    assert run(*asked, "--column", "cross_entropy", "--not-binary") == run(*asked) == 0
    first, second = capsys.readouterr().out.split("column 'loss'")
    assert "losses anywhere in [0, 1]\n" in first
    assert "those of a cross-entropy do not lie there" in second


@pytest.mark.usefixtures("coarse_plans")
def test_clients_without_examples_are_missing_by_name(tmp_path, table, losses, capsys):
    out, more = tmp_path / "certificate.json", tmp_path / "more.csv"
    rows = table.read_text().splitlines()
    more.write_text("\n".join([rows[0], "empty,,0,", *rows[1:], "nothing,NaN,0.0,100"]) + "\n")
    assert run(more, "--num-examples", "n", "--num-missing", 3, "--missing", "worst", "--out", out) == 0
    said = capsys.readouterr()
    named = "riskband: warning: 2 clients have 0 examples and count as missing: empty, nothing\n"
    assert said.err == named
    assert "Clients asked without a valid answer: 5, counted as the worst possible" in said.out
    known = rb.ClientRisks(losses, NUM_EXAMPLES, num_missing=5, missing="worst")
    assert certificates(out)["mean"].value == rb.mean_bound(known, delta=0.05 / 3).value
    more.write_text(f"{rows[0]}\nempty,,0,\n{rows[1]}\n")
    assert run(more, "--num-examples", "n") == 2
    assert "at least 2 clients" in capsys.readouterr().err
    assert main(["plan", "mean<=0.3", "--pilot", str(table), "--pilot-num-examples", "n"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_accuracies_out_of_range_are_told_the_right_flag(table, capsys):
    assert run(table, "--num-examples", "n", "--column", "accuracy", "--accuracy") == 2
    assert "for accuracies in percent add --percent" in capsys.readouterr().err
    assert run(table, "--num-examples", "n", "--accuracy", "--noise", "laplace:1") == 2
    assert "--noise needs losses, not accuracies" in capsys.readouterr().err


def test_decimal_commas_between_commas_get_a_hint(tmp_path, capsys):
    path = tmp_path / "european.csv"
    path.write_text('client,loss\na,"0,1"\nb,"0,25"\n')
    assert run(path, "--num-examples", 10) == 2
    assert "line 2: '0,1'; line 3: '0,25'; write a point for a decimal comma" in capsys.readouterr().err


def test_names_are_understood_in_any_case(tmp_path, table):
    found = []
    for names in (("KL", "Gini", "DKW", "Marginal"), ("kl", "gini", "dkw", "marginal")):
        out = tmp_path / "out.json"
        flags = zip(("--divergence", "--measure", "--method", "--local"), names, strict=True)
        assert run(table, "--num-examples", 100, *(word for pair in flags for word in pair), "--out", out) == 0
        found.append(out.read_bytes())
    assert found[0] == found[1]


def test_a_tiny_delta_is_not_printed_as_certainty(table, capsys):
    assert run(table, "--num-examples", 100, "--delta", 1e-17, "--method", "dkw") == 0
    said = capsys.readouterr().out
    assert "with probability at least 1 - 1e-17 all of this holds together (delta = 1e-17 for one band" in said


def test_a_figure_without_matplotlib_is_refused_before_anything_is_computed(tmp_path, table, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(table, "--num-examples", 100, "--plot", tmp_path / "x.png", "--out", tmp_path / "x.json") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    wanted = 'riskband: figures need matplotlib, which is not installed; run: pip install "riskband[plots]"\n'
    assert printed.err == wanted
    assert not list(tmp_path.glob("x.*"))


def test_rows_with_more_values_than_the_header_are_refused(tmp_path, capsys):
    """A decimal comma moves what follows into the next column: the losses would be read as 0."""
    path = tmp_path / "commas.csv"
    path.write_text("client,loss,n\n" + "".join(f"h{i},0,{i},100\n" for i in range(11, 51)))
    assert run(path, "--num-examples", "n") == 2
    assert (
        "every row must have 3 values, as the header has, got more in line 2 (40 such rows)" in capsys.readouterr().err
    )


def test_no_file_is_overwritten_by_another(table, tmp_path, capsys):
    before = table.read_bytes()
    for files in (("--out", table), ("--out", tmp_path / "a.png", "--plot", tmp_path / "a.png")):
        assert run(table, "--num-examples", 100, *files) == 2
        assert "must be different files" in capsys.readouterr().err
    assert table.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("--budget", 0.1), "--budget needs --divergence"),
        (("--pilot-share", 0.3), "--pilot-share needs --tune"),
        (("--num-examples", "-5"), "must be whole numbers from 1"),
        (("--num-examples", "1.5"), "must be whole numbers from 1"),
    ],
)
def test_options_without_an_effect_and_wrong_counts_are_refused(table, capsys, arguments, rule):
    assert main(["certify", str(table), "--num-examples=100", *(f"{a}" for a in arguments)]) == 2
    assert rule in capsys.readouterr().err


def test_how_many_clients_would_do_counts_the_missing_in_proportion(tmp_path, losses, capsys):
    path = tmp_path / "risks.csv"
    path.write_text("loss\n" + "\n".join(map(str, losses[:50])) + "\n")
    # 6 of 56 are missing, more than the tenth of the clients that the quantile leaves out: more of the same never do.
    assert run(path, "--num-examples", 100, "--num-missing", 6, "--missing", "worst", "--quantile", 0.9) == 0
    assert "it would stay 1 with 4,096 clients" in capsys.readouterr().out


def changed(*path, to):
    """A change of what a file holds: of what is at the end of a path."""

    def change(document):
        *before, last = path
        for key in before:
            document = document[key]
        document[last] = to(document[last])

    return change


CHANGES = {
    "clients reversed": changed("findings", "clients", to=lambda names: names[::-1]),
    "an unknown number unbounded": changed("findings", "unbounded", to=lambda _: ["foo"]),
    "a bounded number unbounded": changed("findings", "unbounded", to=lambda _: ["cvar:0.9"]),
    "a certified number unbounded": changed("findings", "unbounded", to=lambda _: ["mean"]),
    "verdict": changed("gate", "verdict", to=lambda _: "PASS"),
    "exit status": changed("gate", "exit_status", to=lambda _: 0),
    "no assumptions": changed("gate", "assumptions", to=lambda _: []),
    "delta": changed("gate", "delta", to=lambda delta: 2 * delta),
    "statement": changed("gate", "requirements", 0, "statement", to=lambda said: said.replace("FAIL", "PASS")),
    "upper end": changed("gate", "requirements", 0, "upper", to=lambda upper: upper / 2),
    "a verdict twice": changed("gate", "requirements", to=lambda each: each + each[:1]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_verify_finds_what_does_not_follow_beside_the_certificates(change, tmp_path, table):
    out = tmp_path / "failed.json"
    required = ("--client", "client", "--mean", "--require", "mean<=0.01", "mean@chi2:0.1<=0.05")
    assert run(table, "--num-examples", 100, *required, "--out", out) == 1
    assert main(["verify", str(out)]) == 0
    document = json.loads(out.read_text())
    change(document)
    out.write_text(json.dumps(document))
    assert main(["verify", str(out)]) == (2 if "foo" in document["findings"]["unbounded"] else 1)


def test_what_nothing_bounds_is_verified_too(tmp_path):
    table, out = tmp_path / "risks.csv", tmp_path / "unbounded.json"
    table.write_text("loss\n" + "0\n0.2\n" * 30)
    ratio, entropy = "quantile_ratio:0.1:0.9", "generalised_entropy:-1"  # of risks of 0 without a largest value
    assert (
        run(table, "--num-examples", 100, "--mean", "--measure", entropy, "--require", f"{ratio}<=9", "--out", out) == 3
    )
    document = json.loads(out.read_text())
    assert document["findings"]["unbounded"] == [ratio, entropy]
    assert main(["verify", str(out)]) == 0
    document["findings"]["unbounded"].pop(0)  # which is required
    out.write_text(json.dumps(document))
    assert main(["verify", str(out)]) == 1


def test_certificates_without_what_they_say_together_are_no_whole_file(tmp_path, table, capsys):
    out = tmp_path / "failed.json"
    assert run(table, "--num-examples", 100, "--require", "mean<=0.01", "mean<=0.9", "--out", out) == 1
    document = json.loads(out.read_text())
    del document["findings"], document["gate"]
    out.write_text(json.dumps(document))
    for arguments in (["verify", str(out)], ["report", str(out), "-o", str(tmp_path / "page.html")]):
        assert main(arguments) == 2
        assert "has no findings" in capsys.readouterr().err


def test_a_verdict_needs_every_certificate_that_it_follows_from(tmp_path, table, capsys):
    out = tmp_path / "failed.json"
    assert run(table, "--num-examples", 100, "--require", "mean@chi2:0.1<=0.05", "--out", out) == 1
    kept = {name: each for name, each in certificates(out).items() if name != "mean"}
    out.write_text(json.dumps(findings(kept).to_document() | {"gate": json.loads(out.read_text())["gate"]}))
    capsys.readouterr()
    assert main(["verify", str(out)]) == 1
    assert "verdicts DO NOT FOLLOW" in capsys.readouterr().out


def test_names_in_certificates_are_those_that_a_page_says(tmp_path, table):
    out, page, other = (tmp_path / name for name in ("out.json", "page.html", "other.html"))
    assert run(table, "--num-examples", 100, "--client", "client", "--mean", "--out", out) == 0
    assert main(["report", str(out), "-o", str(page)]) == 0
    document = json.loads(out.read_text())
    document["findings"]["clients"].reverse()
    out.write_text(json.dumps(document))
    assert main(["report", str(out), "-o", str(other)]) == 0
    shown, again = (each.read_text().partition('<script type="application/json"')[0] for each in (page, other))
    rows = re.compile(r'<th scope="row"[^>]*>client-\d+')
    assert rows.findall(shown) == rows.findall(again) != []


def test_a_page_of_two_files_with_one_quantity_is_verified(tmp_path, losses, capsys):
    files, page = [tmp_path / f"mean-{delta}.json" for delta in (0.05, 0.01)], tmp_path / "page.html"
    for path, delta in zip(files, (0.05, 0.01), strict=True):
        rb.mean_bound(rb.ClientRisks(losses, 100), delta=delta).save(path)
    assert main(["report", *map(str, files), "-o", str(page)]) == 0
    assert main(["verify", str(page)]) == 0
    assert "0.94" in page.read_text()  # that of both, whichever is shown


def test_verify_says_what_it_verified_and_whether_it_is_a_certificate(tmp_path, table, capsys):
    out = tmp_path / "estimate.json"
    assert run(table, "--num-examples", 100, "--answered-by", "trainers", "--out", out) == 0
    capsys.readouterr()
    assert main(["verify", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("follows from its answers, as an ESTIMATE: Estimate, not a proved bound") == 3
    stored = json.loads(out.read_text())
    stored["certificates"]["mean"]["assumptions"].pop(2)
    stored["certificates"]["cvar:0.9"]["recipe"]["function"] = "other"
    out.write_text(json.dumps(stored))
    assert main(["verify", str(out)]) == 2
    captured = capsys.readouterr()
    assert "assumptions: the certificate lacks 'the clients that answered helped to train" in captured.out
    assert "cvar:0.9: function of a recipe must be one of" in captured.err
    assert "quantile:0.9: follows" in captured.out


def test_choices_are_listed_in_one_line_and_the_weaker_of_two_assumptions_is_left_out(table, capsys):
    assert run(table, "--num-examples", 100, "--quantile", 0.5, 0.9, "--method", "Berk-Jones") == 0
    printed = capsys.readouterr().out
    assert "chosen before any answer was seen: level 0.5, level 0.9\n" in printed + "\n"
    assert "every example's loss lies in [0, 1]" not in printed


@pytest.mark.parametrize(
    ("asked", "verdict", "status"),
    [
        (["mean<=0.6", "quantile:0.8<=0.9"], "PASS", 0),
        (["mean<=0.6", "mean<=0.125"], "NOT DECIDED", 3),
        (["mean<=0.125", "mean<=0.01"], "FAIL", 1),
    ],
)
def test_requirements_decide_the_exit_status(tmp_path, table, losses, capsys, asked, verdict, status):
    out = tmp_path / "certificate.json"
    given = ("--require", asked[0], "--require", asked[1])  # as often as one likes
    assert run(table, "--num-examples", 100, *given, "--out", out) == status
    gate = rb.require(rb.ClientRisks(losses, 100), asked, delta=0.05)
    printed = capsys.readouterr().out
    for line in (*gate.statement.splitlines(), f"{verdict} (exit status {status})"):
        assert line in printed
    assert json.loads(out.read_text())["gate"] == gate.to_dict()
    assert main(["verify", str(out)]) == 0
    assert {f"require {name}": each for name, each in certificates(out).items()} == gate.certificates


@pytest.mark.parametrize("flags", [("--at-once",), ("--num-missing", 2, "--missing", "worst"), ("--contamination", 1)])
def test_requirements_are_read_off_a_band_where_nothing_stands_alone(tmp_path, table, capsys, flags):
    out = tmp_path / "certificate.json"
    asked = ("--measure", "gini", "--require", "mean<=0.6", "gini<=0.95")
    assert run(table, "--num-examples", 100, *asked, *flags, "--out", out) == 0
    found = certificates(out)
    assert found["mean"].recipe["band"] == found["gini"].recipe["band"]
    assert found["mean"].recipe["band"]["sides"] == "two"


def test_letters_that_the_output_lacks_are_escaped(table, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    assert run(table, "--num-examples", 100, "--divergence", "chi2", "--budget", 0.1) == 0
    assert b"\\u03c7\xb2 divergence" in written.getvalue()


class StoppedReader(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_a_reader_who_stops_reading_changes_neither_files_nor_status(tmp_path, table, monkeypatch):
    out = tmp_path / "certificate.json"
    monkeypatch.setattr(sys, "stdout", StoppedReader())
    assert run(table, "--num-examples", 100, "--require", "mean<=0.01", "--out", out) == 1
    stored = json.loads(out.read_text())
    stored["certificates"]["mean"]["value"] = 0.9
    out.write_text(json.dumps(stored))
    monkeypatch.setattr(sys, "stdout", StoppedReader())
    assert main(["verify", str(out)]) == 1


def test_what_is_no_requirement_is_an_error(table, capsys):
    assert run(table, "--num-examples", 100, "--require", "mean<=30", "ginny<=0.1", "--delta", 5) == 2
    error = capsys.readouterr()
    assert error.out == ""
    assert len(error.err.splitlines()) == 3
    assert "divide a percentage by 100" in error.err


def test_json_is_printed_and_nothing_else(tmp_path, table, capsys):
    out = tmp_path / "certificate.json"
    table.write_text("\n".join(table.read_text().splitlines()[:21]))  # so few are soon tuned for
    tuned = ("--tune", "cvar:0.9", "--plot", tmp_path / "band.svg")
    assert run(table, "--num-examples", 100, "--require", "mean<=0.9", "--out", out, "--json", *tuned) == 0
    printed = capsys.readouterr()
    assert printed.out == out.read_text()
    assert "figure:" in printed.err
    assert main(["verify", str(out), "--json"]) == 0
    document = json.loads(out.read_text())
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["certificates"].keys() == document["certificates"].keys()
    document["certificates"]["mean"]["value"] = 0.95
    out.write_text(json.dumps(document))
    assert main(["verify", str(out), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert {name for name, each in found["certificates"].items() if not each["ok"]} == {"mean"}
    assert any(line.startswith("value: stored 0.95") for line in found["certificates"]["mean"]["problems"])
    assert found["certificates"]["mean"]["statement"] is None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_speaks_json(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--json" in capsys.readouterr().out


def test_a_page_with_requirements_says_their_verdicts(table, tmp_path, capsys):
    out, page = tmp_path / "certificate.json", tmp_path / "page.html"
    asked = "--require", "mean<=0.3", "mean<=0.01", "gini<=0.95"
    for flags, verdicts in (
        (("--measure", "mean", "gini"), ["PASS", "FAIL", "PASS"]),
        (("--at-once", "--sides", "two", "--mean"), ["PASS", "NOT DECIDED", "PASS"]),  # its mean is bounded from above
    ):
        assert run(table, "--num-examples", 100, *flags, "--out", out) == 0
        capsys.readouterr()
        assert main(["report", str(out), "-o", str(page), *asked]) == 0
        said = capsys.readouterr().out.splitlines()
        assert [line.partition(":")[0] for line in said] == ["report", *verdicts]
    assert run(table, "--num-examples", 100, "--mean", "--out", out) == 0
    assert main(["report", str(out), "-o", str(page), *asked]) == 2
    assert "hold no certificate of gini, and no band with both sides to read it off" in capsys.readouterr().err


def test_what_a_page_says_as_json(table, tmp_path, capsys):
    out, page = tmp_path / "c.json", tmp_path / "page.html"
    main(["certify", str(table), "--num-examples", "100", "--out", str(out)])
    capsys.readouterr()
    assert main(["report", str(out), "-o", str(page), "--require", "mean<=0.9", "--public", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    stored = json.loads(out.read_text())["certificates"]
    assert said["statements"] == {name: entry["statement"] for name, entry in stored.items()}
    assert (said["page"], said["public"], said["gate"]["verdict"]) == (str(page), True, "PASS")
    assert page.exists()


def test_the_next_clients_share_delta_and_are_said_by_risks(tmp_path, table, losses, capsys):
    out, risks = tmp_path / "certificate.json", rb.ClientRisks(losses, NUM_EXAMPLES)
    shift = ("--divergence", "chi2", "--budget", 0.1)
    assert run(table, "--num-examples", 100, "--next", 20, *shift, "--quantile", 0.9, "--out", out) == 0
    found, printed = certificates(out), capsys.readouterr().out
    assert list(found) == ["quantile:0.9", "largest@next:20:chi2"]
    expected = rb.next_clients(risks, 20, delta=0.025, divergence="chi2", budget=[0.0, 0.1]).value
    np.testing.assert_array_equal(found["largest@next:20:chi2"].value, expected)
    for budget, bounds in zip(("0", "0.1"), expected, strict=True):
        said = re.findall(rf"budget {budget}: at most (\d+) of 20 measure a risk above ([\d.]+)\n", printed)
        assert said
        for most, risk in said:  # and it is said of each risk with the least number
            assert bounds[int(most)] <= float(risk) < bounds[int(most) - 1]
    assert main(["verify", str(out)]) == 0


def test_few_clients_say_nothing_of_the_worst_of_many_next_ones(tmp_path, capsys):
    path = tmp_path / "few.csv"
    path.write_text("loss\n0.1\n0.2\n0.3\n")
    assert run(path, "--num-examples", 10, "--next", 4, "--not-binary", "--delta", 0.02) == 0
    assert "    all 4 may measure any risk\n" in capsys.readouterr().out
    assert run(path, "--num-examples", 10, "--next", 1, "--not-binary") == 0
    assert "3 clients are too few; with 19 that answer as these did it would be just below 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("num_clients", "delta", "needed", "alone"), [(2, 0.05, 39, 29), (10, 0.01, 55, 44), (24, 0.2, 26, 16)]
)
def test_few_clients_say_most_of_the_next_one(tmp_path, losses, capsys, num_clients, delta, needed, alone):
    """The next is above the largest of K with probability 1/(K + 1), which is no part of the delta that was asked."""
    path, out, answers = tmp_path / "few.csv", tmp_path / "c.json", np.round(losses[:num_clients], 2)
    path.write_text("loss\n" + "\n".join(map(str, answers)) + "\n")
    asked = (path, "--num-examples", 100, "--delta", delta, "--out", out)
    assert run(*asked) == 0
    printed, found = capsys.readouterr().out, certificates(out)
    of_next = 1 / (num_clients + 1)
    assert list(found) == ["mean", "next_client"]
    mean, one = found.values()
    assert (one.value, one.delta) == (answers.max(), pytest.approx(of_next))
    assert (mean.value, mean.delta) == (rb.mean_bound(rb.ClientRisks(answers, 100), delta=delta).value, delta)
    said = json.loads(out.read_text())["findings"]
    assert (said["delta"], said["beside"]) == (delta, ["next_client"])
    assert f"with probability at least {1 - delta:g} this holds (delta = {delta:g}):\n  the mean risk" in printed
    ((itself,),) = (re.findall(rf"<= {one.value:.4f} \(by itself with probability at least ([\d.]+):", printed),)
    assert 1.0 - of_next - 0.001 < float(itself) <= 1.0 - of_next + 1e-12
    assert f"needs {needed} clients or more beside the other numbers at delta = {delta:g}, and {alone} if it" in printed
    assert "1.0000" not in printed
    assert "no bound below 1" not in printed or num_clients == 2
    assert main(["verify", str(out)]) == 0
    capsys.readouterr()
    assert run(*asked, "--quantile", 0.5) == run(*asked, "--contamination", 1) == 0  # whatever is named, or in doubt
    assert "the next client" not in capsys.readouterr().out


def test_what_is_required_of_the_next_clients_has_a_status(tmp_path, table, losses, capsys):
    out, at = tmp_path / "c.json", float(np.sort(losses)[-3])  # two of sixty are above it
    for limit, status, verdict in ((5, 0, "PASS"), (1, 3, "NOT DECIDED")):
        assert run(table, "--num-examples", 100, "--require", f"count:{at}@next:20<={limit}", "--out", out) == status
        printed = capsys.readouterr().out
        assert f"{verdict}: count:{at}@next:20<={limit} is required" in printed
        assert f"  0 <= the number of clients, of the next 20, that would measure a risk above {at} <= " in printed
        assert main(["verify", str(out)]) == 0
        assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
        assert f"of the next 20, that would measure a risk above {at}" in (tmp_path / "page.html").read_text()
    changed = out.read_text().replace("NOT DECIDED", "PASS")
    out.write_text(changed)
    assert main(["verify", str(out)]) == 1
    assert (
        run(table, "--num-examples", 100, "--require", "count:0.3@next:20<=3", "--noise", "laplace:5", "--binary") == 2
    )
    assert "needs answers without noise" in capsys.readouterr().err


def test_the_others_of_a_federation_and_what_it_must_be(table, losses, capsys):
    assert run(table, "--num-examples", 100, "--population", 75) == 0
    bound = rb.next_clients(rb.ClientRisks(losses, NUM_EXAMPLES), population=75, delta=0.05).value[-1]
    assert f"at most 14 of 15 measure a risk above {rounded_up(bound)}" in capsys.readouterr().out
    assert run(table, "--num-examples", 100, "--population", 61, "--delta", 0.5) == 0
    assert "the risk that 1 other of 61 clients would measure <= " in capsys.readouterr().out
    assert run(table, "--num-examples", 100, "--population", 60) == 2
    assert "population must be above the number of clients asked, 60, got 60" in capsys.readouterr().err
    assert run(table, "--num-examples", 100, "--population", 0, "--next", 0, "--divergence", "kl") == 2
    problems = capsys.readouterr().err
    for problem in ("--next must be a whole number >= 1, got 0", "--population must be", "--population takes no"):
        assert problem in problems


def test_the_mean_beside_a_population_is_that_of_the_others(tmp_path, table, losses, capsys):
    out = tmp_path / "c.json"
    assert run(table, "--num-examples", 100, "--population", 75, "--mean", "--out", out) == 0
    bound = rb.next_clients(rb.ClientRisks(losses, NUM_EXAMPLES), population=75, delta=0.025, mean=True).value
    printed = capsys.readouterr().out
    assert f"  the mean risk that 15 others of 75 clients would measure <= {rounded_up(bound)}\n" in printed
    assert "unseen clients" not in printed
    assert main(["verify", str(out)]) == 0
    assert run(table, "--score", "auc", "--column", "loss", "--lower-is-better", "--population", 75, "--mean") == 0
    assert (
        f"the mean auc that 15 others of 75 clients would measure <= {rounded_up(bound)}\n" in capsys.readouterr().out
    )


@pytest.mark.parametrize("flags", [["--population", 61], ["--population", 75, "--next", 1]])
@pytest.mark.parametrize("of_score", [False, True])
def test_the_mean_of_one_is_said_once_and_takes_no_part_of_delta(table, losses, capsys, flags, of_score):
    kind = ["--score", "auc", "--column", "loss", "--lower-is-better"] if of_score else ["--num-examples", 100]
    assert run(table, *kind, *flags, "--mean", "--delta", 0.2) == 0
    printed = capsys.readouterr().out
    who = f"that 1 other of {flags[1]} clients would measure <= "
    # Of the 61 clients of which one is not asked, each is the worst of all with probability 1/61: math §3.9.
    largest = np.sort(losses)[-int(0.2 * 61)]
    assert printed.count(who) == 1
    assert f"{who}{rounded_up(largest)}" in printed
    assert "delta = 0.2)" in printed


def test_names_of_clients_do_not_speak_to_the_terminal(tmp_path, capsys):
    """Those of a table stand in what is printed, in errors and in warnings, also where that is the standard error."""
    hostile = "\x1b[2J\u202eclient\r\nPASS"
    for name, last in (("old", ["0.9", "10"]), ("new", ["1.0", "10"]), ("empty", ["", "0"])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["who", "loss", "n"], ["a", "0.1", "10"], ["b", "0.2", "10"]])
            csv.writer(file).writerow([hostile, *last])
    old, new, empty = (str(tmp_path / f"{name}.csv") for name in ("old", "new", "empty"))
    columns = ["--client", "who", "--num-examples", "n"]
    for words in (
        ["certify", old, *columns],
        ["certify", empty, *columns],
        ["compare", old, new, *columns],
        ["compare", old, new, *columns, "--json"],
    ):
        assert main(words) == 0
        said = capsys.readouterr()
        text = said.err if "--json" in words else said.out + said.err
        assert r"\x1b[2J\u202eclient\r\nPASS" in text
        assert text.replace("\n", "").replace("\u00a0", "").isprintable()


def test_a_target_for_nothing_is_refused(table, capsys):
    asked = (table, "--num-examples", 100, "--divergence", "chi2", "--target", 0.5)
    assert run(*asked, "--next", 5) == 2
    assert "--target needs --mean beside --next" in capsys.readouterr().err
    for more in ((), ("--next", 5, "--mean")):
        assert run(*asked, *more) == 0
        assert "in χ² divergence it is certified that the mean risk is at most 0.5" in capsys.readouterr().out
    assert run(*asked, "--next", 5, "--at", 0.4) == 0
    assert "in χ² divergence it is certified that" in capsys.readouterr().out


def test_a_population_takes_no_divergence_whatever_else_is_asked(table, capsys):
    asked = (table, "--num-examples", 100, "--population", 100, "--divergence", "chi2")
    for more in ((), ("--mean",)):
        assert run(*asked, *more) == 2
        error = capsys.readouterr().err
        assert "--population takes no --divergence" in error
        assert len(error.splitlines()) == 1


def test_what_is_said_twice_is_taken_once(table, capsys):
    asked = (table, "--num-examples", 100, "--divergence", "chi2", "--budget", 0.1, 0.2)
    assert run(*asked) == 0
    once = capsys.readouterr().out
    assert run(*asked, "0.10") == 0
    assert capsys.readouterr().out == once
