"""Every round's answers of a Flower app, kept on their way to Flower's own aggregation.

A strategy of Flower hands the metrics of all clients to `evaluate_metrics_aggr_fn`, which makes one average of them and
forgets the rest. `KeepRisks` stands there, remembers them, and lets the same average be made.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np

from riskband.answers.counts import share_problem
from riskband.answers.metrics import first_of, metric_problem, warn_of_empty
from riskband.answers.responses import ANSWERED_BY, UNTIL_DECIDED, WhoAnswered, check_contamination
from riskband.answers.risks import ClientRisks, risks_of_accuracies
from riskband.answers.rows import answer_problem
from riskband.answers.scaled import ClientChanges, ClientScores
from riskband.certificate import USUAL_DELTA, Certificate
from riskband.checks import (
    check_choice,
    check_flag,
    check_installed,
    check_num_examples,
    check_number,
    clip_rounding,
    in_decimals,
)
from riskband.means import mean_bound

if TYPE_CHECKING:
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    from riskband.worst_cases.sequences import Sequence as ClientSequence

S = TypeVar("S", bound=Any)

_REMEDIES = {
    "accuracy": "divide percentages by 100",
    "error": "divide percentages by 100",
    "score": "say which range it has, score_range=(low, high)",
    "missing": "say drop_missing=True, or let such a client raise: it counts as missing",
    "loss": "scale it by an upper end that is fixed before the data, and cut it there, or give an accuracy",
}
_LAST = -1
_TAKERS = ("evaluate_metrics_aggr_fn", "evaluate_metrics_aggregation_fn")


@dataclass(frozen=True)
class KeptRound:
    """What the clients said in one evaluation, in the order in which Flower aggregated them.

    Attributes
    ----------
    number : int
        1 for the first evaluation that was kept; the round of the strategy if that evaluates in each.
    values, num_examples : tuple of float
        The metrics; accuracies are accuracies.
    names, groups : tuple of str
        Of each client: what a metric says, or its node id, if the strategy is watched; empty if nothing says it.
    missing : mapping of str to str
        Clients that measured nothing, and why: by name or node id, all of them if the strategy is watched, otherwise
        those that replied with 0 examples. They stand in none of the others.
    asked : frozenset of str or None
        Node ids of the clients that were asked; None if the strategy is not watched.
    model : str
        Hash of the arrays that these clients were sent; "" if there were none, or the strategy is not watched.
    problem : str
        Why no risks can be made of the round; "" if they can.
    """

    number: int
    values: tuple[float, ...] = ()
    num_examples: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    asked: frozenset[str] | None = None
    model: str = ""
    problem: str = ""

    @property
    def is_awaited(self) -> bool:
        """Whether clients were asked and nothing has come."""
        return self.asked is not None and not self.values and not self.problem


class KeepRisks:
    """An `evaluate_metrics_aggr_fn` for Flower's strategies that keeps what each client measured, in every round.

    It is an `evaluate_metrics_aggregation_fn` for those of `flwr.server.strategy` as well. The strategy gets what it
    would have got without: metrics that cannot be used are a warning during the run, and an error where risks are made
    of them.

    Parameters
    ----------
    accuracy, loss, error, score : str
        One of them: the metric that clients send, a mean over their examples. `accuracy` and `error` (rate) are shares
        of the examples in [0, 1]; `loss` is the mean of a loss that lies in [0, 1] for every example, as
        `binary` must say: a cross-entropy or a squared error does not, unless it is scaled and cut. A `score` is no
        mean: AUC, F1, Dice.
    num_examples : str
        The metric with the number of these examples, not of batches. A client with 0 counts as missing.
    binary : bool, optional
        As for `riskband.ClientRisks`: whether every example's loss is 0 or 1, or anywhere in [0, 1]. An accuracy or
        error rate that is no share of so many examples is refused, unless `False` is said.
    higher_is_better : bool
        Of a score, and needed with it: whether a large one is good.
    score_range : (float, float)
        Of a score, known before any is measured.
    percent : bool
        Whether the accuracy is in percent.
    drop_missing : bool
        Whether clients that send no such metric, or NaN, count as missing; otherwise the round has no risks.
    name, group : str, optional
        Keys of a client's name and group, in its metrics, or, as only numbers fit there, in a ConfigRecord beside them.
    aggregate : callable, optional
        What makes the average instead of this: another `KeepRisks`, say, which keeps another metric. By default
        Flower's `aggregate_metricrecords`, and of `flwr.server.strategy` nothing.

    Raises
    ------
    ValueError
        If none or several of `accuracy`, `loss`, `error` and `score` are given, or percent of another, or by its name
        the metric is no mean of a loss (auc, f1, ...), or it may be none (loss, dice, ...) and `binary` is not said.
    """

    def __init__(
        self,
        *,
        accuracy: str | None = None,
        loss: str | None = None,
        error: str | None = None,
        score: str | None = None,
        higher_is_better: bool | None = None,
        score_range: tuple[float, float] = (0.0, 1.0),
        num_examples: str = "num-examples",
        percent: bool = False,
        drop_missing: bool = False,
        binary: bool | None = None,
        name: str | None = None,
        group: str | None = None,
        aggregate: Callable[..., Any] | None = None,
    ) -> None:
        given = {"accuracy": accuracy, "loss": loss, "error": error, "score": score}
        metrics = [(kind, metric) for kind, metric in given.items() if metric is not None]
        if len(metrics) != 1:
            raise ValueError(
                f"KeepRisks needs one of accuracy, loss, error and score, got {len(metrics)}; "
                'name the metric that your clients send, as in KeepRisks(accuracy="eval_acc")'
            )
        [(self._kind, self._metric)] = metrics
        if percent and accuracy is None:
            raise ValueError("percent=True is for accuracies; let clients divide others by 100")
        if (higher_is_better is None) != (score is None):
            raise ValueError(f"a score, and no other metric, needs higher_is_better, got {higher_is_better}; say which")
        if score is None and (problem := metric_problem(self._metric, binary=binary, is_any=loss is not None)):
            raise ValueError(problem)
        self._higher_is_better, self._range = bool(higher_is_better), score_range
        self._scale, self._drop_missing = 100.0 if percent else 1.0, drop_missing
        self._binary = binary
        self._num_examples, self._name, self._group = num_examples, name, group
        self._aggregate = aggregate
        self._rounds: list[KeptRound] = []
        self._trained: set[str] = set()
        self._watched: list[Any] = []
        self._asked: list[Any] = []
        self._has_decided = (
            False  # a sequence was looked at: how many are asked, and in which round, may follow from it
        )
        self._nodes: dict[int, str] = {}  # of what a strategy hands on, by its identity

    def __call__(self, records: list[Any], weighting_metric_name: str | None = None) -> Any:
        """Keep the metrics of all clients and return what the strategy would have got without."""
        is_legacy = weighting_metric_name is None  # of flwr.server.strategy: pairs of a number of examples and metrics
        parts = [metrics for _, metrics in records] if is_legacy else records
        found = [{self._num_examples: n, **metrics} for n, metrics in records] if is_legacy else map(_entries, records)
        self._keep(list(found), [self._nodes.get(id(part), "") for part in parts])
        if is_legacy:
            return {} if self._aggregate is None else self._aggregate(records)
        return (self._aggregate or _flowers_own())(records, weighting_metric_name)

    def watch(self, strategy: S) -> S:
        """Note which nodes a strategy asks, and which it trains; returns the strategy, whose messages stay the same.

        The metrics do not say who was asked and did not reply, nor who trained. With this, the first are counted as
        missing, and `answered_by="fresh"` is refused for clients that were sent a training message.

        Raises
        ------
        ValueError
            If the strategy hands its metrics to something else.
        """
        takers = [getattr(strategy, name, None) for name in _TAKERS]
        takers += [taker._aggregate for taker in takers if isinstance(taker, KeepRisks)]  # which hands them on
        if any(takers) and not any(taker is self for taker in takers):
            raise ValueError(
                "watch needs a strategy whose evaluate_metrics_aggr_fn is this KeepRisks, got another; "
                "say FedAvg(..., evaluate_metrics_aggr_fn=kept), or evaluate_metrics_aggregation_fn in flwr.server"
            )
        if any(strategy is each for each in self._watched):
            return strategy
        self._watched.append(strategy)
        for method in {"configure_train", "configure_fit"} & set(dir(strategy)):
            setattr(strategy, method, _noted(getattr(strategy, method), self._note_trained))
        strategy.configure_evaluate = _noted(strategy.configure_evaluate, self._note_asked)
        strategy.aggregate_evaluate = self._noting_replies(strategy.aggregate_evaluate)
        return strategy

    @property
    def rounds(self) -> tuple[KeptRound, ...]:
        """All rounds so far."""
        return tuple(self._rounds)

    def risks(self, round: int = _LAST, **who: Unpack[WhoAnswered]) -> ClientRisks:
        """Return the risks that the clients measured in a round: for tables and figures of any, for bounds of the last.

        Parameters
        ----------
        round : int
            Its number, from 1, or -1 for the last.
        **who : WhoAnswered
            `num_missing`, `missing`, `contamination` and `answered_by` as for `riskband.ClientRisks`, but for two
            defaults. `answered_by` is "trainers", since the clients that evaluate in a Flower app have usually trained
            the model: say "fresh" if these had no part in it. `num_missing` is counted if the strategy is watched;
            otherwise say how many were asked and did not reply. `ask` is "until-decided" once a `sequence` was made,
            after which only it certifies anything: say "all" if nothing that it said ended or prolonged the run.

        Raises
        ------
        ValueError
            If there is no such round, or its metrics cannot be used, or what is said about who answered contradicts
            what was seen, or as for `ClientRisks`.
        """
        if self._kind == "score":
            take = "rb.bound(kept.scores(), 'mean', delta=0.05) or rb.report_page(kept.scores(), delta=0.05)"
            raise ValueError(f"{self._metric!r} is a score and no mean of losses: a round has no risks; take {take}")
        return self._risks_of(self._kept_round(round), who)

    def scores(self, round: int = _LAST, **who: Unpack[WhoAnswered]) -> ClientScores:
        """Return the scores that the clients measured in a round; arguments and errors are those of `risks`."""
        if self._kind != "score":
            raise ValueError(f"{self._metric!r} was not kept as a score; say KeepRisks(score=...), or take risks()")
        return self._scores_of(self._kept_round(round), who)

    def changes_since(
        self, old: KeepRisks, *, round: int = _LAST, old_round: int = _LAST, **who: Unpack[WhoAnswered]
    ) -> ClientChanges:
        """Return by how much each client's loss is larger in a round kept here than in one kept by `old`.

        Clients are matched by name, or by node if the strategies were watched. Who measured in one of the two only
        counts as missing, with a warning that names them.

        Parameters
        ----------
        old : KeepRisks
            Of the old model; it may be this one, for another round.
        round, old_round : int
            Their numbers, from 1, or -1 for the last; fixed before any answer was seen.
        **who : WhoAnswered
            See `risks`.

        Raises
        ------
        ValueError
            If nothing says which client is which, fewer than two measured in both, or as for `risks` and
            `ClientChanges.between`.
        """
        both = old.risks(old_round, **who), self.risks(round, **who)
        kept = old._kept_round(old_round), self._kept_round(round)
        if not all(each.names for each in kept) or not {*kept[0].names} & {*kept[1].names}:
            rule = "changes need names in both evaluations, and the same ones"
            raise ValueError(f"{rule}; node ids may be new in each run: say KeepRisks(name=...), or watch both in one")
        only = set(kept[0].names) ^ set(kept[1].names)
        if only:
            rule = "clients measured in one of the two evaluations only, and count as missing"
            warnings.warn(f"{len(only)} {rule}: {first_of(sorted(only))}", stacklevel=2)
        # Each is missing in the other one.
        num_missing = max(risks.num_missing + len(only & {*(risks.names or ())}) for risks in both)
        paired = (
            risks.of_clients(np.flatnonzero([name not in only for name in each.names]), num_missing)
            for risks, each in zip(both, kept, strict=True)
        )
        return ClientChanges.between(*paired)

    def sequence(
        self, asked: str | Sequence[str], *, delta: float, is_one_model: bool, **who: Unpack[WhoAnswered]
    ) -> ClientSequence:
        """Return what all clients that measured so far decide: for a loop that asks new ones until it is decided.

        Every client counts once, by the first answer of its own, however often it is drawn again; those of one round
        stand in the order of a hash of their names. Look after every round, and stop when you like.

        Parameters
        ----------
        asked : str or sequence of str
            Requirements such as "mean<=0.2", or numbers, fixed before any answer was seen; as for `riskband.Sequence`.
        delta : float
            Probability that anything is false at any time, in (0, 1).
        is_one_model : bool
            Your word that all evaluations were of one model, without which there is nothing to add up: in a loop that
            trains between them, answers of later rounds are about other models.
        **who : WhoAnswered
            See `risks`. Unless `answered_by="fresh"` is said, all is an estimate, and nothing is ever decided.

        Returns
        -------
        Sequence
            ``is_decided`` says whether to stop; with the gate and the certificates.

        Raises
        ------
        ValueError
            If the evaluations were not of one model, by your word or by what a watched strategy sent; or nothing says
            which client is which; or as for `risks` and `Sequence`.
        """
        rounds = [each if each.is_awaited else self._kept_round(each.number) for each in self._rounds]
        models = {each.model for each in rounds}
        if not check_flag("is_one_model", is_one_model) or len(models) > 1:
            seen = f", got {len(models)} in {len(rounds)} evaluations" if len(models) > 1 else ""
            rule = "a sequence adds up answers about one model, and you must say that all were about it"
            raise ValueError(f"{rule}{seen}; evaluate with fraction_train=0, and another KeepRisks for each model")
        self._has_decided = True
        kept = _first_answers(rounds)
        is_score = self._kind == "score"
        # By name, as in `report`.
        make = import_module("riskband.worst_cases.sequences").Sequence
        sequence: ClientSequence = make(asked, delta=delta, of=ClientScores if is_score else ClientRisks)
        if len(kept.values) > 1:
            found = self._scores_of(kept, who) if is_score else self._risks_of(kept, who)
            sequence.add(found, batches=[1] * len(found))  # their order is that of a hash
        return sequence

    def certify(self, *, delta: float, round: int = _LAST, **who: Unpack[WhoAnswered]) -> Certificate:
        """Upper bound on the mean risk over unseen clients of the model that was evaluated last.

        Parameters
        ----------
        delta : float
            Probability that the bound fails, in (0, 1).
        round : int
            -1 or the number of the last round. Only that one is fixed before its answers are seen, and only if the
            number of rounds was.
        **who : WhoAnswered
            See `risks`. Unless `answered_by="fresh"` is said, the result is an estimate, and its statement says so.

        Returns
        -------
        Certificate
            Of `riskband.mean_bound`. Everything else is made of `risks()`, as in ``rb.band(kept.risks(), delta=0.05)``.

        Raises
        ------
        ValueError
            If the round is another than the last, or as for `risks` and `mean_bound`.
        """
        if round not in (_LAST, len(self._rounds)):
            raise ValueError(
                f"round must be -1, the last of {len(self._rounds)}, got {round!r}: of a round picked after its "
                "answers were seen no bound holds at this delta. Fix the number of rounds beforehand; if this round "
                "was fixed then, use mean_bound(kept.risks(round), delta=...); to choose the best: docs/selection.md"
            )
        return mean_bound(self.risks(round, **who), delta=delta)

    def report(
        self,
        path: str | Path,
        *,
        delta: float = USUAL_DELTA,
        require: str | Sequence[str] = (),
        title: str = "Federated evaluation",
        public: bool = False,
        **who: Unpack[WhoAnswered],
    ) -> None:
        """Write a page on the last round for the person who signs; needs the extra ``report``.

        Parameters
        ----------
        path : str or Path
            Where to; ending in .html.
        delta, require, title, public :
            As for `riskband.report_page`.
        **who : WhoAnswered
            See `risks`. Unless `answered_by="fresh"` is said, all numbers of the page are estimates, and it is red.

        Raises
        ------
        ValueError
            As for `risks` and `report_page`.
        """
        # By name: an import would be one more arrow of the house (tests/house.py).
        report_page = import_module("riskband.report.page").report_page
        page = report_page(self.risks(**who), delta=delta, require=require, title=title, public=public)
        Path(path).write_text(page, encoding="utf-8")

    def _note_trained(self, sent: list[Any]) -> None:
        self._trained |= set(map(_node, sent))

    def _note_asked(self, sent: list[Any]) -> None:
        self._asked = sent
        if sent:
            asked = frozenset(map(_node, sent))
            self._rounds.append(KeptRound(len(self._rounds) + 1, asked=asked, model=_model(sent[0])))

    def _noting_replies(self, aggregate: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method of a strategy that takes replies, with a note of whose they are and why others are not."""

        def note_and_aggregate(server_round: int, replies: Iterable[Any], *failures: Any) -> Any:
            replies = list(replies)
            self._nodes, failed = _senders(self._asked, replies, *failures)
            if self._rounds and self._rounds[-1].is_awaited:
                asked = self._rounds[-1].asked or frozenset()
                silent = sorted(asked.difference(self._nodes.values()))
                missing = {node: failed.get(node, "no reply") for node in silent}
                self._rounds[-1] = replace(self._rounds[-1], missing=missing)
                if missing:
                    rule = f"{len(missing)} of {len(asked)} clients that were asked count as missing"
                    named = first_of([f"{node} ({why})" for node, why in missing.items()])
                    warnings.warn(f"{rule}: {named}", stacklevel=2)
            try:
                return aggregate(server_round, replies, *failures)
            finally:
                self._nodes = {}  # another object may have the identity of one that is gone

        return note_and_aggregate

    def _keep(self, clients: list[dict[str, Any]], nodes: list[str]) -> None:
        if not (self._rounds and self._rounds[-1].is_awaited):  # nobody noted that clients are being asked
            self._rounds.append(KeptRound(len(self._rounds) + 1))
        current = self._rounds[-1]
        try:
            kept = self._filled(current, clients, nodes)
            problem = self._share_problem(kept)
        except ValueError as error:
            problem = str(error)
            kept = replace(current, problem=problem)
        if problem:
            warnings.warn(f"riskband can make no risks of this evaluation: {problem}", stacklevel=3)
        self._rounds[-1] = kept

    def _filled(self, current: KeptRound, clients: list[dict[str, Any]], nodes: list[str]) -> KeptRound:
        names = _texts(clients, self._name) or (tuple(nodes) if all(nodes) else ())
        if len(set(names)) < len(names):
            raise ValueError(f"every client may answer once, got {max(names, key=names.count)!r} more than once")
        if current.asked is not None and len(clients) > len(current.asked):
            raise ValueError(f"at most {len(current.asked)} clients were asked, got {len(clients)} replies")
        sizes = [_number(client, self._num_examples) for client in clients]
        called = names or [f"number {k + 1}" for k in range(len(clients))]
        silent = {k: f"no {self._metric!r}" for k, client in enumerate(clients) if self._is_silent(client)}
        empty = {k: "0 examples" for k, size in enumerate(sizes) if size == 0.0}
        missing = {called[k]: why for k, why in (silent | empty).items()}
        measured = [k for k, name in enumerate(called) if name not in missing]
        if not measured:
            raise ValueError(f"some client must have examples, got 0 or nothing from all {len(clients)}; ask others")
        warn_of_empty([called[k] for k in empty], stacklevel=4)
        counts = check_num_examples([sizes[k] for k in measured], num_clients=len(measured))
        values = [self._value(clients[k]) for k in measured]
        if not names and (doubt := answer_problem(np.array(values), counts, flag="name=")):
            raise ValueError(doubt)
        return replace(
            current,
            values=tuple(values),
            num_examples=tuple(counts.tolist()),
            names=tuple(names[k] for k in measured) if names else (),
            groups=_texts([clients[k] for k in measured], self._group),
            missing={**current.missing, **missing},
        )

    def _risks_of(self, kept: KeptRound, who: WhoAnswered) -> ClientRisks:
        of = risks_of_accuracies if self._kind == "accuracy" else ClientRisks
        return of(np.array(kept.values), np.array(kept.num_examples), self._binary, **self._checked(kept, who))

    def _scores_of(self, kept: KeptRound, who: WhoAnswered) -> ClientScores:
        low, high = self._range
        said = {"name": self._metric, "low": low, "high": high, **self._checked(kept, who)}
        return ClientScores(kept.values, self._higher_is_better, **said)

    def _checked(self, kept: KeptRound, who: WhoAnswered) -> dict[str, Any]:
        """What is said of who answered, with names and groups."""
        answered_by = check_choice("answered_by", who.get("answered_by", "trainers"), ANSWERED_BY)
        both = (kept.asked or frozenset()) & self._trained
        if answered_by == "fresh" and both:
            raise ValueError(
                f"answered_by='fresh' needs clients that had no part in training, got {len(both)} that were sent "
                "training messages; leave answered_by='trainers', or hold clients out (docs/flower-apps.md)"
            )
        if problem := self._share_problem(kept, check_contamination(who.get("contamination", 0))):
            raise ValueError(f"round {kept.number} has no risks: {problem}")
        num_missing = _num_missing(kept, who.get("num_missing"))
        labels = {"names": kept.names or None, "groups": kept.groups or None}
        ask = {"ask": UNTIL_DECIDED} if self._has_decided else {}
        return {**ask, **who, **labels, "answered_by": answered_by, "num_missing": num_missing}

    def _share_problem(self, kept: KeptRound, contamination: int = 0) -> str:
        if self._kind in ("loss", "score") or self._binary is False:
            return ""
        return share_problem(np.array(kept.values), np.array(kept.num_examples), contamination=contamination)

    def _is_silent(self, client: Mapping[str, Any]) -> bool:
        value = client.get(self._metric, np.nan)
        return self._drop_missing and isinstance(value, float) and bool(np.isnan(value))

    def _value(self, client: Mapping[str, Any]) -> float:
        value, (low, high) = float(in_decimals(_number(client, self._metric) / self._scale)), self._range
        value = float(clip_rounding(np.array(value))) if (low, high) == (0.0, 1.0) else value
        if not low <= value <= high:
            remedy = _REMEDIES["missing" if np.isnan(value) else self._kind]
            raise ValueError(f"{self._kind} {self._metric!r} must lie in [{low:g}, {high:g}], got {value:g}; {remedy}")
        return value

    def _kept_round(self, round: int) -> KeptRound:
        if round != _LAST and not 1 <= round <= len(self._rounds):
            raise ValueError(f"round must be one of the {len(self._rounds)} kept, from 1, or -1, got {round!r}")
        if not self._rounds:
            remedy = "give this KeepRisks to the strategy as evaluate_metrics_aggr_fn and start it"
            raise ValueError(f"no evaluation was kept; {remedy}")
        kept = self._rounds[round if round == _LAST else round - 1]
        if kept.problem or not kept.values:
            raise ValueError(f"round {kept.number} has no risks: {kept.problem or 'no client replied; ask again'}")
        return kept


def _first_answers(rounds: Sequence[KeptRound]) -> KeptRound:
    """All rounds as one, in which every client has its first answer; raises ValueError if one has no name."""
    first: dict[str, tuple[float, float, str]] = {}
    for each in rounds:
        if len(each.names) < len(each.values):
            raise ValueError("a sequence counts each client once, which needs names; watch(strategy), or say name=...")
        groups = each.groups or ("",) * len(each.names)
        found = zip(each.names, zip(each.values, each.num_examples, groups, strict=True), strict=True)
        # Of a hash: names may tell of the risks, as those of wards do, and bets see these in their order.
        in_order = sorted(found, key=lambda each: sha256(each[0].encode()).digest())
        first |= {name: answer for name, answer in in_order if name not in first}
    values, sizes, groups = zip(*first.values(), strict=True) if first else ((), (), ())
    asked = [each.asked for each in rounds]
    return KeptRound(
        len(rounds),
        values,
        sizes,
        names=tuple(first),
        groups=groups if all(groups) else (),
        missing={name: why for each in rounds for name, why in each.missing.items() if name not in first},
        asked=None if None in asked else frozenset().union(*filter(None, asked)),
    )


def _model(sent: Any) -> str:
    """Hash of the arrays in a message."""
    if isinstance(sent, tuple):
        parts = sent[1].parameters.tensors
    else:
        parts = [array.data for record in sent.content.array_records.values() for array in record.values()]
    digest = sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest() if parts else ""


def _entries(record: RecordDict) -> dict[str, Any]:
    """What a client sent beside arrays; a metric goes before a text of the same name."""
    parts: tuple[ConfigRecord | MetricRecord, ...] = (*record.config_records.values(), *record.metric_records.values())
    return {key: value for part in parts for key, value in part.items()}


def _flowers_own() -> Callable[..., Any]:
    check_installed("flwr", extra="flower")
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

    return aggregate_metricrecords


def _noted(configure: Callable[..., Any], note: Callable[[list[Any]], None]) -> Callable[..., list[Any]]:
    """Return the method of a strategy that makes messages, with a note of them."""

    def configure_and_note(*args: Any, **kwargs: Any) -> list[Any]:
        messages = list(configure(*args, **kwargs))
        note(messages)
        return messages

    return configure_and_note


def _node(sent: Any) -> str:
    """Where a message goes to, which in flwr.server is a pair with the client."""
    return str(sent[0].cid if isinstance(sent, tuple) else sent.metadata.dst_node_id)


def _senders(
    asked: list[Any], replies: list[Any], failures: Iterable[Any] = ()
) -> tuple[dict[int, str], dict[str, str]]:
    """Whose the content is that is handed on, by its identity, and by node why there is none."""
    pairs = [each for each in replies if isinstance(each, tuple)]
    nodes = {id(result.metrics): str(client.cid) for client, result in pairs}
    failed = {str(each[0].cid): each[1].status.message for each in failures if isinstance(each, tuple)}
    if pairs or failed:
        return nodes, failed
    # An error of a node that is gone comes from the SuperLink.
    of_message = {each.metadata.message_id: _node(each) for each in asked if not isinstance(each, tuple)}
    for reply in replies:
        node = of_message.get(reply.metadata.reply_to_message_id, str(reply.metadata.src_node_id))
        if reply.has_error():
            failed[node] = reply.error.reason or f"error {reply.error.code}"
        else:
            nodes[id(reply.content)] = node
    return nodes, failed


def _found(client: Mapping[str, Any], key: str) -> Any:
    if key not in client:
        raise ValueError(f"every client must send {key!r}, got {', '.join(sorted(client))}; name one of these")
    return client[key]


def _number(client: Mapping[str, Any], key: str) -> float:
    return check_number(f"metric {key!r}", _found(client, key), remedy="send one number")


def _texts(clients: list[dict[str, Any]], key: str | None) -> tuple[str, ...]:
    return () if key is None else tuple(str(_found(client, key)) for client in clients)


def _num_missing(kept: KeptRound, said: int | None) -> int:
    """How many measured nothing: as counted, else as said, or none with a warning, and those without examples."""
    if kept.asked is None:
        if said is None:
            remedy = "call kept.watch(strategy) before it starts, or say num_missing=0"
            unknown = "how many clients were asked is not known, all are taken to have replied"
            warnings.warn(f"{unknown}; {remedy}", stacklevel=4)
        return (said or 0) + len(kept.missing)
    counted = len(kept.asked) - len(kept.values)
    if said not in (None, counted):
        raise ValueError(f"num_missing must be what was counted, {counted}, got {said!r}; leave it out")
    return counted
