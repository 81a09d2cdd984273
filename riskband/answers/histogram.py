"""Counts of clients in bins of risk: how many clients are in each bin, and never which.

Every step from values to a band is monotone in the values, so each client may be replaced by an end of its bin: the
upper end in everything that gives the lower side of a band for the CDF, the lower end in the other side. What is
then known of the clients is a `ClientRisks` with these ends, and a band is made of it as of any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

import numpy as np
import numpy.typing as npt

from riskband.answers.responses import Answers, Responses, WhoAnswered
from riskband.answers.risks import ClientRisks, check_risks, upper_limit
from riskband.checks import (
    MAX_EXAMPLES,
    MAX_POINTS,
    FloatArray,
    IntArray,
    check_count,
    check_eta,
    check_flag,
    check_fraction,
    check_num_examples,
    check_numbers,
    set_fields,
)
from riskband.wording import CHOSEN_BEFORE

MAX_CLIENTS = 10**6
"""A histogram of more is a mistake, or a lie: modulo 2**32 a negative count looks like that."""

EDGES_CHOSEN = f"{CHOSEN_BEFORE}the edges of the bins"
COUNTED_ONCE = "every client is counted once, in the bin where its number lies; who is in which bin is not known"
SIZE_BY_DESIGN = "every client measures on the number of examples that was fixed beforehand"
LIMITS_BY_CLIENTS = "every client computed the limits of its risk itself, from its own number of examples"
LIMITS_OF_BINARY_LOSS = f"{LIMITS_BY_CLIENTS}, for a loss of 0 or 1"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Histogram(Answers):
    """Counts of clients in bins; `above` and `below` are the clients at the upper and lower ends of these."""

    edges: FloatArray
    counts: IntArray
    binary: bool
    responses: Responses
    above: ClientRisks
    below: ClientRisks


@dataclass(frozen=True, eq=False, init=False, repr=False)
class HistogramRisks(Histogram):
    """How many clients measured a risk in each bin, all on the same known number of examples.

    Parameters
    ----------
    edges : array_like, shape (num_bins + 1,)
        Increasing from 0 to 1. Bin j holds the risks above edge j, up to and with edge j + 1; the first one holds 0
        too.
    counts : array_like, shape (num_bins,)
        Number of clients in each bin, as `risk_histogram` counts them; two at least in all.
    num_examples : int
        Number of examples of each client.
    binary : bool
        Whether every example's loss is 0 or 1. Risks are then multiples of 1/num_examples, so a bin's ends are the
        outermost multiples in it: with at most one multiple in each bin, nothing is lost to the rounding.
    num_missing, missing, contamination, answered_by, repeats : int, str, int, str, str
        Who answered, see `responses`; clients that are not counted are missing. At most `contamination` clients are
        counted in a wrong bin, any one. A client that may send any *vector* of counts can move as many others as it
        likes: it is so many clients in a wrong bin as it moves counts.

    Attributes
    ----------
    responses : Responses
        Who answered; as for `ClientRisks`.
    above, below : ClientRisks
        The clients with their risks replaced by the upper and by the lower ends of their bins, in increasing order.

    Raises
    ------
    ValueError
        If edges do not increase from 0 to 1, a count is no whole number >= 0, more clients than `contamination` are in
        bins without any possible risk, or as for `ClientRisks`.
    """

    num_examples: int

    stored = ("edges", "counts", "num_examples", "binary")
    shown = ("num_clients", "num_examples", "binary")

    def __init__(
        self,
        edges: npt.ArrayLike,
        counts: npt.ArrayLike,
        num_examples: int,
        *,
        binary: bool,
        **who: Unpack[WhoAnswered],
    ) -> None:
        checked = check_edges(edges)
        size = check_count("num_examples", num_examples, minimum=1, remedy="all clients have the same number")
        is_binary = check_flag("binary", binary)
        number = check_counts("counts", counts, num_bins=checked.size - 1)
        bottoms, tops = bin_ends(checked, num_examples=size if is_binary else None)
        # A client in a bin without any possible risk is one of the wrong ones, and may be anywhere.
        is_impossible = tops < bottoms
        above, below = (
            # Counts have no noise: `noise` among `who` is a TypeError, as any other unknown name is.
            ClientRisks(
                np.sort(np.repeat(np.where(is_impossible, end, ends), number)), size, is_binary, noise=None, **who
            )
            for end, ends in ((1.0, tops), (0.0, bottoms))
        )
        above.require_independent("counts")
        num_impossible = int(number[is_impossible].sum())
        if num_impossible > above.contamination:
            raise ValueError(
                f"bins without a multiple of 1/num_examples must hold no more clients than contamination, got "
                f"{num_impossible}; is num_examples={size} what every client has, and is the loss 0 or 1?"
            )
        set_fields(self, edges=checked, counts=number, binary=is_binary, num_examples=size)
        set_fields(self, responses=above.responses, above=above, below=below)

    @property
    def own_assumptions(self) -> tuple[str, ...]:
        """What certificates from the counts assume beyond what all do."""
        return (COUNTED_ONCE, SIZE_BY_DESIGN, EDGES_CHOSEN)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class HistogramLimits(Histogram):
    """How many clients have their own limits in each bin, where numbers of examples are unequal or private.

    Parameters
    ----------
    edges : array_like, shape (num_bins + 1,)
        Increasing from 0 to 1.
    counts : array_like, shape (3, num_bins)
        Numbers of clients as `risk_histogram` counts them with an `eta`. Row 0: by the upper limit of the risk, row 2:
        by the measured risk; both as for `HistogramRisks`. Row 1: by the lower limit, in the bin from edge j, below
        edge j + 1.
    eta : float
        Error level of each client's limits, in (0, 0.5], fixed before any risk was seen.
    binary : bool
        Whether the clients' limits rely on every example's loss being 0 or 1.
    num_missing, missing, contamination, answered_by, repeats : int, str, int, str, str
        See `HistogramRisks`.

    Attributes
    ----------
    responses : Responses
        Who answered; as for `ClientRisks`.
    above, below : ClientRisks
        The clients with their measured risks replaced by the upper ends of their bins, in increasing order. Of their
        numbers of examples only that they are at least 1 is known.

    Raises
    ------
    ValueError
        If the rows count different numbers of clients, or contradict each other: more upper limits than measured risks
        up to an edge, or more of these than lower limits, by more than `contamination`. And as for `HistogramRisks`.
    """

    eta: float

    stored = ("edges", "counts", "eta", "binary")
    shown = ("num_clients", "eta", "binary")

    def __init__(
        self,
        edges: npt.ArrayLike,
        counts: npt.ArrayLike,
        *,
        eta: float,
        binary: bool,
        **who: Unpack[WhoAnswered],
    ) -> None:
        checked = check_edges(edges)
        rows = check_numbers("counts", counts, remedy="count clients with risk_histogram")
        if rows.ndim != 2 or len(rows) != 3:
            raise ValueError(f"counts of limits must have shape (3, num_bins), got {rows.shape}; see risk_histogram")
        number = np.stack([check_counts("counts", row, num_bins=checked.size - 1) for row in rows])
        upper, lower, measured = number
        bottoms, tops = bin_ends(checked)
        totals = number.sum(axis=1).tolist()
        if len(set(totals)) > 1:
            raise ValueError(f"counts must add up to one number of clients, got {totals}; a client sent a wrong vector")
        above = _LimitAnswers(np.repeat(tops, measured), 1, False, noise=None, **who)
        above.require_independent("counts of limits")
        up_to = np.cumsum(number, axis=1)
        excess = int(max(np.max(up_to[0] - up_to[2]), np.max(up_to[2] - up_to[1])))
        if excess > above.contamination:
            raise ValueError(
                "counts of upper limits must not run ahead of those of measured risks, nor these of those of lower "
                f"limits, got {excess} too many up to some edge; say contamination={excess} if clients may send that"
            )
        set_fields(above, upper=np.repeat(tops, upper), lower=np.repeat(bottoms, lower))
        is_binary = check_flag("binary", binary)
        set_fields(self, edges=checked, counts=number, eta=check_eta(eta), binary=is_binary)
        set_fields(self, responses=above.responses, above=above, below=above)

    @property
    def own_assumptions(self) -> tuple[str, ...]:
        """What certificates from the counts assume beyond what all do."""
        return (COUNTED_ONCE, LIMITS_OF_BINARY_LOSS if self.binary else LIMITS_BY_CLIENTS, EDGES_CHOSEN)

    def check_local(self, local: str, eta: float | str | None) -> None:
        """Raise ValueError if a local step needs the numbers of examples, or another `eta` is asked for."""
        if local not in ("marginal", "counted"):
            raise ValueError(f"local must be 'marginal' or 'counted' for counts of limits, got {local!r}; use marginal")
        if eta not in (None, self.eta):
            raise ValueError(f"eta must be {self.eta:g}, at which the clients computed their limits, got {eta}")


PlainAnswers = ClientRisks | Histogram
"""Answers about one loss without an adversary: everything that a band is made of."""


def clients_above(answers: PlainAnswers) -> ClientRisks:
    """Return the clients with numbers not below what they measured; raises ValueError unless these are answers."""
    if not isinstance(answers, Histogram):
        check_risks(answers)
    return answers.above


class _LimitAnswers(ClientRisks):
    """Rounded measured risks, with limits that the clients computed; `HistogramLimits` fills in `upper` and `lower`."""

    upper: FloatArray
    lower: FloatArray

    @cached_property
    def has_equal_sizes(self) -> bool:
        """Whether every client is known to have the same number of examples: it is not."""
        return False

    def upper_limits(self, eta: float) -> FloatArray:
        """Upper ends of the bins of the clients' upper limits, in increasing order."""
        return self.upper

    def lower_limits(self, eta: float) -> FloatArray:
        """Lower ends of the bins of the clients' lower limits, in increasing order."""
        return self.lower


def risk_histogram(
    values: npt.ArrayLike,
    num_examples: npt.ArrayLike,
    *,
    edges: npt.ArrayLike,
    binary: bool,
    eta: float | None = None,
) -> IntArray:
    """Count clients in bins of risk; one client's own histogram is that of one value, and these may be added up.

    Parameters
    ----------
    values : array_like, shape (num_clients,)
        Empirical risks in [0, 1]; one or more.
    num_examples : int or array_like, shape (num_clients,)
        How many examples each mean is taken over; equal numbers unless there is an `eta`.
    edges : array_like, shape (num_bins + 1,)
        Increasing from 0 to 1.
    binary : bool
        Whether every example's loss is 0 or 1.
    eta : float, optional
        Error level in (0, 0.5] of limits for each risk; None counts measured risks only.

    Returns
    -------
    ndarray of int
        Shape (num_bins,), for `HistogramRisks`; with an `eta` (3, num_bins), for `HistogramLimits`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or numbers of examples differ and there is no `eta`.
    """
    checked, risks = check_edges(edges), check_fraction("values", values)
    if risks.ndim != 1 or risks.size == 0:
        raise ValueError(f"values must have shape (num_clients,), got {risks.shape}; give one mean loss per client")
    sizes = check_num_examples(num_examples, num_clients=risks.size)
    is_binary = check_flag("binary", binary)
    wrong = risks * sizes
    if is_binary and np.any(np.abs(wrong - np.rint(wrong)) > 1e-6):
        raise ValueError("binary=True needs values * num_examples to be whole numbers; pass binary=False")
    if eta is None:
        if np.any(sizes != sizes[0]):
            raise ValueError("num_examples must be equal where there is no eta; give an eta, to count limits")
        exact = np.rint(wrong) / sizes if is_binary else risks
        return _counted_up(exact, bin_ends(checked, num_examples=int(sizes[0]) if is_binary else None)[1])
    level = check_eta(eta)
    bottoms, tops = bin_ends(checked)
    upper = upper_limit(risks, sizes, eta=level, binary=is_binary)
    lower = 1.0 - upper_limit(1.0 - risks, sizes, eta=level, binary=is_binary)
    down = np.bincount(np.searchsorted(bottoms, lower, side="right") - 1, minlength=bottoms.size)
    return np.stack([_counted_up(upper, tops), down, _counted_up(risks, tops)])


def bin_ends(edges: FloatArray, *, num_examples: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest risk that each bin may hold, shape (num_bins,) each.

    With `num_examples`, risks are multiples of 1/num_examples; a bin without one has its bottom above its top.
    """
    if num_examples is None:
        return edges[:-1], edges[1:]
    largest = np.floor(edges * num_examples + 1e-9)  # an edge of 0.07 is 7 of 100, whatever its last digit
    smallest = np.append(0.0, largest[1:-1] + 1.0)
    return smallest / num_examples, largest[1:] / num_examples


def check_edges(edges: npt.ArrayLike) -> FloatArray:
    """Return edges of bins as an array, shape (num_bins + 1,); raises ValueError unless they increase from 0 to 1."""
    array = check_fraction("edges", edges)
    is_grid = array.ndim == 1 and 2 <= array.size <= MAX_POINTS and array[0] == 0.0 and array[-1] == 1.0
    if not is_grid or np.any(np.diff(array) <= 0.0):
        raise ValueError(
            f"edges must increase from 0 to 1, got {np.array2string(array, threshold=6):.80}; such as "
            "numpy.linspace(0, 1, 51)"
        )
    return array


def check_counts(name: str, counts: npt.ArrayLike, *, num_bins: int) -> IntArray:
    """Return whole numbers >= 0 of clients, one per bin, as integers; raises ValueError for anything else."""
    array = check_numbers(name, counts, remedy="count clients with risk_histogram")
    if array.shape != (num_bins,):
        raise ValueError(f"{name} must be one number for each of {num_bins} bins, got shape {array.shape}")
    wrong = array[~((array >= 0) & (array <= MAX_EXAMPLES) & (array == np.floor(array)))]
    if wrong.size:
        raise ValueError(f"{name} must be whole numbers >= 0, got {wrong[0]:g}; each counts clients")
    if array.sum() > MAX_CLIENTS:
        raise ValueError(f"{name} must be at most {MAX_CLIENTS} clients in all, got {array.sum():g}; is one negative?")
    return array.astype(np.int64)


def _counted_up(values: FloatArray, tops: FloatArray) -> IntArray:
    """Clients by the first bin whose top is not below the value."""
    return np.bincount(np.searchsorted(tops, values, side="left"), minlength=tops.size).astype(np.int64)
