"""How clients were drawn, where they are no independent draws from the network that is asked about (math §7.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.answers import frames
from riskband.checks import FloatArray, IntArray, check_number, check_numbers, float_of, set_fields
from riskband.wording import exactly
from riskband.wording.shown import Shown

SAID_BY_CLIENTS = {
    "clusters": ("clusters", "cluster"),
    "shares": ("strata", "stratum"),
    "largest_weight": ("weights", "sampling_weight"),
}
"""By what a run says of how clients were drawn: what a design calls what they all say, and their answers call one."""

_ROUNDING = 1e-6  # by which given shares may miss a sum of 1


def design_asked(text: str) -> dict[str, Any]:
    """Read how clients were drawn: "strata:north=0.4,south=0.6", "weights:5" up to the largest, "clusters", or "".

    Clusters in strata are "clusters,strata:…". Each client says its own stratum, weight or cluster. Raises ValueError.
    """
    found: dict[str, Any] = {}
    rest = text.removeprefix("clusters").removeprefix(",") if text.startswith("clusters") else text
    if rest != text:
        found["clusters"] = True
    kind, _, said = rest.partition(":")
    if kind == "strata":
        shares = [each.rpartition("=") for each in said.split(",")]
        found["shares"] = {name.strip(): float_of(share) for name, _, share in shares}
    elif kind == "weights":
        found["largest_weight"] = float_of(said)
    elif rest:
        raise ValueError(f"a design must be strata:NAME=SHARE,…, weights:LARGEST or clusters, got {text!r:.80}")
    return found


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Design(Shown):
    """Strata, sampling weights or clusters of the clients that answered.

    Parameters
    ----------
    strata : sequence of str, shape (num_clients,), optional
        The stratum of each client, with `shares`. Within a stratum clients are independent draws; how many were asked
        in each was fixed, in any proportion.
    shares : mapping of str to float, optional
        The share of each stratum among the clients that are asked about, which was known; they sum to 1. With
        `clusters` they are shares of clusters.
    weights : array_like, shape (num_clients,), optional
        Sampling weights > 0, with `largest_weight`: clients were drawn with probabilities in proportion to 1 / weight.
        They are needed up to a common factor.
    largest_weight : float, optional
        What no client's weight can exceed, in the same unit, known before any answer.
    clusters : sequence of str, shape (num_clients,), optional
        The cluster of each client, such as the chain of a hospital. Clusters are independent draws, and their clients
        may depend on each other in any way. An unseen client is one at random of a cluster at random: every cluster
        counts once. With `strata`, of clusters, all clients of a cluster are in one.

    Raises
    ------
    ValueError
        If it is not one of strata with shares, weights with the largest, and clusters, alone or in strata; a client has
        none; or shares, weights or strata are not as above.
    """

    strata: Sequence[str] | None = None
    shares: Mapping[str, float] | None = None
    weights: npt.ArrayLike | None = None
    largest_weight: float | None = None
    clusters: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for first, second, options in (
            ("strata", "shares", "--stratum and --shares"),
            ("weights", "largest_weight", "--sampling-weight and --largest-weight"),
        ):
            if (getattr(self, first) is None) != (getattr(self, second) is None):
                rule = f"{first} and {second} of a design must be given together"
                raise ValueError(f"{rule}, got one; give both, in the command {options}")
        if (self.weights is not None) == (self.strata is not None or self.clusters is not None):
            raise ValueError("a design must have strata, clusters (alone or in strata) or weights; give one of them")
        set_fields(self, strata=_labels("strata", self.strata), clusters=_labels("clusters", self.clusters))
        if self.weights is not None:
            values = check_numbers("weights", self.weights, remedy="give the sampling weight of each client")
            largest = check_number("largest_weight", self.largest_weight, remedy="it is what no weight can exceed")
            if values.ndim != 1 or not np.all((values > 0.0) & (values <= largest)) or not np.isfinite(largest):
                raise ValueError(
                    f"weights must be numbers above 0 and at most largest_weight, {exactly(largest)}, got "
                    f"{values.min():g} to {values.max():g}; it must hold for clients that nobody asked, too"
                )
            set_fields(self, weights=values, largest_weight=largest)
        if self.shares is not None:
            set_fields(self, shares=_checked_shares(self.shares, self.strata or ()))
        if self.clusters is not None and self.num_units < 2:
            raise ValueError("there must be at least two clusters, got one; nothing is known of how they differ")
        if self.clusters is not None and self.strata is not None:
            pairs = sorted(set(zip(self.clusters, self.strata, strict=False)))
            if split := [name for name, stratum in pairs if dict(pairs)[name] != stratum]:
                raise ValueError(f"a cluster must be in one stratum, got {split[0]!r} in several; split the cluster")

    @classmethod
    def of(cls, given: Design | Mapping[str, Any] | None, *, num_clients: int) -> Design | None:
        """Return the design of so many clients, from what a certificate stores of it, too; raises ValueError."""
        if given is None:
            return None
        found = given if isinstance(given, Design) else cls(**given)
        lengths = {len(each) for each in (found.strata, found.weights, found.clusters) if each is not None}  # type: ignore[arg-type]
        if lengths != {num_clients}:
            got = " and ".join(map(str, sorted(lengths)))
            raise ValueError(f"a design must have one entry for each of {num_clients} clients, got {got}; add or drop")
        return found

    @property
    def kind(self) -> str:
        """What it is called."""
        known = [name for name in ("weights", "clusters", "strata") if getattr(self, name) is not None]
        return " in ".join(known).replace("weights", "sampling weights")

    def _words(self) -> str:
        return self.kind

    def to_dict(self) -> dict[str, Any]:
        """Return keyword arguments that make it again, as plain data."""
        known = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kept = {name: value for name, value in known.items() if value is not None}
        return {name: list(value) if isinstance(value, (tuple, np.ndarray)) else value for name, value in kept.items()}

    def of_clients(self, clients: IntArray, copies: IntArray | None = None) -> Design:
        """The design of some clients, by index; with `copies`, those of a copy are in clusters of their own."""
        some = self.to_dict()
        for name in ("strata", "weights", "clusters") & some.keys():
            some[name] = [some[name][index] for index in clients.tolist()]
        if copies is not None and self.clusters is not None:
            some["clusters"] = [f"{name} {copy}" for name, copy in zip(some["clusters"], copies.tolist(), strict=True)]
        return Design(**some)

    @cached_property
    def _unit_of(self) -> IntArray:
        """Which unit each client is of: its cluster, or itself."""
        if self.clusters is not None:
            return np.unique(self.clusters, return_inverse=True)[1].ravel()
        return np.arange(len(self.strata if self.weights is None else np.asarray(self.weights)))  # type: ignore[arg-type]

    @property
    def num_units(self) -> int:
        """How many clusters answered, or how many clients."""
        return int(self._unit_of.max()) + 1

    def per_unit(self, outcomes: FloatArray) -> FloatArray:
        """Outcomes of clients, shape (num_clients,), as those of units, shape (num_units,): of clusters the means."""
        if self.clusters is None:
            return outcomes
        return np.asarray(np.bincount(self._unit_of, outcomes) / np.bincount(self._unit_of))

    @cached_property
    def unit_weights(self) -> FloatArray:
        """With what each unit counts, in [0, 1], shape (num_units,): in proportion to target / sampling probability."""
        if self.weights is not None:
            return np.asarray(np.asarray(self.weights) / self.largest_weight)
        if self.strata is None or self.shares is None:
            return np.ones(self.num_units)
        names, stratum = np.unique(self.strata, return_inverse=True)
        of_unit = np.empty(self.num_units, dtype=np.intp)
        of_unit[self._unit_of] = stratum.ravel()
        shares = np.array([self.shares[name] for name in names.tolist()])
        found = (shares / np.bincount(of_unit))[of_unit]
        return np.asarray(found / found.max())

    @property
    def spread(self) -> float:
        """By what weights that were fixed beforehand shrink the gains of bets; 1 if they were drawn."""
        return 1.0 if self.weights is not None else float(np.sqrt(np.mean(self.unit_weights**2)))

    @property
    def counted(self) -> str:
        """What was asked for in a number that was fixed."""
        units = "clients" if self.clusters is None else "clusters"
        return units if self.strata is None else f"{units} of each stratum"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """How the clients were drawn, in place of the independence of all."""
        found = []
        if self.weights is not None:
            found.append(
                "the clients that answered are independent draws, each client with a probability in proportion to 1 / "
                f"its sampling weight, and no client's weight can exceed {exactly(float(self.largest_weight or 0.0))}, "
                "which was known before any answer"
            )
        if self.clusters is not None:
            found.append(
                "clients of one cluster may depend on each other in any way; those that answered stand for its others, "
                "and an unseen client is one at random of a cluster at random: every cluster counts once"
            )
        if self.clusters is not None and self.strata is None:
            found.append("the clusters that answered are independent draws from one distribution of clusters")
        if self.strata is not None:
            unit = self.counted.split()[0]
            known = ", ".join(f"{name} {exactly(share)}" for name, share in (self.shares or {}).items())
            found.append(f"the {self.counted} that answered are independent draws from its {unit}")
            found.append(f"the share of each stratum among all {unit} was known: {known}")
        return (*found, f"the {self.kind} of the clients were settled before any answer was seen")


def _labels(name: str, values: Any) -> tuple[str, ...] | None:
    if values is None:
        return None
    labels = frames.labels_or_none(np.asarray(values, dtype=object))
    if None in labels:
        raise ValueError(f"{name} must name one for every client, got none for number {labels.index(None)}; name it")
    return tuple(str(each) for each in labels)


def _checked_shares(given: Mapping[str, float], strata: Sequence[str]) -> dict[str, float]:
    shares = {str(name): check_number(f"the share of {name!r}", share, remedy="0.3") for name, share in given.items()}
    total = sum(shares.values())
    if not all(0.0 <= share <= 1.0 for share in shares.values()) or abs(total - 1.0) > _ROUNDING:
        raise ValueError(f"shares of strata must lie in [0, 1] and sum to 1, got a sum of {exactly(total)}; scale them")
    if unknown := sorted(set(strata) - shares.keys()):
        raise ValueError(f"every stratum must have a share, got none for {', '.join(unknown)}; add what is known of it")
    if empty := sorted(name for name, share in shares.items() if share > 0.0 and name not in strata):
        raise ValueError(f"every stratum must have an answer, got none of {', '.join(empty)}; nothing is known of it")
    return shares
