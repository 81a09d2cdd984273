"""``python -m tests.wheel dist/*.whl``: the wheel on every Python that is at hand, with the lowest and newest numpy.

Each in a virtual environment of its own: the README's first example, a certificate from the keyboard, and its check. A
Python that is not at hand is named and left out; what fails ends with status 1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWEST = ("numpy", "scipy")
# The first releases that have wheels for a Python are the lowest there.
LOWEST = {
    "3.11": ("numpy==2.0.0", "scipy==1.13.0"),
    "3.12": ("numpy==2.0.0", "scipy==1.13.0"),
    "3.13": ("numpy==2.1.0", "scipy==1.14.1"),
    "3.14": ("numpy==2.3.2", "scipy==1.16.1"),
}


def commands(environment: Path, example: Path) -> Iterator[list[str]]:
    """What must end with status 0."""
    python, certificate = str(environment / "bin" / "python"), str(environment / "certificate.json")
    risks = [str(ROOT / "docs" / "examples" / "risks.csv"), "--num-examples", "100"]
    yield [python, str(example)]
    yield [python, "-m", "riskband", "certify", *risks, "--divergence", "kl", "--measure", "gini", "--out", certificate]
    yield [python, "-m", "riskband", "verify", certificate]


def interpreter(version: str) -> str | None:
    """Return the Python of this version, if there is one that starts."""
    found = shutil.which(f"python{version}")
    versions = Path.home() / ".pyenv" / "versions"
    places = [*([found] if found else []), *map(str, versions.glob(f"{version}.*/bin/python"))]
    return next((each for each in places if subprocess.run([each, "-V"], capture_output=True).returncode == 0), None)


def main(wheel: str) -> int:
    """Try them all; return how many failed, at most 1."""
    (block, *_) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    failed = False
    for version, lowest in LOWEST.items():
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not here")
            continue
        for wanted in (lowest, NEWEST):
            with tempfile.TemporaryDirectory() as folder:
                environment, example = Path(folder), Path(folder, "example.py")
                example.write_text(block)
                subprocess.run([python, "-m", "venv", folder], check=True)
                pip = [str(environment / "bin" / "pip"), "install", "-q", "--only-binary", ":all:", wheel, *wanted]
                runs = [pip, *commands(environment, example)]
                ended = [subprocess.run(each, cwd=folder, capture_output=True, text=True) for each in runs]
                wrong = next((each for each in ended if each.returncode), None)
                print(f"Python {version}, {' '.join(wanted)}: {'works' if wrong is None else wrong.stderr[-500:]}")
                failed |= wrong is not None
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
