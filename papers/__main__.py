"""``python -m papers NAME --out DIR``: run an experiment, write NAME.json and NAME.svg, print a table.

Exit status: 0 both files are there; 2 the command line is wrong, or data are missing; the message says how to get them.
The same seed gives the same numbers: torch works on one thread.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import papers
from papers import EXPERIMENTS
from papers.experiment import DATA_FOLDER, Experiment, Request, load
from riskband.wording.pipes import read_by_a_pipe

EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:24} {load(name).paper}" for name in EXPERIMENTS))
        return 0
    if not options.name or not options.out:
        parser.error("give the name of an experiment and --out DIR, or --list")
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger(papers.__name__).setLevel(logging.INFO)  # what a long experiment is doing
    out = options.out.expanduser().absolute()
    try:
        experiment = load(options.name)
        request = Request(
            data=options.data.expanduser().absolute(),
            quick=options.quick,
            clients=options.clients,
            seed=options.seed,
            panels=tuple(options.panels),
            cache=out,
            settings=dict(options.set),
            device=options.device,
            checkpoint=options.checkpoint,
            model=options.model,
            dataset_of_model=options.dataset,
        )
        experiment.check(request)
        out.mkdir(parents=True, exist_ok=True)
        content = performed(experiment, request)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    _write(experiment, content, out)
    print(table(content["result"].get("table", ())))
    print("".join(f"{remark}\n" for remark in content["result"].get("remarks", ())), end="")
    print(f"{content['seconds']['cpu']:.0f} s of CPU; {out / experiment.name}.json, .svg")
    return 0


def performed(experiment: Experiment, request: Request) -> dict[str, Any]:
    """Run an experiment; return what its JSON file holds."""
    import torch  # after the command line is found right

    torch.set_num_threads(1)  # the sums of several threads have other last digits
    cpu, wall = time.process_time(), time.monotonic()
    result = experiment.run(request)
    seconds = {"cpu": round(time.process_time() - cpu, 1), "wall": round(time.monotonic() - wall, 1)}
    asked: dict[str, Any] = {
        "quick": request.quick,
        "clients": request.clients,
        "seed": request.seed,
        "panels": list(request.panels),
        "settings": dict(request.settings),
    }
    if request.device != Request.device:
        asked["device"] = request.device
    if request.checkpoint is not None:
        asked |= {"checkpoint": str(request.checkpoint), "model": request.model, "dataset": request.dataset_of_model}
    return {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "request": asked,
        "result": result,
        "seconds": seconds,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows that have the same keys as text, in columns."""
    if not rows:
        return ""
    lines = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _write(experiment: Experiment, content: dict[str, Any], out: Path) -> None:
    import matplotlib as mpl

    from riskband.plots.bands import save_figure

    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (out / f"{experiment.name}.json").write_text(text + "\n", encoding="utf-8")
    with mpl.rc_context({"svg.fonttype": "none"}):  # text as text: panels have much of it
        save_figure(experiment.figure(content["result"]), out / f"{experiment.name}.svg")


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be NAME=NUMBER, got {text!r}; write it as epochs=50") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m papers",
        description="Run an experiment of the papers: numbers as NAME.json, a figure as NAME.svg.",
        epilog=f"Experiments: {', '.join(EXPERIMENTS) or 'none'}. Data: python -m papers.fetch.",
    )
    parser.add_argument("name", nargs="?", help="which experiment")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder for the files, and for models trained on the way"
    )
    parser.add_argument("--list", action="store_true", help="say which experiments there are")
    parser.add_argument(
        "--data", metavar="DIR", type=Path, default=DATA_FOLDER, help="folder of the data sets (NAME.npz)"
    )
    parser.add_argument(
        "--clients", metavar="K", type=int, help="clients of each network (default: the paper's number)"
    )
    parser.add_argument("--quick", action="store_true", help="a small version on embedded digits, without any file")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="seed of everything random")
    parser.add_argument("--panels", metavar="NAME", nargs="+", default=[], help="make these panels only")
    parser.add_argument(
        "--set", metavar="NAME=NUMBER", nargs="+", type=_setting, default=[], help="replace numbers of the experiment"
    )
    parser.add_argument("--device", default=Request.device, help="where models compute: auto, cpu or cuda")
    parser.add_argument("--checkpoint", metavar="FILE", type=Path, help="examine a model of yours, too: its weights")
    parser.add_argument("--model", metavar="NAME", default=Request.model, help="... its name, as in a run's config")
    parser.add_argument(
        "--dataset",
        metavar="NAME",
        default=Request.dataset_of_model,
        help="... its data: digits, or NAME.npz of --data",
    )
    return parser


if __name__ == "__main__":
    sys.exit(read_by_a_pipe(main))
