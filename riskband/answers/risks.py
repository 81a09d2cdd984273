"""What the clients answered: empirical risks, and limits for each client's true risk (math §2.4)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, xlog1py, xlogy

from riskband import checks
from riskband.answers import frames
from riskband.answers.counts import (
    binary_doubt,
    counts_that_round,
    is_count,
    rounded_counts,
    rounding_of_counts,
    share_problem,
    size_doubt,
)
from riskband.answers.design import Design
from riskband.answers.doors import Door, TableError, Wanted, read_columns
from riskband.answers.noise import AnswerNoise, BoundedValues, cut_values, noisy_upper_limits
from riskband.answers.responses import Answers, Responses, WhoAnswered, check_contamination, check_num_missing
from riskband.answers.rows import answer_problem
from riskband.checks import (
    FloatArray,
    IntArray,
    check_flag,
    check_kind,
    check_num_examples,
    check_number,
    clip_rounding,
    set_fields,
)
from riskband.search import bisect
from riskband.wording import exactly, in_full
from riskband.wording.shown import to_pandas

if TYPE_CHECKING:
    import pandas as pd

ETA_GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Error levels of the local limits where not every one can be used, and among others where it can (math §2.4).

None is above 1/2: then an upper limit is never below the measured risk, so clients that measure their risk exactly (all
the data they will ever hold) cannot break the bound, and the sides of a band cannot cross.
"""

_COINCIDENCE = 1e-4  # what is less likely is taken to be no coincidence
_MANY = 20_000  # clients; for more, limits are found by ways that save time and differ by rounding
_NEWTON_STEPS, _ABOVE = 8, 1e-12

_WITHOUT_LOSS = "leave examples without a loss out, if that does not depend on how hard they are"
BOUNDED_LOSS = "every example's loss lies in [0, 1]"
BINARY_LOSS = "every example's loss is 0 or 1"
ROUNDED = (
    "the means were rounded to the digits that were given, by at most {}; bounds from above count the most wrong "
    "examples that this leaves open, bounds from below the fewest"
)
EQUAL_BY_DESIGN = "the same number of examples for all clients was planned, and is no accident"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ClientRisks(Answers):
    """Mean losses that clients measured on their own examples.

    Parameters
    ----------
    values : array_like, shape (num_clients,)
        Empirical risk of each client, in [0, 1] unless there is noise; at least two clients.
    num_examples : int or array_like, shape (num_clients,)
        How many examples each mean is taken over, at least 1. A number that is too large makes limits too narrow; a
        `UserWarning` says where the means of an inferred 0-1 loss look like that.
    binary : bool, optional
        Whether every example's loss is 0 or 1, which makes exact binomial limits valid. By default it is inferred:
        true if `values * num_examples` are whole numbers for every client. They may miss these by the rounding of
        float32 or of the digits that the values have, as long as no other loss would come so near by chance (once in a
        million); `values` are then count / num_examples. Where the means suggest counts but do not show them, a
        `UserWarning` says so, and the loss is taken to lie anywhere in [0, 1], which is safe. Say `False` for a loss
        that can take other values but happened not to: means that were rounded to few digits can look binary. With
        noise it is not inferred: true if the noise has steps of 1, and whole numbers are refused where it has smaller
        ones.
    noise : AnswerNoise or str, optional
        Noise that every client added to its mean loss before it answered, such as "laplace:0.5": the budget of this
        one number, with `binary=True` in steps of 1. If answers of d numbers shared a budget (several losses or models
        at once), say AnswerNoise(..., num_values=d). Values may be any numbers; do not move them into [0, 1].
    names : sequence of str, shape (num_clients,), optional
        What the clients are called, each one differently unless `repeats` are draws. Certificates hold the names
        beside the losses.
    groups : sequence of str or None, shape (num_clients,), optional
        The group of each client, for `group_bands`. Certificates hold it, too.
    design : mapping, optional
        Strata, sampling weights or clusters of the clients, where they are not independent draws from the network, such
        as ``{"strata": regions, "shares": {"north": 0.4, "south": 0.6}}``; see `riskband.answers.design.Design`.
        Means, shares, quantiles, CVaR and worst means are bounded then, each with a delta of its own; all else refuses.
    rounding : float, optional
        By how much means of 0-1 losses were rounded at most. `values` then count the most wrong examples that each
        client may have, and `below` the fewest. It is found, and not said: of accuracies, and of values with
        `binary=True` that are no counts as they stand.
    num_missing, missing, contamination, answered_by, ask, repeats : int, str, int, str, str, str
        Who answered, see `responses`. The contamination counts wrong values and numbers of examples; a check of
        `binary=True` is then not upset by so many.

    Attributes
    ----------
    responses : Responses
        Who answered and with what noise; its fields are also read off the answers themselves.

    Raises
    ------
    ValueError
        If a value is NaN or outside [0, 1], there are fewer than two clients, shapes do not fit, a number of examples
        is no whole number in its range, `binary` contradicts the values or the noise, the noise is unknown, or as for
        `Responses`.
    """

    values: FloatArray
    num_examples: IntArray
    binary: bool
    responses: Responses
    names: tuple[str, ...] | None
    groups: tuple[str | None, ...] | None
    rounding: float | None

    stored, stored_if_known = ("values", "num_examples", "binary"), ("rounding", "names", "groups")
    shown = ("num_clients", "values", "num_examples", "binary")

    def __init__(
        self,
        values: npt.ArrayLike,
        num_examples: npt.ArrayLike,
        binary: bool | None = None,
        *,
        noise: AnswerNoise | str | Mapping[str, object] | None = None,
        names: Sequence[str] | npt.NDArray[Any] | None = None,
        groups: Sequence[str | None] | npt.NDArray[Any] | None = None,
        design: Design | Mapping[str, Any] | None = None,
        rounding: float | None = None,
        **who: Unpack[WhoAnswered],
    ) -> None:
        frames.refuse_other_order(values=values, num_examples=num_examples, names=names, groups=groups)
        checked = checks.check_losses(values, is_noisy=noise is not None)
        counts = check_num_examples(num_examples, num_clients=checked.size)
        drawn = Design.of(design, num_clients=checked.size)
        responses = Responses.of(checked.size, who, design=drawn)
        is_whole, given = is_count(checked, counts), checked
        if noise is None and binary is not False:
            checked, is_whole, open_by = rounded_counts(checked, counts, is_whole, is_sure=binary is not None)
            rounding = open_by if rounding is None else check_number("rounding", rounding, remedy="leave it out")
        num_not_whole = int(np.sum(~is_whole))
        # Answers that contradict the inference may be the wrong ones, but a loss of other values is the safer guess.
        is_binary = (num_not_whole == 0 and noise is None) if binary is None else check_flag("binary", binary)
        if binary is None and noise is None and not is_binary and (doubt := binary_doubt(checked, counts)):
            remedy = "for a 0-1 loss say binary=True and give all digits of the means, otherwise say binary=False"
            warnings.warn(f"the losses are taken to lie anywhere in [0, 1]: {doubt}; {remedy}", stacklevel=2)
        if binary is None and is_binary and (doubt := size_doubt(checked, counts)):
            remedy = (
                "give the number of examples behind each mean, and all its digits; if they are right, say binary=True"
            )
            warnings.warn(f"num_examples may be too large: {doubt}; {remedy}", stacklevel=2)
        if noise is not None:
            noise = AnswerNoise.of(noise, is_binary=is_binary)
            is_binary = _is_binary_noise(noise, binary)
            if num_not_whole <= responses.contamination:
                _check_steps(noise, num_whole=checked.size - num_not_whole)
            responses = replace(responses, noise=noise)
        if is_binary and num_not_whole > responses.contamination:
            remedy = share_problem(given, counts) or "pass binary=False, or more digits of the values"
            raise ValueError(
                "binary=True needs values * num_examples to be whole numbers, since they count wrong examples; "
                f"{remedy}"
            )
        if rounding is not None and not (is_binary and noise is None and 0.0 < rounding <= 0.5):
            raise ValueError(
                f"rounding must be of 0-1 losses without noise, and in (0, 0.5], got {rounding}; leave it out"
            )
        set_fields(self, values=checked, num_examples=counts, binary=is_binary, responses=responses, rounding=rounding)
        set_fields(self, names=_checked_names(names, responses), groups=_one_each("groups", groups, checked.size))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        num_examples: str | int,
        loss: str | None = None,
        accuracy: str | None = None,
        client: str | None = None,
        group: str | None = None,
        percent: bool = False,
        drop_missing: bool = False,
        binary: bool | None = None,
        noise: AnswerNoise | str | Mapping[str, object] | None = None,
        stratum: str | None = None,
        shares: Mapping[str, float] | None = None,
        sampling_weight: str | None = None,
        largest_weight: float | None = None,
        cluster: str | None = None,
        **who: Unpack[WhoAnswered],
    ) -> ClientRisks:
        """Read answers from a data frame with one row per client, in the order of the rows.

        A client with 0 examples has no mean: it counts as missing, and a `UserWarning` names it.

        Parameters
        ----------
        frame : data frame
            Of pandas, polars or pyarrow, a structured array, or whatever else gives a column by ``frame[name]``.
        num_examples : str or int
            Column with the numbers of examples, or one number for all clients.
        loss, accuracy : str
            One of them: column with the client's mean loss in [0, 1], any number if there is noise; or with its share
            of right answers, from which the loss is 1 - accuracy, with the most errors that round to it.
        client, group : str, optional
            Columns with the name of the client, which no other has, and with its group, which may be missing. Without
            `client`, a column that is called hospital, site or the like must name each client once, and where none
            does, no other column of text or whole numbers may have a value twice.
        percent : bool
            Whether the accuracies are in percent.
        drop_missing : bool
            Whether rows without a loss are dropped, and count in `num_missing`; otherwise they are refused.
        stratum, sampling_weight, cluster : str, optional
            Columns with what `Design` takes, with the shares of the strata or the largest weight that there can be.
        binary, noise, **who :
            See `ClientRisks`.

        Returns
        -------
        ClientRisks
            The answers, with `names`, `groups` and `design` where their columns were named.

        Raises
        ------
        ValueError
            If a column is not there, a value is missing or no number, a client may be there twice, the column has the
            name of a score that is no mean (auc, f1, ...), or of what may be none (cross_entropy, dice, ...) and
            `binary` does not say what the loss of an example is, or of a score (acc, ...) where it is `loss`, or of a
            loss (error, ...) where it is `accuracy`, or as for `ClientRisks`. All that is wrong with the rows is said
            at once.
        """
        for wrong, right in (("names", "client"), ("groups", "group")):
            if wrong in who:
                raise TypeError(f"from_frame has no keyword {wrong!r}; name the column with {right}=")
        of_design = stratum, shares, sampling_weight, largest_weight, cluster
        wanted = Wanted(num_examples, loss, accuracy, client, group, percent, drop_missing, binary, False, *of_design)
        return risks_of_table(frame, wanted, Door(), noise=noise, **who)

    @classmethod
    def from_metric_frame(cls, frame: Any, *, group: str | None = None, **columns: Any) -> ClientRisks:
        """Read answers from a `MetricFrame` of fairlearn, as `from_frame` does; the answers have `names`.

        The frame is made with named metrics and one sensitive feature, which says the client, such as the hospital; a
        second one may say the `group` of each. `loss` or `accuracy` is the metric that is a mean over the client's
        examples, without sample weights; `num_examples` the one that counts them, `fairlearn.metrics.count`, or one
        number for all clients.
        """
        table, client = frames.table_of_metric_frame(frame, group=group)
        return cls.from_frame(table, client=client, group=group, **columns)

    @classmethod
    def from_examples(
        cls,
        *,
        clients: npt.ArrayLike,
        losses: npt.ArrayLike | None = None,
        correct: npt.ArrayLike | None = None,
        binary: bool | None = None,
        **who: Unpack[WhoAnswered],
    ) -> ClientRisks:
        """Answers from single examples: for every client the mean loss of its examples, and their number.

        Parameters
        ----------
        clients : array_like, shape (num_examples,)
            Name or number of the client that each example is of. The answers are in the order of the names, whatever
            that of the examples.
        losses : array_like of float, shape (num_examples,), optional
            Loss of each example, in [0, 1]. Either these or `correct`.
        correct : array_like of bool, shape (num_examples,), optional
            Whether each example was right, as truth values or as 1 and 0; the loss is 1 where it was not.
        binary, **who :
            See `ClientRisks`; `correct` makes the loss binary.

        Returns
        -------
        ClientRisks
            The answers, with `names`.

        Raises
        ------
        ValueError
            If not one of `losses` and `correct` is given, a value is missing or out of its range, shapes differ, or as
            for `ClientRisks`.
        """
        frames.refuse_other_order(clients=clients, losses=losses, correct=correct)
        checked, is_binary = _losses_of_examples(losses, correct, binary)
        owners = frames.as_array(clients)
        if owners.shape != checked.shape or not owners.size:
            raise ValueError(
                f"clients must name one for each of the {checked.size} examples, and there must be some, got shape "
                f"{owners.shape}; give both in the order of the examples"
            )
        frames.refuse_missing("clients", owners, remedy="say of every example whose it is")
        names, means, counts = frames.means_by_client(owners, checked)
        return cls(means, counts, is_binary, names=names, **who)

    def to_frame(self) -> pd.DataFrame:
        """Return the answers as a data frame of pandas, a row for each client.

        Its columns are `client` and `group`, where they are known, `loss` and `num_examples`: `from_frame` reads them.
        The losses are `values`: of rounded means those with the most wrong examples.
        Raises ImportError, with what to do, if pandas is not installed.
        """
        known = {"client": self.names, "group": self.groups}
        said = {name: list(values) for name, values in known.items() if values is not None}
        return to_pandas({**said, "loss": self.values, "num_examples": self.num_examples})

    @property
    def above(self) -> ClientRisks:
        """The clients with numbers that are not below what they measured: these, as of counts the ends of bins."""
        return self

    @cached_property
    def below(self) -> ClientRisks:
        """Nor are they above what they measured: of rounded means, with the fewest wrong examples there may be.

        These answers themselves, if that is known of every client.
        """
        if self.rounding is None:
            return self
        least = self.num_examples * (self.values - 2.0 * self.rounding) - 2.0 * rounding_of_counts(self.num_examples)
        fewest = np.maximum(np.ceil(least), 0.0)
        is_open = np.any(fewest < np.rint(self.values * self.num_examples))
        return self._with(fewest / self.num_examples) if is_open else self

    def of_clients(self, clients: IntArray, num_missing: int | None = None) -> ClientRisks:
        """Answers of some clients, by index; what is said of the network as a whole is kept, but for `num_missing`."""
        who = self.responses.to_dict() | ({} if num_missing is None else {"num_missing": num_missing})
        who |= {} if self.design is None else {"design": self.design.of_clients(clients)}
        names, groups = _chosen(self.names, clients), _chosen(self.groups, clients)
        values, sizes = self.values[clients], self.num_examples[clients]
        return ClientRisks(values, sizes, self.binary, names=names, groups=groups, rounding=self.rounding, **who)

    @property
    def mirrored(self) -> ClientRisks:
        """The same clients with one minus the loss."""
        return self._with(1.0 - self.below.values, rounding=self.rounding)

    def _with(self, values: FloatArray, *, rounding: float | None = None) -> ClientRisks:
        who = self.responses.to_dict()
        return ClientRisks(values, self.num_examples, self.binary, rounding=rounding, **who)

    def in_order_of_names(self) -> ClientRisks:
        """The same answers in the order of a hash of the clients' names, which no answer chose; or as they come."""
        if self.names is None:
            return self
        hashes = [sha256(name.encode()).digest() for name in self.names]
        return self.of_clients(np.array(sorted(range(self.num_clients), key=hashes.__getitem__)))

    def resized(self, num_clients: int) -> ClientRisks:
        """So many clients whose answers have the distribution of these, in a fixed order that does not sort them.

        Missing and wrong ones are there in proportion.
        """
        order = np.argsort(self.values, kind="stable")
        like = np.random.default_rng(0).permutation(order[np.arange(num_clients) * order.size // num_clients])
        who, share = self.responses.to_dict(), num_clients / order.size
        who |= {name: math.ceil(who[name] * share) for name in ("num_missing", "contamination") if name in who}
        if self.design is not None:  # what answers once more is a client, or a cluster, of its own
            copies = np.array([np.sum(like[:place] == client) for place, client in enumerate(like)])
            who["design"] = self.design.of_clients(like, copies)
        return ClientRisks(self.values[like], self.num_examples[like], self.binary, rounding=self.rounding, **who)

    def bounded(self, numbers: FloatArray) -> BoundedValues:
        """Numbers in a known range, whose expectation for each client is not below its risk.

        They are made of mean losses of some kind with the noise of these answers, shape (num_clients,); without noise
        the numbers themselves. Source: math §8.3.
        """
        if self.noise is None:
            return BoundedValues(numbers, 0.0, 1.0)
        return cut_values(numbers, self.num_examples, self.noise, is_size_fixed=self.is_cut_for_its_size)

    @property
    def is_cut_for_its_size(self) -> bool:
        """Whether the range of `bounded` relies on one number of examples, which then may not depend on the risks."""
        # Missing or wrong answers may be what makes the numbers of examples equal.
        return self.noise is not None and self.has_equal_sizes and self.are_answers_certain

    @property
    def shown_values(self) -> FloatArray:
        """The values, moved into [0, 1] where noise took them out: for tables and figures; a mean of them is biased."""
        return self.values if self.noise is None else np.clip(self.values, 0.0, 1.0)

    @cached_property
    def distinct(self) -> tuple[FloatArray, IntArray, IntArray]:
        """Answers that differ: their values and numbers of examples, and for every client which one it gave."""
        pairs, which = np.unique(self.values + 1j * self.num_examples, return_inverse=True)  # ordered by both parts
        return pairs.real, pairs.imag.astype(np.int64), which.ravel()

    @cached_property
    def has_equal_sizes(self) -> bool:
        """Whether every client has the same number of examples."""
        return bool(np.all(self.num_examples == self.num_examples[0]))

    def upper_limits(self, eta: float) -> FloatArray:
        """Upper confidence limits of the clients' true risks, each alone wrong with probability at most `eta`.

        Clopper-Pearson for 0-1 losses, otherwise the Bernoulli-KL (Chernoff) limit, valid for any loss in [0, 1]. With
        noise, the same ideas for the distribution of the sum of both. Shape (num_clients,), in [0, 1]; eta in (0, 1).
        Source: math §2.4.
        """
        return self._upper_limits(self.values, eta)

    def lower_limits(self, eta: float) -> FloatArray:
        """Lower confidence limits of the clients' true risks: `upper_limits` for one minus the loss."""
        limits = 1.0 - self._upper_limits(1.0 - self.values, eta)
        if self.noise is None or self.binary:
            return limits
        return np.maximum(limits - 1.0 / self.noise.num_steps, 0.0)  # losses were rounded up

    def _upper_limits(self, values: FloatArray, eta: float) -> FloatArray:
        if self.noise is None:
            return upper_limit(values, self.num_examples, eta=eta, binary=self.binary)
        return noisy_upper_limits(values, self.num_examples, self.noise, eta=eta, binary=self.binary)


def risks_of_table(
    frame: Any, wanted: Wanted, door: Door, *, noise: Any = None, num_missing: int = 0, **who: Any
) -> ClientRisks:
    """Return the answers in a table with one row per client; raises `TableError` as `from_frame` ValueError."""
    contamination = check_contamination(who.get("contamination", 0))
    found = read_columns(frame, wanted, door, is_noisy=noise is not None, contamination=contamination)
    found["num_missing"] += check_num_missing(num_missing)
    of = ClientRisks if wanted.accuracy is None else risks_of_accuracies
    answers = of(**found, binary=wanted.binary, noise=noise, **who)
    if answers.names is None and (doubt := answer_problem(answers.values, answers.num_examples, flag=door.client)):
        raise TableError([doubt])
    return answers


def risks_of_accuracies(
    values: FloatArray, num_examples: npt.ArrayLike, binary: bool | None, **who: Any
) -> ClientRisks:
    """Return answers of losses 1 - accuracy, with the most wrong examples whose accuracy rounds to what was given.

    An accuracy is a share of examples, unless `binary` is False, or no share rounds to it.
    """
    sizes = np.asarray(num_examples)
    right, most, rounding = counts_that_round(values, sizes)
    is_share = right <= most
    if binary is False or not (np.all(is_share) or binary):
        answers = ClientRisks(values, sizes, binary, **who)
        return ClientRisks(1.0 - answers.values, sizes, answers.binary, **who)
    return ClientRisks(
        np.where(is_share, (sizes - right) / sizes, 1.0 - values), sizes, binary, rounding=rounding, **who
    )


def _losses_of_examples(losses: object, correct: object, binary: bool | None) -> tuple[FloatArray, bool | None]:
    """Losses of single examples, and whether they are all 0 or 1; None where that is to be inferred."""
    if (losses is None) == (correct is None):
        given = "neither" if losses is None else "both"
        raise ValueError(f"give either losses or correct, got {given}; correct says which examples were right")
    if losses is None:
        right = frames.as_array(correct)
        frames.refuse_missing("correct", right, remedy=_WITHOUT_LOSS)
        if right.ndim != 1 or not (right.dtype.kind == "b" or all(each in (0, 1) for each in right.tolist())):
            raise ValueError(f"correct must be True or False for each example, got {correct!r:.80}; or give losses")
        if binary is False:
            raise ValueError("correct makes the loss binary, got binary=False; leave binary out")
        return 1.0 - right.astype(np.float64), True
    values = frames.as_array(losses)
    if values.dtype.kind == "b":
        raise ValueError("losses must be numbers, got truth values; say correct=… where True is a right answer")
    checked = clip_rounding(frames.numbers("losses", values, remedy=_WITHOUT_LOSS))
    wrong = checked[~((checked >= 0.0) & (checked <= 1.0))]
    if checked.ndim != 1 or wrong.size:
        got = f"{in_full(wrong.flat[0])}" if wrong.size else f"shape {checked.shape}"
        raise ValueError(
            f"losses must be one number in [0, 1] for each example, got {got}; divide percentages by 100, and scale "
            "and cut other losses by a limit that was fixed before the data"
        )
    is_other = bool(np.any((checked > 0.0) & (checked < 1.0)))
    if is_other and binary:
        raise ValueError("binary=True needs losses of 0 or 1, got others in between; leave binary out")
    return checked, False if is_other else binary


def _one_each(name: str, values: Any, num_clients: int) -> tuple[str | None, ...] | None:
    """Labels of clients as text, None for none; raises ValueError unless there is one for each client."""
    if values is None:
        return None
    if isinstance(values, str) or np.shape(values) != (num_clients,):
        raise ValueError(
            f"{name} must have one entry for each of {num_clients} clients, got {values!r:.80}; add or drop"
        )
    return frames.labels_or_none(np.asarray(values, dtype=object))


def _checked_names(values: object, responses: Responses) -> tuple[str, ...] | None:
    names = _one_each("names", values, responses.num_clients)
    if names is None:
        return None
    if None in names:
        raise ValueError(f"names must name every client, got none for number {names.index(None)}; name every one")
    if len(set(names)) < len(names) and responses.repeats != "draws":
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"names must differ, got {twice!r} more than once ({len(names)} answers of {len(set(names))} clients); "
            "give one answer per client, or single examples to ClientRisks.from_examples, or say repeats='draws' if "
            "each was drawn anew and measured on new examples"
        )
    return tuple(str(name) for name in names)


def _chosen(values: tuple[Any, ...] | None, clients: IntArray) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values[index] for index in clients.tolist())


def check_risks(risks: object) -> None:
    """Raise ValueError unless `risks` are `ClientRisks`."""
    check_kind("risks", risks, ClientRisks, remedy="make them with ClientRisks(values, num_examples)")


def shared_assumptions(risks: ClientRisks, *, needs_binary: bool = False, **known: bool) -> tuple[str, ...]:
    """What every certificate from these answers assumes; `needs_binary` if it relies on the loss being 0 or 1.

    What its formula knows, and errors, are those of `Responses.assumptions`.
    """
    loss = BINARY_LOSS if needs_binary and risks.binary else BOUNDED_LOSS
    equal = (EQUAL_BY_DESIGN,) if risks.is_cut_for_its_size else ()
    return risks.responses.assumptions(loss, *equal, *assumed_of_rounding(risks.rounding), **known)


def assumed_of_rounding(rounding: float | None) -> tuple[str, ...]:
    """What is assumed of means that were rounded by at most so much; nothing of others."""
    return () if rounding is None else (ROUNDED.format(exactly(rounding)),)


def default_eta(num_clients: int) -> float:
    """Error level of the local limits where only one can be used: from the number of clients, never from the risks.

    It is the member of `ETA_GRID` nearest to `0.25 / sqrt(num_clients)`, a quarter of the band's own resolution.
    """
    grid = np.array(ETA_GRID)
    return float(grid[np.argmin(np.abs(np.log(grid * 4.0 * np.sqrt(num_clients))))])


def upper_limit(risk: FloatArray, num_examples: IntArray, *, eta: float | FloatArray, binary: bool) -> FloatArray:
    """Upper confidence limits of true risks; see `ClientRisks.upper_limits`. Any shape, and checked arguments."""
    limit = _clopper_pearson_limit if binary else _chernoff_limit
    return limit(risk, num_examples, eta=eta)


def _clopper_pearson_limit(risk: FloatArray, num_examples: IntArray, *, eta: float | FloatArray) -> FloatArray:
    num_wrong = np.rint(risk * num_examples)
    if np.ndim(eta) == 0 and num_wrong.size > _MANY:  # few counts differ
        size = np.broadcast_to(num_examples, num_wrong.shape).astype(np.int64)
        pairs, which = np.unique(num_wrong.astype(np.int64) * (size.max() + 1) + size, return_inverse=True)
        wrong, size = np.divmod(pairs, size.max() + 1)
        return clopper_pearson(wrong.astype(np.float64), size, eta)[which.reshape(num_wrong.shape)]
    return clopper_pearson(num_wrong, num_examples, eta)


def clopper_pearson(num_wrong: FloatArray | int, num_examples: IntArray | int, eta: float | FloatArray) -> FloatArray:
    """Exact upper confidence limits for probabilities, which are wrong with probability `eta` at most.

    A count may lie between whole numbers, and its limit then lies between theirs.
    """
    num_right = num_examples - num_wrong
    limits = betaincinv(num_wrong + 1.0, np.where(num_right > 0.0, num_right, 1.0), 1.0 - eta)
    return np.where(num_right > 0.0, limits, 1.0)


def _chernoff_limit(risk: FloatArray, num_examples: IntArray, *, eta: float | FloatArray) -> FloatArray:
    """Largest u with n·kl(risk, u) <= log(1/eta), rounded up."""
    allowed = np.log(1.0 / eta) / num_examples
    if risk.size <= _MANY and np.ndim(eta) == 0:
        return bisect(lambda u: binary_kl(risk, u) <= allowed, low=risk, high=np.ones_like(risk))[1]
    return _chernoff_by_newton(risk, np.broadcast_to(allowed, risk.shape))


def _chernoff_by_newton(risk: FloatArray, allowed: FloatArray) -> FloatArray:
    """The same in few steps: Newton's from above never leave a convex function's upper side.

    What rounding takes to the other side, or has not come near it, is found by bisection. The start is the lesser of
    Pinsker's bound and of u with risk·log(risk) + (1 - risk)·log((1 - risk) / (1 - u)) = allowed.
    """
    rest = 1.0 - risk
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steep = 1.0 - rest * np.exp(-(allowed - xlogy(risk, risk)) / rest)
        limit = np.minimum(risk + np.sqrt(allowed / 2.0), np.where(rest > 0.0, steep, 1.0))
        for _ in range(_NEWTON_STEPS):
            excess = binary_kl(risk, limit) - allowed
            step = excess * limit * (1.0 - limit) / (limit - risk)
            limit = np.where((limit < 1.0) & (step > 0.0), limit - step, limit)
    limit = np.minimum(limit + _ABOVE, 1.0)
    below = np.maximum(limit - 4.0 * _ABOVE, risk)
    is_found = (binary_kl(risk, limit) > allowed) & (binary_kl(risk, below) <= allowed)
    left = ~is_found
    if np.any(left):
        some, most = risk[left], allowed[left]
        limit[left] = bisect(lambda u: binary_kl(some, u) <= most, low=some, high=np.ones_like(some))[1]
    return limit


def binary_kl(first: FloatArray, second: FloatArray) -> FloatArray:
    """Kullback-Leibler divergence of Bernoulli(first) from Bernoulli(second), elementwise; `inf` off the support."""
    with np.errstate(divide="ignore", invalid="ignore"):
        hit = xlogy(first, first) - xlogy(first, second)
        miss = xlog1py(1.0 - first, -first) - xlog1py(1.0 - first, -second)
    return np.asarray(hit + miss, dtype=np.float64)


def _is_binary_noise(noise: AnswerNoise, binary: bool | None) -> bool:
    """Whether the loss is 0-1, which noise in steps of 1 says; raises ValueError if `binary` says otherwise."""
    if binary is not None and binary != (noise.num_steps == 1):
        remedy = "AnswerNoise(..., num_steps=1)" if binary else "binary=True, or more steps"
        raise ValueError(
            f"noise has steps of 1 for 0-1 losses and for no others, got num_steps={noise.num_steps} and "
            f"binary={binary}; use {remedy}"
        )
    return noise.num_steps == 1


def _check_steps(noise: AnswerNoise, *, num_whole: int) -> None:
    """Raise ValueError if noise in these steps would not have left so many values * num_examples whole by chance."""
    no_noise, less = noise.cumulative(np.array([0.0, -1.0]))
    # For one client, whatever its losses: the distribution has one mode.
    chance = min(no_noise - less + 1.0 / noise.num_steps, 1.0)
    if chance**num_whole < _COINCIDENCE:
        raise ValueError(
            "values * num_examples are whole numbers, as with 0-1 losses and noise in steps of 1, got noise with "
            f"num_steps={noise.num_steps}; say binary=True (or num_steps=1), or give more digits of the values"
        )
