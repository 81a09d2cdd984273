"""``python -m papers.fetch NAME [--data DIR]``: write a public data set as DIR/NAME.npz.

Images come from the Hugging Face hub; what is not there is said with the place where it is to be had.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from papers.experiment import DATA_FOLDER
from worlds.datasets import load_dataset

SOURCES = {
    "mnist": "hf:ylecun/mnist#image,label",
    "fashion_mnist": "hf:zalando-datasets/fashion_mnist#image,label",
    "cifar10": "hf:uoft-cs/cifar10#img,label",
}
BY_HAND = {
    "movielens_1m": "download ml-1m.zip from https://grouplens.org/datasets/movielens/1m/ (for research, not to be "
    'passed on), and in its folder: python -c "import numpy; from worlds.movielens import load_ratings; '
    "numpy.savez('movielens_1m.npz', **vars(load_ratings('ratings.dat')))\"; then give that folder as --data",
    "cifar10_cnn": "download the package cifar-10-model 7.4.0 and convert its weights as docs/simulations.md says",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 the file is written, 2 it is not."""
    parser = argparse.ArgumentParser(prog="python -m papers.fetch", description="Write a data set.")
    parser.add_argument("name", choices=[*SOURCES, *BY_HAND])
    parser.add_argument("--data", metavar="DIR", type=Path, default=DATA_FOLDER, help="folder of the data sets")
    options = parser.parse_args(arguments)
    if options.name in BY_HAND:
        print(f"error: {options.name} cannot be fetched: {BY_HAND[options.name]}", file=sys.stderr)
        return 2
    try:
        path = write(SOURCES[options.name], options.data.expanduser() / f"{options.name}.npz")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(path)
    return 0


def write(source: str, path: Path) -> Path:
    """Write the data set of that name as a file for ``"npz:PATH"``, its images as uint8; return the path."""
    data = load_dataset(source)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        x_train=_bytes(data.x_train),
        y_train=data.y_train.astype(np.uint8),
        x_test=_bytes(data.x_pool),
        y_test=data.y_pool.astype(np.uint8),
    )
    return path


def _bytes(x: np.ndarray) -> np.ndarray:
    return np.rint(x * np.float32(255)).astype(np.uint8)


if __name__ == "__main__":
    sys.exit(main())
