"""Federations whose examples have clients of their own: files of LEAF, centres of FLamby, natural ids of flwr-datasets.

Each returns `NaturalClients`, from which the library takes risks and a simulation its clients (docs/simulations.md).
Errors name files and clients, so they are no `RefusedError`, which a client would send to its server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.checks import checked_count, checked_seed
from riskband.answers.risks import ClientRisks
from riskband.checks import RefusedError

Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Inputs and labels, both of the same length; where inputs differ in shape, they are in an array of objects."""

_SHOWN = 5  # clients that an error names


@dataclass(frozen=True, eq=False)
class NaturalClients(Mapping[str, Pair]):
    """Clients by name, with the examples ``(x, y)`` that each holds; always in the same order.

    Examples of FLamby and flwr-datasets are read whenever a client is asked for, those of LEAF once.
    """

    readers: Mapping[str, Callable[[], Pair]]

    def __repr__(self) -> str:
        return f"NaturalClients({len(self)} clients)"

    def __getitem__(self, client: str) -> Pair:
        return self.readers[client]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.readers)

    def __len__(self) -> int:
        return len(self.readers)

    def __call__(self, partition_id: int) -> Pair:
        """Return what the client with this number holds: a run's ``dataset = "mine:clients"`` calls it so."""
        if not 0 <= partition_id < len(self):
            raise RefusedError(
                f"num-clients must be at most {len(self)}, the clients that there are, got more; lower it"
            )
        return self[list(self)[partition_id]]

    def split(self, num_clients: int, *, seed: int) -> tuple[NaturalClients, NaturalClients]:
        """Return so many clients drawn at random, and the others: to ask the first and train on the second.

        Raises ValueError unless there are more clients than that.
        """
        num_clients = checked_count("num_clients", num_clients, minimum=1, remedy="so many are asked")
        if num_clients >= len(self):
            raise ValueError(f"num_clients must be below {len(self)}, all there are, got {num_clients}; ask fewer")
        order = np.random.default_rng(checked_seed(seed)).permutation(list(self)).tolist()
        first, others = (
            NaturalClients({name: self.readers[name] for name in part})
            for part in (order[:num_clients], order[num_clients:])
        )
        return first, others

    def risks(self, losses: Callable[[Any, Any], npt.ArrayLike], **settings: Any) -> ClientRisks:
        """Return every client's mean loss, its number of examples and its name, in order of the names.

        Parameters
        ----------
        losses : function
            From (x, y) of a client to one loss in [0, 1] for each of its examples; True is a loss of 1.
        **settings
            As of `ClientRisks.from_examples`, such as ``answered_by="trainers"``.

        Raises
        ------
        ValueError
            If there is not one loss for each example of a client, or as for `ClientRisks.from_examples`.
        """
        measured = {}
        for name, (x, y) in self.items():
            measured[name] = np.asarray(losses(x, y), dtype=np.float64)
            if measured[name].shape != (len(y),):
                raise ValueError(
                    f"losses must give one number for each of the {len(y)} examples of client {name!r}, got shape "
                    f"{measured[name].shape}; return them before any mean is taken"
                )
        sizes = [values.size for values in measured.values()]
        return ClientRisks.from_examples(
            clients=np.repeat(list(measured), sizes), losses=np.concatenate(list(measured.values())), **settings
        )


def leaf(folder: str | Path) -> NaturalClients:
    """Return the users in the ``.json`` files of a folder of LEAF, such as ``data/test``, in order of their names.

    Hierarchies are left out: where LEAF splits by sample, they are not those of the users beside them.

    Raises ValueError if there are no such files or no users, a user stands there twice or holds no examples, or the
    numbers of inputs, of labels and of samples differ.
    """
    files = sorted(Path(folder).expanduser().glob("*.json"))
    if not files:
        raise ValueError(
            f"a folder of LEAF must hold .json files, got none in {folder}; run its preprocess.sh and name data/test"
        )
    found: dict[str, Pair] = {}
    for file in files:
        for user, num_samples, x, y in _users(file):
            if user in found:
                raise ValueError(
                    f"a user must stand once in the files, got {user!r} again in {file.name}; keep data/train, "
                    "data/test and every run of preprocess.sh in folders of their own"
                )
            if not len(x) == len(y) == num_samples:
                raise ValueError(
                    f"user {user!r} in {file.name} must have as many inputs and labels as num_samples says, got "
                    f"{len(x)}, {len(y)} and {num_samples}; run preprocess.sh again"
                )
            found[user] = _arrays(x, y)
    if not found:
        raise ValueError(
            f"files of LEAF must have users, got none in {len(files)}; run preprocess.sh with a smaller -k"
        )
    if empty := [user for user, (_, y) in found.items() if not len(y)]:
        raise ValueError(
            f"every user must hold examples, got {len(empty)} with none: {', '.join(empty[:_SHOWN])}; run preprocess.sh"
            ' with -k 1, or take them out of "users" and "num_samples": what is certified is about users with examples'
        )
    return NaturalClients({user: partial(found.__getitem__, user) for user in sorted(found)})


def flamby(dataset: Callable[..., Any], *, num_centers: int, train: bool = False, **settings: Any) -> NaturalClients:
    """Return the centres of a dataset of FLamby: center-0, center-1 and so on.

    Parameters
    ----------
    dataset : class
        Such as ``flamby.datasets.fed_heart_disease.FedHeartDisease``; called as ``dataset(center=0, train=False,
        pooled=False)``.
    num_centers : int
        ``NUM_CLIENTS`` of the same package.
    train : bool
        Whether to read the part for training; its model must not have seen what is certified on.
    **settings
        What else the class takes, such as ``data_path``.

    Raises
    ------
    ValueError
        If `num_centers` is no whole number of at least 1; when a centre is read, if it holds no pairs (x, y).
    """
    count = checked_count("num_centers", num_centers, minimum=1, remedy="it is NUM_CLIENTS of the dataset's package")

    def read(center: int) -> Pair:
        examples = dataset(center=center, train=train, pooled=False, **settings)
        pairs = [examples[index] for index in range(len(examples))]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise ValueError(
                f"center {center} must hold pairs (x, y), got {len(pairs[0]) if pairs else 'no'} values; give a class "
                "of yours that takes center, train and pooled and holds pairs"
            )
        return _arrays(*zip(*pairs, strict=True))

    return NaturalClients({f"center-{center}": partial(read, center) for center in range(count)})


def by_natural_id(partitioner: Any, *, x: str, y: str) -> NaturalClients:
    """Return the clients of flwr-datasets' ``NaturalIdPartitioner``, by their natural ids, in its order.

    Parameters
    ----------
    partitioner : NaturalIdPartitioner
        Its ``dataset`` is set; that of a ``FederatedDataset`` is ``federated.partitioners["train"]``.
    x, y : str
        The columns of inputs and of labels.

    Raises
    ------
    ValueError
        If it is no such partitioner, has no dataset, some example has no id, or there is no such column.
    """
    try:
        names = [str(partitioner.partition_id_to_natural_id[k]) for k in range(partitioner.num_partitions)]
        columns = partitioner.dataset.column_names
    except Exception as error:  # flwr-datasets, datasets and pyarrow raise things of their own
        raise ValueError(
            "partitioner must be a NaturalIdPartitioner with a dataset whose examples all have an id, got "
            f'{type(partitioner).__name__} ({error}); set its dataset, or give federated.partitioners["train"]'
        ) from error
    if missing := {x, y}.difference(columns):
        raise ValueError(
            f"x and y must be columns of {', '.join(columns)}, got {', '.join(sorted(missing))}; name others"
        )

    def read(number: int) -> Pair:
        partition = partitioner.load_partition(number)
        return _arrays(partition[x], partition[y])

    return NaturalClients({name: partial(read, number) for number, name in enumerate(names)})


def _users(file: Path) -> list[tuple[str, int, list[Any], list[Any]]]:
    """Each user's name, number of samples, inputs and labels; LEAF leaves data of users that it dropped in the file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        listed, data = zip(content["users"], content["num_samples"], strict=True), content["user_data"]
        return [(user, size, list(data[user]["x"]), list(data[user]["y"])) for user, size in listed]
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"a file of LEAF must have users, num_samples of each, and x and y of each in user_data, but {file.name} "
            f"has {type(error).__name__} ({error}); leave only files of LEAF in its folder"
        ) from error


def _arrays(x: Iterable[Any], y: Iterable[Any]) -> Pair:
    """Arrays of rows; one number a label is flat, also FLamby's (num_examples, 1), and whole ones are integers."""
    inputs, labels = _array(x), _array(y)
    if labels.size == len(labels) and labels.dtype.kind in "biuf":
        labels = labels.reshape(-1)
        labels = labels.astype(np.int64) if np.all(labels % 1 == 0) else labels
    return inputs, labels


def _array(values: Iterable[Any]) -> npt.NDArray[Any]:
    rows = list(values)
    try:
        return np.stack([np.asarray(row) for row in rows])
    except ValueError:  # shapes that differ, or no rows
        return np.fromiter(rows, dtype=object, count=len(rows))
