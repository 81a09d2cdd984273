"""Who answered, and with what noise: what all kinds of answers share (math §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, cast

import numpy as np

from riskband.answers.design import Design
from riskband.answers.metrics import first_of
from riskband.answers.noise import AnswerNoise
from riskband.checks import FloatArray, check_choice, check_count, float_of, set_fields, spelled
from riskband.wording import TRAINERS_ANSWERED, exactly, in_full
from riskband.wording.shown import Shown

MISSING = ("ignore", "worst")
"""What clients without a valid answer count as: missing at random, or the worst answer possible; "odds:3" between."""
ODDS = "odds:"

ANSWERED_BY = ("fresh", "trainers")
"""Who answered: clients that had no part in making the model, or clients that helped to train, tune or choose it."""

UNTIL_DECIDED = "until-decided"
ASK = ("all", UNTIL_DECIDED)
"""Who was asked: clients in a number that no answer had influenced, or further ones until something is decided."""
REPEATS = ("refuse", "draws")
"""What it means that a client answers again: an error, or that it was drawn anew."""
ERRORS = ("wrong", "missing", "leave_out")
"""What samples that raised an error count as, or the clients that have some."""
_ERRORS = {
    "wrong": "a sample that raised an error, or has no score, counts as wrong: {} of them",
    "missing": "a client with a sample that raised an error, or has no score, gave no valid answer: {} of them",
    "leave_out": "whether a sample raises an error, or has no score, says nothing of its loss: {} of them are left out",
}

INDEPENDENT_CLIENTS = "the clients that answered are independent draws from one meta-distribution of clients"
INDEPENDENT_ASKED = (
    "the clients that were asked, also those that gave no valid answer, are independent draws from one "
    "meta-distribution of clients"
)
INDEPENDENT_EXAMPLES = "each client's examples are independent draws from its own distribution, unseen in training"
FIXED_NUMBER = "how many clients were asked did not depend on any answer"
FRESH_CLIENTS = "the clients that answered had no part in training, tuning or choosing the model"
REPEATS_ARE_DRAWS = (
    "a client that answered more than once was drawn anew each time, whatever it had answered, and measured on new "
    "examples"
)
TRUE_ANSWERS = "every answer is the mean loss that the client measured"


def who_made_the_model(answered_by: str, *, option: str) -> str:
    """Which clients are taken to have answered, and how to say that it was the others: before anything is printed.

    `option` is how that is said, with {} for the word: "--answered-by {}".
    """
    if answered_by == "fresh":
        return f"taken as true: {FRESH_CLIENTS}; if they had, nothing is certified: say {option.format('trainers')}"
    return f"NOTHING IS CERTIFIED: {TRAINERS_ANSWERED}; if they had no part in making it, say {option.format('fresh')}"


class WhoAnswered(TypedDict, total=False):
    """Keyword arguments of all kinds of answers; see `Responses`."""

    num_missing: int
    missing: str
    contamination: int
    answered_by: str
    ask: str
    repeats: str
    errors: str


@dataclass(frozen=True)
class Responses:
    """How many clients answered, who they are, and how far their answers can be relied on.

    Attributes
    ----------
    num_clients : int
        Clients that answered.
    num_missing : int
        Clients that were asked and gave no valid answer.
    missing : {"ignore", "worst", "odds:GAMMA"}
        `ignore` (default): they change no number; above 0, the certificates list the assumption that they are missing
        at random. `worst`: each counts with the worst answer possible, and that assumption is not needed. Between these
        "odds:3": the odds of answering of any two clients differ by at most a factor of 3. Source: math §7.6.
    contamination : int
        At most so many of the answers, any of them, are wrong in any way; below the number of clients.
    answered_by : {"fresh", "trainers"}
        `fresh` (default): the clients that answered had no part in training, tuning or choosing the model, which every
        certificate lists as an assumption. `trainers`: they had, and no certificate follows about clients that had not:
        whatever is made of these answers is an estimate. Source: math §1.1.
    ask : {"all", "until-decided"}
        `all` (default): how many were asked did not depend on any answer, which certificates list as an assumption.
        `until-decided`: clients were asked until their answers decided something, and only bounds that hold for all
        numbers of clients at once follow. Source: math §17.
    repeats : {"refuse", "draws"}
        `refuse` (default): a client answers once, here and in all answers that meet these. `draws`: who answers again
        was drawn anew, and measured on new examples; the certificates list that as an assumption.
    errors : str
        What samples count as that raised an error, or have no score, and how many they are: "wrong:3"; or their
        clients: "missing:2"; or that they were left out: "leave_out:3". Empty if there are none.
    noise : AnswerNoise or None
        What every client added to its answer.
    design : Design or None
        How the clients were drawn; `None` if independently.

    Raises
    ------
    ValueError
        If a count is no whole number in its range, or `missing`, `answered_by`, `ask`, `repeats` or `errors` is
        unknown, or a design or odds are given with noise or contamination, or with each other.
    """

    num_clients: int
    num_missing: int = 0
    missing: str = "ignore"
    contamination: int = 0
    answered_by: str = "fresh"
    ask: str = "all"
    repeats: str = "refuse"
    errors: str = ""
    noise: AnswerNoise | None = None
    design: Design | None = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            contamination=check_contamination(self.contamination, num_clients=self.num_clients),
            num_missing=check_num_missing(self.num_missing),
            missing=check_missing(self.missing),
            answered_by=check_choice("answered_by", self.answered_by, ANSWERED_BY),
            ask=check_choice("ask", self.ask, ASK),
            repeats=check_choice("repeats", self.repeats, REPEATS),
            errors=check_errors(self.errors),
        )
        is_plain = self.noise is None and not self.contamination
        if not (self.are_independent or (is_plain and (self.design is None or self.missing == "ignore"))):
            raise ValueError(
                f"{self._drawn} must be without noise, contamination and missing clients that count, got "
                f"missing={self.missing!r} and contamination={self.contamination}; leave one of the two out"
            )

    @classmethod
    def of(cls, num_clients: int, who: WhoAnswered, *, design: Design | None = None) -> Responses:
        """Those of so many clients; raises TypeError for a keyword that answers do not have."""
        if unknown := who.keys() - WhoAnswered.__annotations__.keys():
            known = ", ".join(WhoAnswered.__annotations__)
            raise TypeError(f"answers have no keyword {min(unknown)!r}; who answered is said by {known}")
        return cls(num_clients, **who, design=design)

    @property
    def silent_odds(self) -> float:
        """By what factor the odds of answering of two clients may differ: 1 if none is missing, or at random."""
        if not self.num_missing or self.missing in MISSING:
            return np.inf if self.num_missing_worst else 1.0
        return float(self.missing.removeprefix(ODDS))

    @property
    def are_independent(self) -> bool:
        """Whether the clients that count are independent draws from the network: what most formulas are for."""
        return self.design is None and self.silent_odds in (1.0, np.inf)

    @property
    def _drawn(self) -> str:
        """What is said where they are not."""
        return f"missing={self.missing!r}" if self.design is None else f"a design of {self.design.kind}"

    def require_independent(self, name: str) -> None:
        """Raise ValueError, with what there is instead of `name`, unless `are_independent`."""
        if not self.are_independent:
            remedy = "missing='worst', which allows for any odds" if self.design is None else "no design if they are"
            raise ValueError(
                f"{name} must be of clients that are independent draws from one network, got {self._drawn}: its "
                "formula is not derived for them; ask ClientRisks for a mean, share, quantile, cvar or worst mean with "
                f"a delta of its own, or give {remedy}"
            )

    def require_fixed_number(self, name: str) -> None:
        """Raise ValueError, with what there is instead of `name`, if answers said how many clients were asked."""
        if self.ask == UNTIL_DECIDED:
            raise ValueError(
                f"{name} must be of a number of clients that no answer had influenced, got ask={self.ask!r}: further "
                "ones were asked until their answers decided something; take what holds at all times, rb.Sequence or "
                "the certificates of that run"
            )

    @property
    def num_missing_worst(self) -> int:
        """Number of missing clients that count with the worst answer."""
        return self.num_missing if self.missing == "worst" else 0

    @property
    def num_counted(self) -> int:
        """Number of clients that count: those that answered, and the missing if they count as worst."""
        return self.num_clients + self.num_missing_worst

    @property
    def are_answers_certain(self) -> bool:
        """Whether every client that counts gave an answer, and every answer is taken to be right."""
        return self.num_missing_worst == 0 and self.contamination == 0

    @property
    def are_as_measured(self) -> bool:
        """Whether `are_answers_certain`, and none has noise: what bets on single answers need."""
        return self.are_answers_certain and self.noise is None

    def to_dict(self) -> dict[str, Any]:
        """Return keyword arguments of the answers that say who answered and how, without those at their default."""
        return {
            "num_missing": self.num_missing,
            **({"missing": self.missing} if self.missing != "ignore" else {}),
            **({"contamination": self.contamination} if self.contamination else {}),
            **({"errors": self.errors} if self.errors else {}),
            **({} if self.noise is None else {"noise": self.noise.to_dict()}),
            **({"answered_by": self.answered_by} if self.answered_by != "fresh" else {}),
            **({"ask": self.ask} if self.ask != "all" else {}),
            **({"repeats": self.repeats} if self.repeats != "refuse" else {}),
            **({} if self.design is None else {"design": self.design.to_dict()}),
        }

    def assumptions(self, *of_losses: str, knows_draws: bool = False, at_all_times: bool = False) -> tuple[str, ...]:
        """What every certificate from these answers assumes, with what it assumes of the losses.

        Raises ValueError for clients that are not independent draws, unless its formula `knows_draws`; and for clients
        that were asked until something was decided, unless what it says holds `at_all_times`.
        """
        if not knows_draws:
            self.require_independent("this certificate")
        if not at_all_times:
            self.require_fixed_number("this certificate")
        but = f"every answer but at most {self.contamination}, which may be wrong in any way, is"
        answers = TRUE_ANSWERS.replace("every answer is", but) if self.contamination else TRUE_ANSWERS
        missing = f"the {self.num_missing} clients that were asked but gave no valid answer are missing at random"
        odds, fixed = self.silent_odds, FIXED_NUMBER
        drawn: tuple[str, ...] = (INDEPENDENT_CLIENTS if odds == 1.0 else INDEPENDENT_ASKED,)
        if self.design is not None:
            drawn, fixed = self.design.assumptions, FIXED_NUMBER.replace("clients", self.design.counted)
        if 1.0 < odds < np.inf:
            drawn += (
                "the odds of answering of any two clients that were asked differ by at most a factor of "
                f"{exactly(odds)}, whatever their risks and answers",
            )
        return (
            *drawn,
            *(() if at_all_times else (fixed,)),
            FRESH_CLIENTS if self.answered_by == "fresh" else TRAINERS_ANSWERED,
            INDEPENDENT_EXAMPLES,
            answers if self.noise is None else f"{answers} plus {self.noise.words}",
            *of_losses,
            *((_ERRORS[self.errors.partition(":")[0]].format(self.errors.partition(":")[2]),) if self.errors else ()),
            *((missing,) if self.num_missing and odds == 1.0 else ()),
            *((REPEATS_ARE_DRAWS,) if self.repeats == "draws" else ()),
        )

    def worst_completion(self, numbers: FloatArray) -> FloatArray:
        """Fill in what is not known of one number in [0, 1] per client so that the sum is as large as it can be.

        Returns the numbers, with 1 for the `contamination` smallest ones, and 1 for each missing client that counts,
        shape (num_counted,). The sorted true numbers of all these clients are nowhere larger. Source: math §7.1.
        """
        filled = np.append(numbers, np.ones(self.num_missing_worst))
        filled[np.argsort(numbers, kind="stable")[: self.contamination]] = 1.0
        return filled

    def require_certain_answers(self, name: str, remedy: str, *, knows_draws: bool = False) -> None:
        """Raise ValueError, with what to use instead of `name`, unless `are_as_measured`, of clients it knows."""
        if not knows_draws:
            self.require_independent(name)
        self.require_no_noise(name, remedy)
        if not self.are_answers_certain:
            raise ValueError(
                f"{name} needs missing='ignore' and contamination=0, got missing={self.missing!r} and "
                f"contamination={self.contamination}: its formula does not know missing or wrong answers; use {remedy}"
            )

    def require_no_noise(self, name: str, remedy: str) -> None:
        """Raise ValueError, with what to use instead of `name`, if the answers have noise."""
        if self.noise is not None:
            raise ValueError(
                f"{name} needs answers without noise, got noise={self.noise.mechanism!r}: its formula takes them for "
                f"what the clients measured; use {remedy}"
            )


T = TypeVar("T")


class _OfResponses(Generic[T]):
    """A field or property of `Responses` that the answers show under the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, answers: Any, owner: type) -> T:
        return cast(T, self if answers is None else getattr(answers.responses, self.name))


class Answers(Shown):
    """What all kinds of answers have in common: their `Responses`, whose fields they show, and how they are stored."""

    responses: Responses
    stored: ClassVar[tuple[str, ...]]
    """Fields that, with those of the responses, make the same answers again."""
    stored_if_known: ClassVar[tuple[str, ...]] = ()
    """Others, which are left out where they are None."""

    num_clients = _OfResponses[int]()
    num_missing = _OfResponses[int]()
    missing = _OfResponses[str]()
    contamination = _OfResponses[int]()
    answered_by = _OfResponses[str]()
    ask = _OfResponses[str]()
    repeats = _OfResponses[str]()
    noise = _OfResponses[AnswerNoise | None]()
    num_missing_worst = _OfResponses[int]()
    num_counted = _OfResponses[int]()
    are_answers_certain = _OfResponses[bool]()
    are_as_measured = _OfResponses[bool]()
    silent_odds = _OfResponses[float]()
    design = _OfResponses[Design | None]()
    are_independent = _OfResponses[bool]()
    require_independent = _OfResponses[Callable[[str], None]]()
    worst_completion = _OfResponses[Callable[[FloatArray], FloatArray]]()
    require_certain_answers = _OfResponses[Callable[..., None]]()
    require_no_noise = _OfResponses[Callable[[str, str], None]]()

    def __len__(self) -> int:
        """Number of clients that answered."""
        return self.num_clients

    def _facts(self) -> dict[str, object]:
        who = self.responses.to_dict() | {"noise": None if self.noise is None else self.noise.mechanism}
        who |= {"design": None if self.design is None else self.design.kind}
        return {**super()._facts(), **(who | {"num_missing": self.num_missing or None})}

    @property
    def own_assumptions(self) -> tuple[str, ...]:
        """What certificates from answers of this kind assume beyond what all do."""
        return ()

    def provenance(self) -> dict[str, Any]:
        """Return what a certificate stores of the answers that it was made from; see `riskband.certificate.Source`."""
        return {"band": None, "answers": self.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """Return keyword arguments that make these answers again, as plain data."""
        known = [name for name in self.stored_if_known if getattr(self, name) is not None]
        first, last = ({name: plain(getattr(self, name)) for name in names} for names in (self.stored, known))
        return {**first, **self.responses.to_dict(), **last}

    def by_client(self) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Return `to_dict` in two: what has an entry for each client, and what is said of all together."""
        stored = self.to_dict()
        columns = {name: each for name, each in stored.items() if isinstance(each, list)}
        return columns, {name: each for name, each in stored.items() if name not in columns}


def check_others(names: Iterable[str], others: Any, *, rule: str) -> None:
    """Raise ValueError, which names them, if clients with these names are among others, unless repeats are draws."""
    twice = sorted(set(names) & set(others.names or ()))
    if twice and others.repeats != "draws":
        raise ValueError(
            f"{rule}, got {first_of(twice)} in both ({len(twice)} of {len(others)}); leave them out, or say "
            "repeats='draws' (--repeats draws) if each was drawn anew and measured on new examples"
        )


def plain(value: Any) -> Any:
    """Return what JSON holds of a value: arrays and tuples as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def check_missing(missing: object) -> str:
    """Return what missing clients count as, odds at an end as the word for it; raises ValueError for anything else."""
    text = spelled(missing) if isinstance(missing, str) else ""
    if not text.startswith(ODDS):
        return check_choice("missing", text or repr(missing), (*MISSING, f"{ODDS}GAMMA"))
    try:
        odds = float_of(text.removeprefix(ODDS))
    except ValueError:
        odds = np.nan
    if not odds >= 1.0:
        raise ValueError(f"odds of answering must be a factor >= 1, got missing={text!r}; say {ODDS}3, or ignore")
    return "ignore" if odds == 1.0 else "worst" if odds == np.inf else f"{ODDS}{in_full(odds)}"


def check_errors(errors: object) -> str:
    """Return what samples with an error count as; raises ValueError unless it is empty or KIND:NUMBER."""
    kind, _, number = errors.partition(":") if isinstance(errors, str) else ("?", "", "")
    if errors and not (spelled(kind) in ERRORS and number.isdecimal() and int(number) > 0):
        raise ValueError(f"errors must be KIND:NUMBER, of a kind of {', '.join(ERRORS)}, got {errors!r}; say wrong:3")
    return f"{spelled(kind)}:{int(number)}" if errors else ""


def check_num_missing(num_missing: object) -> int:
    """Return `num_missing` as an int; raises ValueError unless it is a whole number >= 0."""
    return check_count("num_missing", num_missing, minimum=0, remedy="it counts clients without a valid answer")


def check_contamination(contamination: object, *, num_clients: int | None = None) -> int:
    """Return `contamination` as an int; raises ValueError unless it is a whole number >= 0, and below `num_clients`."""
    count = check_count("contamination", contamination, minimum=0, remedy="it counts clients, it is not a share")
    if num_clients is not None and count >= num_clients:
        raise ValueError(
            f"contamination must be below the number of clients that answered, {num_clients}, got {count}; "
            "if every answer may be wrong, nothing is known"
        )
    return count
