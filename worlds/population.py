"""Simulated networks: client k is a real pool of images under the shift drawn for client k.

Given the pool, client distributions P_0, P_1, … are i.i.d. draws from one meta-distribution μ, and the
examples of client k are i.i.d. draws from P_k: the two assumptions every certificate rests on hold
exactly here. Nothing is partitioned, so clients do not compete for images and their number has no limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.checks import checked_count, checked_number, checked_seed
from protocol.examples import Examples
from worlds.corruptions import CorruptionShift, corruption_shift
from worlds.datasets import load_dataset
from worlds.shifts import (
    AffineShift,
    ColourShift,
    DirichletLabelShift,
    DrawnShift,
    ResolutionShift,
    RotationShift,
    RowAffineShift,
    Shift,
    combined,
    combined_versions,
)
from worlds.versions import ImageVersion, Original

# The first number of every seed's spawn key; 2 is that of `worlds.targets`, 3 of `client.simulated`.
_STREAMS = {"source": 0, "unseen": 1, "training": 4, "target": 6}
_TRAINING_EXAMPLES = 5
_GROUP_STREAM = 1000  # added to a network's number

NETWORKS = tuple(_STREAMS)
"""Random streams of their own, for the network that answers, one that nobody has measured, one that trains only, and
a target network, whose shifts are to be others; with the same shifts they are drawn from the same μ."""


@dataclass(frozen=True)
class ClientGroup:
    """Clients of one kind, under shifts of their own, which come before those that all clients have.

    The name, 1 to 100 printable characters, is what the clients of the group answer with.
    """

    name: str
    shifts: tuple[Shift, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not (1 <= len(self.name) <= 100 and self.name.isprintable()):
            raise ValueError(
                f"name of a group must be 1 to 100 printable characters, got {self.name!r}; give a short word"
            )
        _check_shifts(self.shifts)


@dataclass(frozen=True)
class PopulationSpec:
    """Everything that decides the data of every client; two equal specs give the same bytes."""

    dataset: str = "digits"
    """Name for `worlds.datasets.load_dataset`; its pool supplies the images."""
    seed: int = 0
    """≥ 0; also the seed of the dataset's split."""
    examples_per_client: int = 100
    """≥ 1, the number of examples each client holds."""
    shifts: tuple[Shift, ...] = (AffineShift(0.3), DirichletLabelShift(1.0))
    """What differs between clients, applied in this order; () makes all clients alike."""
    network: str = "source"
    """One of `NETWORKS`: disjoint random streams, the same meta-distribution."""
    groups: tuple[ClientGroup, ...] = ()
    """Each client belongs to one of them, all equally likely; () for no groups."""

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        remedy = "give the number of examples each client holds"
        checked_count("examples_per_client", self.examples_per_client, minimum=1, remedy=remedy)
        _check_shifts(self.shifts)
        if self.network not in NETWORKS:
            raise ValueError(
                f"network must be one of {', '.join(NETWORKS)}, got {self.network!r}; "
                "the unseen network serves to check a certificate, the training network to train, the target network "
                "to be another"
            )
        is_groups = isinstance(self.groups, tuple) and all(isinstance(group, ClientGroup) for group in self.groups)
        if not is_groups or len({group.name for group in self.groups}) < len(self.groups):
            raise ValueError(
                f"groups must be a tuple of ClientGroup objects with different names, got {self.groups!r}; "
                "give () for no groups"
            )

    @property
    def versions(self) -> tuple[ImageVersion, ...]:
        """All versions of images that a client may hold, in a fixed order; at least one."""
        own = [group.shifts + self.shifts for group in self.groups] or [self.shifts]
        found = (combined_versions([shift.versions for shift in shifts]) or (Original(),) for shifts in own)
        return tuple(dict.fromkeys(version for versions in found for version in versions))

    def reversed(self) -> PopulationSpec:
        """Return the population whose shifts, also those of groups, are the reversed ones (`Shift.reversed`)."""
        groups = tuple(replace(each, shifts=tuple(shift.reversed() for shift in each.shifts)) for each in self.groups)
        return replace(self, shifts=tuple(shift.reversed() for shift in self.shifts), groups=groups)

    def group(self, k: int) -> ClientGroup | None:
        """Return the group of client k ≥ 0, None if there are no groups."""
        k = checked_count("k", k, minimum=0, remedy="clients are numbered from 0")
        if not self.groups:
            return None
        # A stream of its own: given its group, a client has the data that it would have without groups.
        stream = _GROUP_STREAM + _STREAMS[self.network]
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(stream, k)))
        return self.groups[int(rng.integers(len(self.groups)))]


@dataclass(frozen=True, eq=False)
class ClientDistribution:
    """A client distribution P_k itself, as finitely many weighted examples: R(P_k) = (weights * losses).sum().

    They are every image of the pool as the client may see it, (num_seen, *x_shape), and its label: one version after
    the other, of those that the client has, each after the transform. The weights sum to 1.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    weights: NDArray[np.float64]


class Population:
    """The clients of a network, built one at a time, on demand.

    Client k ≥ 0 depends on the spec and on k alone: not on the number of clients, nor on which were built before, nor
    in which process. Raises ValueError if the dataset cannot be loaded.
    """

    def __init__(self, spec: PopulationSpec) -> None:
        self.spec = spec
        self.data = load_dataset(spec.dataset, seed=spec.seed)

    @property
    def versions(self) -> tuple[ImageVersion, ...]:
        """All versions of images that a client may hold, in a fixed order; at least one."""
        return self.spec.versions

    def client(self, k: int) -> Examples:
        """Draw the examples of client k: i.i.d. from P_k, that is with replacement."""
        shift, rng = self._drawn_shift(k)
        return self._examples(shift, self.data.x_pool, self.data.y_pool, rng)

    def client_rows(self, k: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return what client k holds without making an image: the numbers of pool image and version, (num_examples,).

        Versions are numbered as in `versions`. With a transform the images that the client holds are others.
        """
        shift, rng = self._drawn_shift(k)
        index, version = self._rows(shift, self.data.y_pool, rng)
        numbers = {each: number for number, each in enumerate(self.versions)}
        return index, np.array([numbers[each] for each in shift.versions_or_original], dtype=np.intp)[version]

    def shift(self, k: int) -> DrawnShift:
        """Return the shift that client k drew."""
        return self._drawn_shift(k)[0]

    def training_examples(self, k: int) -> Examples:
        """Draw examples of client k for training: under its shift, of images that no client is asked about.

        As `client`, but from the training split in place of the pool. For a model that a certificate is to be made for,
        train on clients of the network "training": those of "source" answer. Raises ValueError if the training split
        has no image of the client's classes.
        """
        shift, _ = self._drawn_shift(k)
        key = (_TRAINING_EXAMPLES, _STREAMS[self.spec.network], int(k))
        rng = np.random.default_rng(np.random.SeedSequence(self.spec.seed, spawn_key=key))
        return self._examples(shift, self.data.x_train, self.data.y_train, rng)

    def distribution(self, k: int) -> ClientDistribution:
        """Return P_k, the distribution that the examples of client k are drawn from."""
        shift, _ = self._drawn_shift(k)
        y, each = self.data.y_pool, shift.weights_of_versions
        held = np.flatnonzero(each > 0)
        index, version = np.tile(np.arange(len(y)), len(held)), np.repeat(held, len(y))
        x = shift.seen(self.data.x_pool, index=index, version=version)
        return ClientDistribution(x=x, y=y[index], weights=np.outer(each[held], shift.example_weights(y)).ravel())

    def _examples(
        self, shift: DrawnShift, x: NDArray[np.float32], y: NDArray[np.int64], rng: np.random.Generator
    ) -> Examples:
        index, version = self._rows(shift, y, rng)
        return Examples(x=shift.seen(x, index=index, version=version), y=y[index])

    def _rows(
        self, shift: DrawnShift, y: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Draw images by their numbers, then versions by theirs in `shift.versions_or_original`."""
        weights = shift.example_weights(y)
        index = rng.choice(len(weights), size=self.spec.examples_per_client, p=weights)
        return index, shift.draw_versions(rng, len(index))

    def _drawn_shift(self, k: int) -> tuple[DrawnShift, np.random.Generator]:
        """Return client k's shift and the generator its examples are to be drawn with."""
        k = checked_count("k", k, minimum=0, remedy="clients are numbered from 0")
        group = self.spec.group(k)
        shifts = self.spec.shifts if group is None else group.shifts + self.spec.shifts
        root = np.random.SeedSequence(self.spec.seed, spawn_key=(_STREAMS[self.spec.network], k))
        # One stream each, so that a shift added at the end of the tuple leaves all other draws alone.
        example_rng, *shift_rngs = map(np.random.default_rng, root.spawn(1 + len(shifts)))
        data = self.data
        parts = [
            shift.draw(rng, x_shape=data.x_pool.shape[1:], num_classes=data.num_classes)
            for shift, rng in zip(shifts, shift_rngs, strict=True)
        ]
        return combined(parts), example_rng


def spec_from_config(config: Mapping[str, Any], *, network: str = "source") -> PopulationSpec:
    """Read a population of a network, one of `NETWORKS`, from a run config.

    It needs the keys "dataset", "seed", "examples-per-client", "affine-sigma" and "dirichlet-concentration"; 0 for one
    of the last two means: no such shift. With strengths in "group-sigmas", such as "0.1,0.3", clients belong to the
    groups "sigma-0.1" and "sigma-0.3", and their affine shift has the strength of their group; with angles in
    "group-angles", such as "0,15", to "angle-0" and "angle-15", whose images are turned. The keys of `_listed_shifts`
    are lists too, and may be missing or empty. Others are ignored. Raises ValueError if a key is missing or
    its value breaks its rule.
    """
    sigma = _shift_strength(config, "affine-sigma")
    concentration = _shift_strength(config, "dirichlet-concentration")
    sigmas, angles = _numbers(config, "group-sigmas", minimum=0), _numbers(config, "group-angles")
    if sigmas and angles:
        raise ValueError('groups must differ in one thing, got group-sigmas and group-angles; give "" for one of them')
    affine: tuple[Shift, ...] = (AffineShift(sigma),) if sigma and not sigmas else ()
    label: tuple[Shift, ...] = (DirichletLabelShift(concentration),) if concentration else ()
    return PopulationSpec(
        dataset=_required(config, "dataset"),
        seed=_required(config, "seed"),
        examples_per_client=_required(config, "examples-per-client"),
        shifts=affine + label + tuple(_listed_shifts(config)),
        network=network,
        groups=groups_of(sigmas, angles),
    )


def groups_of(sigmas: Sequence[float], angles: Sequence[float]) -> tuple[ClientGroup, ...]:
    """Return the groups of a population whose groups differ in these strengths, or in these angles."""
    groups = tuple(ClientGroup(f"sigma-{each:.15g}", (AffineShift(each),)) for each in sigmas)
    return groups + tuple(ClientGroup(f"angle-{each:.15g}", (RotationShift((each,)),)) for each in angles)


def _listed_shifts(config: Mapping[str, Any]) -> Iterator[Shift]:
    """Yield the shifts whose key is a list; a new one comes last, so that it leaves other draws alone."""
    if alphas := _numbers(config, "resolution-alphas"):
        sizes: tuple[Any, ...] = tuple(
            int(size) if size.is_integer() else size for size in _numbers(config, "resolution-levels")
        )
        yield ResolutionShift(levels=sizes or ResolutionShift.levels, low=alphas[:2], high=alphas[2:])
    if alphas := _numbers(config, "colour-alphas"):
        shares = _numbers(config, "colour-levels") or ColourShift.levels
        yield ColourShift(levels=shares, low=alphas[:2], high=alphas[2:])
    if angles := _numbers(config, "rotation-angles"):
        yield RotationShift(angles)
    if stds := _numbers(config, "row-affine-stds"):
        if len(stds) != 2:
            raise ValueError(f'row-affine-stds must be two numbers, got {stds!r}; give "0.05,0.05", or "" for none')
        yield RowAffineShift(matrix_std=stds[0], offset_std=stds[1])
    if config.get("corruptions"):
        severities = tuple(int(each) for each in _numbers(config, "severities", minimum=0))
        yield corruption_shift(config["corruptions"], severities or CorruptionShift.severities)


def _check_shifts(shifts: object) -> None:
    if not isinstance(shifts, tuple) or not all(isinstance(shift, Shift) for shift in shifts):
        raise ValueError(
            f"shifts must be a tuple of Shift objects, got {shifts!r}; "
            "give for example (AffineShift(0.3),), or () for none"
        )


def _numbers(config: Mapping[str, Any], key: str, *, minimum: float = -inf) -> tuple[float, ...]:
    """The run config has no lists: "0.1,0.3" is one, "" an empty one."""
    value = config.get(key, "")
    remedy = 'give numbers such as "0.1,0.3", or "" for none'
    if not isinstance(value, str):
        return (checked_number(key, value, minimum=minimum, remedy=remedy),)
    try:
        numbers = [float(part) for part in value.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{key} must be numbers, got {value!r}; {remedy}") from None
    return tuple(checked_number(key, number, minimum=minimum, remedy=remedy) for number in numbers)


def _shift_strength(config: Mapping[str, Any], key: str) -> float:
    return checked_number(key, _required(config, key), minimum=0, remedy="give 0 for no such shift")


def _required(config: Mapping[str, Any], key: str) -> Any:
    if key not in config:
        raise ValueError(f"the run config must have the key {key!r}, got none; add it, as in pyproject.toml")
    return config[key]
