"""Every command line of `riskband` in README.md and docs/ works as it is written, on small tables with its names."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from riskband.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# Other tests run these: logs of other tools, folders of runs, ledgers, other extras.
ELSEWHERE = ("--from", ".jsonl", "/srv/days", "results", "--past", ".xlsx", "--pilot ")
COLUMNS = "hospital,site,client,loss,accuracy,auc,minutes,n,num_examples,patients,w,region,chain,country"


def written(page):
    """The lines of `riskband` on a page, in the order in which a reader meets them; `…` is the line before it."""
    text = page.read_text(encoding="utf-8").replace(" \\\n", " ")
    for line in text.splitlines():
        if line.startswith("riskband "):
            yield line.split("  #")[0].strip()
        elif line.startswith("| "):
            for code in re.findall(r"`((?:riskband |… |--)[^`]+)`", line):
                if page.name == "README.md":  # elsewhere a table names commands and options
                    start = "" if code.startswith("riskband ") else "riskband certify risks.csv --num-examples 100 "
                    yield start + code.removeprefix("… ")


LINES = [
    (page.name, line)
    for page in PAGES
    for line in dict.fromkeys(written(page))
    if not any(word in line for word in ELSEWHERE)
]
SLOW = re.compile(r"riskband plan|--cluster|next:|--divergence kl")


def table(path, *, size, seed, first=0, percent=False):
    """Of clients with 100 examples each; 100 times their accuracy if it is to be in percent."""
    rng, lines = np.random.default_rng(seed), [COLUMNS]
    for k, loss in enumerate(rng.binomial(100, rng.beta(1.5, 12.0, size)) / 100):
        name, accuracy = f"h{first + k}", round((1 - loss) * (100 if percent else 1), 4)
        values = f"{loss},{accuracy},{1 - loss:.4f},{loss * 300:.1f}"
        place = f"{('north', 'south')[k % 2]},c{k // 2},{('CH', 'DE', 'FR')[k % 3]}"
        lines.append(f"{name},{name},{name},{values},100,100,100,{1 + k % 3},{place}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path, monkeypatch, coarse_plans):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("riskband.worst_cases.requirements._LARGEST_TRIED", 100)  # no estimate, which takes time
    for name in ("docs/examples", "docs/figures"):
        Path(name).mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "examples" / "risks.csv", "docs/examples")
    for seed, name in enumerate(("risks", "old", "before", "auc", "wait", "accuracies", "source")):
        table(Path(f"{name}.csv"), size=16, seed=seed)
    for seed, name in enumerate(("new", "a", "b")):
        table(Path(f"{name}.csv"), size=16, seed=10 + seed)
    for name in ("ten", "few", "answers"):
        table(Path(f"{name}.csv"), size=10, seed=20, first=100)
    Path("days").mkdir()
    for seed in range(2):
        table(Path(f"days/{seed}.csv"), size=16, seed=30 + seed)
    Path("shares.csv").write_text("region,share\nnorth,0.4\nsouth,0.6\n")
    assert main(["certify", "risks.csv", "--num-examples", "100", "--mean", "--out", "certificate.json"]) == 0
    assert main(["report", "certificate.json", "-o", "report.html"]) == 0
    return tmp_path


@pytest.mark.parametrize(
    ("page", "line"),
    [
        pytest.param(page, line, marks=[pytest.mark.slow] * (page != "README.md" or bool(SLOW.search(line))))
        for page, line in LINES
    ],
    ids=[f"{page}-{k}" for k, (page, _) in enumerate(LINES)],
)
def test_a_command_works_as_it_is_written(page, line, folder, capsys):
    if "--percent" in line:
        table(Path("accuracies.csv"), size=16, seed=5, percent=True)
    capsys.readouterr()
    for path in re.findall(r"--out (\S+)", line):
        Path(path).unlink(missing_ok=True)
    status = main(shlex.split(line)[1:])
    assert status in (0, 1, 3), (page, line, capsys.readouterr().err)


def test_the_lines_of_the_readme_are_among_them():
    of_readme = [line for page, line in LINES if page == "README.md"]
    assert len(of_readme) >= 17
    assert any("--sampling-weight" in line for line in of_readme)
    assert len(LINES) > 40


def test_what_cannot_be_so_is_refused_with_a_true_remedy(folder, capsys):
    usual = ["certify", "docs/examples/risks.csv", "--num-examples", "100"]
    for asked, remedy in (
        (["--population", "55"], "population must be above the number of clients asked, 200, got 55; count all"),
        (["--sampling-weight", "num_examples"], "--largest-weight"),
        (["--missing", "odds:3"], "--missing odds:3 needs --num-missing"),
        (["--measure", "std"], "got 'std'; say 'coefficient_of_variation', the standard deviation over the mean"),
        (["--measure", "gni"], "got 'gni'; say 'gini'"),
        (["--measure", "median"], "got 'median'; say 'quantile:0.5'"),
    ):
        assert main([*usual, *asked]) == 2
        assert remedy in capsys.readouterr().err, asked


def test_a_page_without_jinja2_says_what_to_install(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", "certificate.json", "-o", "other.html"]) == 2
    assert 'pip install "riskband[report]"' in capsys.readouterr().err
    assert not Path("other.html").exists()
