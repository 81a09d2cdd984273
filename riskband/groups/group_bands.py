"""Groups of clients: who belongs to which, and one band for each (math §10.1, [DC] §3.2).

delta is divided among the groups before their bands are made (Bonferroni), so that all bands hold at once with
probability 1 - delta, and with them every comparison of groups. Groups may overlap.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from riskband.answers import frames
from riskband.answers.responses import INDEPENDENT_ASKED, INDEPENDENT_CLIENTS
from riskband.answers.risks import ClientRisks, check_risks, default_eta
from riskband.bands.band import Band, band
from riskband.certificate import as_sentence, weakest_validity
from riskband.checks import IntArray, as_spelled, check_delta, check_kind, check_numbers, spelled
from riskband.wording import chosen_before
from riskband.wording.shown import Drawn, to_pandas

if TYPE_CHECKING:
    import pandas as pd

Groups = Sequence[str | None] | npt.NDArray[Any] | Mapping[str, npt.ArrayLike]


NESTED_METHODS = ("berk_jones", "dkw")
"""Methods whose levels at each rank fall with the number of clients: the band for more clients holds that for fewer."""

FIXED_GROUPS = "the groups, and how delta is divided among them, were fixed before any risk was seen"
EQUAL_SIZES_IN_GROUP = "a group whose clients all have the same number of examples has it by design, not by chance"


@dataclass(frozen=True, eq=False, repr=False)
class GroupBands(Drawn):
    """One band for each group of clients; all hold at once with probability 1 - delta. Made by `group_bands`.

    Attributes
    ----------
    risks : ClientRisks
        The answers of all clients, those in no group included.
    members : mapping of str to ndarray
        Increasing indices of the clients of each group, shape (num_clients of the group,); names are sorted.
    bands : mapping of str to Band
        The band of each group, at its own part of delta.
    """

    risks: ClientRisks
    members: Mapping[str, IntArray]
    bands: Mapping[str, Band]

    shown = ("num_clients", "delta")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups, sorted."""
        return tuple(self.bands)

    @property
    def deltas(self) -> dict[str, float]:
        """Probability that the band of each group fails: how delta was divided."""
        return {name: source.delta for name, source in self.bands.items()}

    @property
    def delta(self) -> float:
        """Probability that the band of any group fails: the sum of `deltas`."""
        return math.fsum(self.deltas.values())

    @property
    def num_clients(self) -> dict[str, int]:
        """Number of clients in each group."""
        return {name: int(indices.size) for name, indices in self.members.items()}

    @property
    def subject(self) -> str:
        """What the CDFs are the CDFs of."""
        return next(iter(self.bands.values())).subject

    @property
    def assumptions(self) -> tuple[str, ...]:  # type: ignore[override]  # of others it is a field
        """What must be true for the probability to be right."""
        of_bands = dict.fromkeys(line for source in self.bands.values() for line in source.assumptions)
        by_chance = not self.risks.has_equal_sizes and any(s.risks.has_equal_sizes for s in self.bands.values())
        extra = (EQUAL_SIZES_IN_GROUP,) if by_chance else ()
        return (FIXED_GROUPS, *map(_within_groups, of_bands), *extra, *chosen_before(shares_of_delta=self._shares()))

    @property
    def statement(self) -> str:
        """What the bands say as one English sentence, without their assumptions."""
        claim = next(iter(self.bands.values())).claim
        return as_sentence(
            f"in every group at once, {claim}", delta=self.delta, validity=weakest_validity(self.assumptions)
        )

    def to_frame(self) -> pd.DataFrame:
        """Return `Band.to_frame` of every group below each other, as a data frame with a column `group` in front."""
        tables = {name: source.steps for name, source in self.bands.items()}
        columns = {key: np.concatenate([each[key] for each in tables.values()]) for key in next(iter(tables.values()))}
        return to_pandas({"group": np.repeat(list(tables), [each["risk"].size for each in tables.values()]), **columns})

    def provenance(self) -> dict[str, Any]:
        """Return what a certificate stores of the bands that it was read off; see `riskband.certificate.Source`."""
        return {
            **self.risks.provenance(),
            "groups": {name: indices.tolist() for name, indices in self.members.items()},
            "bands": {name: source.recipe() for name, source in self.bands.items()},
        }

    def _shares(self) -> tuple[str, str]:
        """Parts of delta in words, and what they are if the groups share it equally."""
        parts = [f"{name} {delta / self.delta:.4g}" for name, delta in self.deltas.items()]
        return ", ".join(parts), ", ".join(f"{name} {1.0 / len(self.deltas):.4g}" for name in self.deltas)

    def __getitem__(self, name: str) -> Band:
        """Band of a group; raises ValueError for an unknown name."""
        if not isinstance(name, str) or name not in self.bands:
            raise ValueError(f"group must be one of {', '.join(self.names)}, got {name!r}")
        return self.bands[name]


def group_bands(
    risks: ClientRisks, groups: Groups, *, delta: float, shares: Mapping[str, float] | None = None, **band_settings: Any
) -> GroupBands:
    """Confidence bands for the CDFs of client risks in several groups, which hold all at once.

    Parameters
    ----------
    risks : ClientRisks
        The answers of all clients.
    groups : sequence of str or None, or mapping
        Either the group of each client, shape (num_clients,), `None` for a client in no group, also as a column of a
        data frame; or, for groups that may
        overlap, the members of each by name: a boolean mask of shape (num_clients,) or indices of clients.
    delta : float
        Probability that any of the bands fails, in (0, 1).
    shares : mapping of str to float, optional
        Part of delta that each group gets, > 0, at most 1 in all. Default: equal parts.
    **band_settings
        As for `band`: method, local, eta, ...; both sides by default.

    Returns
    -------
    GroupBands
        Bands at `delta * shares[name]`: Bonferroni, so groups may share clients. A missing client may belong to any
        group and so may a wrong answer, so every group counts all of them as its own.

    Raises
    ------
    ValueError
        If a group has fewer than two clients, names or indices do not fit, a setting is out of range, or clients are
        missing="worst" under a method that does not stay valid when more of them than belong to a group count in it.

    Examples
    --------
    >>> import riskband as rb
    >>> answers = rb.ClientRisks([0.02, 0.05, 0.10, 0.04], num_examples=100)
    >>> bands = rb.group_bands(answers, ["city", "city", "farm", "farm"], delta=0.1)
    >>> bands.num_clients
    {'city': 2, 'farm': 2}
    """
    check_risks(risks)
    delta = check_delta(delta)
    allowed = inspect.signature(band).parameters.keys() - {"risks", "delta"}
    unknown = sorted(band_settings.keys() - allowed)
    if unknown:
        raise ValueError(f"settings of bands must be among {', '.join(sorted(allowed))}, got {', '.join(unknown)}")
    if risks.num_missing_worst and band_settings.get("method") is None:
        band_settings["method"] = NESTED_METHODS[0]  # whatever the number of clients in a group
    check_nested(risks, band_settings.get("method"))
    members = members_of_groups(groups, num_clients=risks.num_clients)
    equal = dict.fromkeys(members, 1.0 / len(members))
    parts = equal if shares is None else check_per_group("shares", shares, tuple(members), is_total=False)
    local, bands = as_spelled(band_settings.get("local", "marginal"), ("counted", "marginal")), {}
    for name, indices in members.items():
        answers, eta = select_clients(risks, indices, group=name), band_settings.get("eta")
        needs_one = local == "counted" or (local == "marginal" and not answers.has_equal_sizes)
        if eta is None and needs_one and risks.num_missing_worst:
            eta = default_eta(risks.num_counted // len(members))  # how many of a group answered may depend on its risks
        bands[name] = band(answers, delta=delta * parts[name], **{**band_settings, "eta": eta})
    return GroupBands(risks, members, bands)


def check_nested(risks: ClientRisks, method: object) -> None:
    """Raise ValueError if clients are missing="worst" and the levels of the method do not fall with their number."""
    if risks.num_missing_worst and not (isinstance(method, str) and spelled(method) in NESTED_METHODS):
        raise ValueError(
            f"groups with missing='worst' need method {' or '.join(NESTED_METHODS)}, got {method!r:.80}; how "
            "many clients a group lacks is unknown, and only these levels fall with the number"
        )


def rebuilt_group_bands(
    risks: ClientRisks, members: Mapping[str, npt.ArrayLike], recipes: Mapping[str, Mapping[str, Any]]
) -> GroupBands:
    """Group bands from the fields `groups` (indices of clients) and `bands` (`Band.recipe` of each) of a recipe.

    Raises ValueError if the groups are not valid, differ between the fields, or `group_bands` makes no such bands.
    """
    found = members_of_groups(members, num_clients=risks.num_clients)
    if found.keys() != recipes.keys():
        raise ValueError(f"a recipe needs one band for each group, got {', '.join(recipes)} for {', '.join(found)}")
    ways = [[_way(each.get("method")), each.get("local"), each.get("sides")] for each in recipes.values()]
    if any(way != ways[0] for way in ways):
        raise ValueError("the bands of all groups must be made in one way: by one method, local step and sides")
    check_nested(risks, ways[0][0])
    bands = {name: band(select_clients(risks, indices, group=name), **recipes[name]) for name, indices in found.items()}
    return GroupBands(risks, found, bands)


def _way(method: object) -> object:
    """A method without the levels that it gave, which differ from group to group if they were tuned."""
    return {**method, "levels": None} if isinstance(method, Mapping) else method


def check_group_bands(bands: object) -> None:
    """Raise ValueError unless `bands` are `GroupBands`."""
    check_kind("bands", bands, GroupBands, remedy="make them with group_bands(risks, groups, delta=0.05)")


def _within_groups(assumption: str) -> str:
    if assumption not in (INDEPENDENT_CLIENTS, INDEPENDENT_ASKED):
        return assumption
    return f"within each group, {assumption.replace('one meta-distribution', 'the meta-distribution')} of that group"


def smallest_group(contamination: int) -> int:
    """Return how many clients a group needs, of which so many may be wrong."""
    return max(2, contamination + 1)


def members_of_groups(groups: Groups, *, num_clients: int) -> dict[str, IntArray]:
    """Return increasing indices of the members of each group, by sorted name; ValueError as for `group_bands`."""
    if isinstance(groups, Mapping):
        found = {_checked_name(name): _checked_indices(name, who, num_clients) for name, who in groups.items()}
    else:
        found = _members_of_labels(groups, num_clients)
    if not found:
        raise ValueError("groups must name at least one group, got none; give every client a label, or use band")
    for name, indices in found.items():
        if indices.size < 2:
            raise ValueError(
                f"every group needs at least 2 clients, but group {name!r} has {indices.size}; merge it with another "
                "group, or leave it out"
            )
    return {name: found[name] for name in sorted(found)}


def _members_of_labels(labels: Any, num_clients: int) -> dict[str, IntArray]:
    if hasattr(labels, "to_numpy"):  # a column of a data frame, read as `ClientRisks.from_frame` reads it
        labels = frames.labels_or_none(np.asarray(labels))
    if isinstance(labels, (str, bytes)) or not isinstance(labels, (Sequence, np.ndarray)):
        raise ValueError(
            f"groups must be one label per client or a mapping, got {type(labels).__name__}; use a list such as "
            "['north', None, 'south'], or {'north': [0, 3], 'south': [1, 2]}"
        )
    if (isinstance(labels, np.ndarray) and labels.ndim != 1) or len(labels) != num_clients:
        shape = labels.shape if isinstance(labels, np.ndarray) else len(labels)
        raise ValueError(
            f"groups must have one label per client ({num_clients}), got {shape}; use None for a client in no group"
        )
    found: dict[str, list[int]] = {}
    for client, label in enumerate(labels):
        if label is not None:
            found.setdefault(_checked_name(label), []).append(client)
    return {name: np.array(clients, dtype=np.int64) for name, clients in found.items()}


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"names of groups must be nonempty text, got {name!r}; use str(...), or None for a client in no group"
        )
    return str(name)


def _checked_indices(name: str, who: npt.ArrayLike, num_clients: int) -> IntArray:
    try:
        array = np.asarray(who)
    except ValueError:  # a ragged list
        array = np.asarray(None)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype == np.bool_ and array.shape == (num_clients,):
        return np.flatnonzero(array).astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"group {name!r} must be a mask of {num_clients} booleans or a flat list of client indices, got "
            f"{array.dtype} of shape {array.shape}; use numpy.flatnonzero of a condition"
        )
    indices = np.sort(array.astype(np.int64))
    if indices[0] < 0 or indices[-1] >= num_clients or np.any(np.diff(indices) == 0):
        raise ValueError(
            f"indices of group {name!r} must be different whole numbers from 0 to {num_clients - 1}, got "
            f"{indices.tolist() if indices.size <= 10 else f'{indices[0]} to {indices[-1]}'}; name each client once"
        )
    return indices


def check_per_group(
    name: str, numbers: Mapping[str, float], groups: tuple[str, ...], *, is_total: bool
) -> dict[str, float]:
    """Return one number per group, in the order of the groups.

    They must be >= 0 and sum to 1 if `is_total`, otherwise > 0 and sum to at most 1; raises ValueError if they do not,
    or a group is missing or foreign.
    """
    if not isinstance(numbers, Mapping) or set(numbers) != set(groups):
        got = ", ".join(map(str, numbers)) if isinstance(numbers, Mapping) else type(numbers).__name__
        raise ValueError(f"{name} must be a mapping with one number for each of {', '.join(groups)}, got {got}")
    array = check_numbers(name, [numbers[group] for group in groups], remedy="for example 0.5")
    if array.ndim != 1:
        raise ValueError(f"{name} must be one number per group, got shape {array.shape}; for example 0.5")
    found = dict(zip(groups, array.tolist(), strict=True))
    total = math.fsum(found.values())
    smallest = min(found.values())
    is_right = smallest >= 0.0 and abs(total - 1.0) <= 1e-9 if is_total else smallest > 0.0 and total <= 1.0 + 1e-9
    if not is_right:
        rule = "be >= 0 and sum to 1" if is_total else "be > 0 and sum to at most 1"
        raise ValueError(f"{name} must {rule}, got {found}, which sum to {total:g}; divide them by their sum")
    scale = total if is_total else max(total, 1.0)  # rounding
    return {group: number / scale for group, number in found.items()}


def select_clients(risks: ClientRisks, indices: IntArray, *, group: str) -> ClientRisks:
    """Answers of the clients of a group; what holds for the network as a whole, such as missing clients, is kept.

    Raises ValueError if every answer of the group may be wrong.
    """
    if risks.contamination >= indices.size:
        raise ValueError(
            f"contamination must be below the number of clients of every group, got {risks.contamination} for the "
            f"{indices.size} of group {group!r}, where all wrong answers may be; merge it with another group"
        )
    return risks.of_clients(indices)
