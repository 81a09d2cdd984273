"""Certificates as one HTML file: no network, no script needed, at most 1 MB."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import riskband as rb
from riskband.answers.adversarial import AdversarialAnswers
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import RISK, ScaledAnswers, is_scaled
from riskband.checks import check_delta, check_flag, check_installed, check_kind
from riskband.report.asked import DEFAULT_BUDGETS, Asked, are_few, certified
from riskband.report.compared import certified_on_scale
from riskband.report.findings import Findings, findings
from riskband.report.markup import PAGE, SCRIPT, STYLE
from riskband.report.view import RunFacts, view_of
from riskband.report.words import num_clients_of
from riskband.verification import COLLECTION_SCHEMA
from riskband.wording import exactly
from riskband.worst_cases.requirements import Gate, read_requirements

if TYPE_CHECKING:
    from jinja2 import Template

    from riskband.certificate import Certificate

PUBLIC_SCHEMA, PACKED_SCHEMA = "riskband.public/1", "riskband.packed/1"
NOT_RECOMPUTABLE = "what each client measured was left out of this page, so nothing on it can be computed again"
STILL_PUBLIC = (
    "It still has the names, sizes and intervals of groups, and the smallest and the largest number of examples of a "
    "client, where there are any. Anyone who knows the formulas can work out what clients measured from exact bounds: "
    "with a handful of clients from any of them, and from a quantile that of one client, however many there are."
)
NOISY = "To prevent that, ask for noisy answers and make the page from these."  # changes and scores take no noise
_MOST_FOR_A_BAND = 20_000  # clients; of more only what is in the certificates is shown: 50 000 would fill the 1 MB
_LARGEST_STORED = 700_000  # characters of JSON; a page is to stay below 1 MB
WHOLE, PACKED = "whole", "packed"


def report_page(
    source: ClientRisks | ScaledAnswers | Findings | Certificate | Mapping[str, Certificate],
    *,
    delta: float | None = None,
    require: str | Sequence[str] | Gate = (),
    title: str = "Evaluation",
    facts: RunFacts | None = None,
    public: bool = False,
) -> str:
    """Answers or certificates as a page for the person who signs: one self-contained HTML file.

    Parameters
    ----------
    source : ClientRisks, ClientChanges, ClientScores, Findings, Certificate or mapping of str to Certificate
        Answers, what `compare` found, or certificates of one evaluation, the first of which is the sentence at the top.
        The page has the names and groups of clients, where the answers have them.
    delta : float, optional
        With answers: probability that anything on the page fails, in (0, 1): the numbers that are required, or the
        mean, and of risks a band and the groups, share it equally.
    require : str, sequence of str or Gate
        Requirements such as "mean<=0.2", fixed before any answer was seen; with certificates the `Gate` of them.
        Without any the page has no verdict.
    title : str
        What was evaluated.
    facts : RunFacts, optional
        What is known beside the certificates.
    public : bool
        Leave the clients' losses and names out, and everything that shows them one by one. Such a page cannot be
        computed again, and says so, with what groups and exact bounds still tell of single losses; to prevent that,
        ask for noisy answers and make the page from these.

    Returns
    -------
    str
        The page. It stores its certificates, for `riskband verify`: compressed if they are large, and none if that is
        too large still. It shows what they say and makes none; of answers it has some more that are read off the band.

    Raises
    ------
    ValueError
        If there is no certificate, they are of different answers, a recipe cannot be followed, or as for `mean_bound`
        and `require`.
    ImportError
        If jinja2 is not installed, with what to do.

    Examples
    --------
    >>> import riskband as rb
    >>> answers = rb.ClientRisks([0.02, 0.05, 0.1, 0.04] * 10, num_examples=100)
    >>> "PASS" in rb.report_page(answers, delta=0.05, require="mean<=0.2")
    True
    """
    if not isinstance(title, str):
        raise ValueError(f"title must be text, got {title!r:.80}; say what was evaluated")
    if facts is not None:
        check_kind("facts", facts, RunFacts, remedy="leave it out, or make it with RunFacts(...)")
    public = check_flag("public", public)
    certificates, gate = _given(source, delta, require)
    _check_one_evaluation({name: _answers(each) for name, each in certificates.items()})
    given = {**dict(list(certificates.items())[:1]), **({} if gate is None else gate.certificates)}
    _check_one_evaluation({name: _without_movement(_answers(each)) for name, each in given.items()})
    return _rendered(certificates, gate, title=title, facts=facts or RunFacts(), public=public)


def _rendered(
    certificates: Mapping[str, Certificate],
    gate: Gate | None,
    *,
    title: str,
    facts: RunFacts,
    public: bool = False,
) -> str:
    found = findings(certificates, gate=gate, limits=facts.limits, names=facts.names)
    if num_clients_of(found.answers) > _MOST_FOR_A_BAND:
        found = replace(found, band=None)
    view = view_of(found, title=title, facts=facts, public=public)
    shown = view["certificates"]
    page = {"version": rb.__version__, "of": list(certificates), "title": title, "facts": asdict(facts)}
    # Of two of one quantity that which is not shown has its part of delta, too, so the page made again needs it; before
    # those that are, which verdicts follow from.
    beside = {} if public else {name: each for name, each in certificates.items() if name not in shown}
    kept = beside | shown
    stored, holds = _stored(kept, gate, page, public=public)
    digests = {} if public else {name: _digest(each) for name, each in shown.items()}
    if not (holds or public):
        stored |= {"page": page, "sha256": digests}  # what is signed
    check_installed("jinja2", extra="report")
    from jinja2.utils import htmlsafe_json_dumps

    text = htmlsafe_json_dumps(stored, allow_nan=False)
    signed = "" if public else hashlib.sha256(text.encode("utf-8")).hexdigest()
    style = STYLE.replace("{sha256}", f"SHA-256 {signed}" if signed else "")
    return written(
        PAGE,
        style,
        view=view,
        stored=text,
        signed=signed,
        holds=holds,
        withheld=NOT_RECOMPUTABLE,
        still_public=STILL_PUBLIC if is_scaled(found.answers) else f"{STILL_PUBLIC} {NOISY}",
        digests=digests,
        refresh=None,
    )


def written(markup: str, style: str = STYLE.replace("{sha256}", ""), **said: Any) -> str:
    """Return a page of this markup, with what is said on it; raises ImportError, with what to do, without jinja2."""
    hashes = {"style_hash": _hash(style), "script_hash": _hash(SCRIPT)}
    return _template(markup).render(version=rb.__version__, style=style, script=SCRIPT, **hashes, **said)


def page_again(page: Mapping[str, Any], stored: Mapping[str, Certificate], gate: Gate | None) -> str:
    """Return a page once more from what it holds: its own facts, its certificates, and the verdicts, computed again.

    It is the same text if this version made it and nobody changed it. Raises ValueError if the facts cannot be read.
    """
    try:
        certificates = {name: stored[name] for name in page["of"]}
        read: dict[str, Any] = {k: tuple(each) if isinstance(each, list) else each for k, each in page["facts"].items()}
        return _rendered(certificates, gate, title=page["title"], facts=RunFacts(**read))
    except (ImportError, ValueError):
        raise
    except Exception as error:  # also those of the template, whatever was written into the facts
        raise ValueError(f"what the page was made of cannot be read ({error!r}); was it cut?") from error


def _given(
    source: ClientRisks | ScaledAnswers | Findings | Certificate | Mapping[str, Certificate],
    delta: float | None,
    require: str | Sequence[str] | Gate,
) -> tuple[dict[str, Certificate], Gate | None]:
    """The certificates of a page, and its verdicts."""
    if isinstance(source, Findings) and delta is None and not require:
        return dict(source.certificates), source.gate
    if isinstance(source, (ClientRisks, ScaledAnswers)):
        if isinstance(require, Gate):
            raise ValueError("with answers, require must be requirements, got their Gate; give its requirements")
        if delta is None:
            raise ValueError("with answers, delta must be given: the probability that a bound fails; 0.05 is usual")
        required = tuple(read_requirements(require or (), getattr(source, "scale", RISK)))
        if isinstance(source, ScaledAnswers):
            found = certified_on_scale(source, delta=delta, require=required)
            return dict(found.certificates), found.gate
        wanted = "two" if source.num_clients <= _MOST_FOR_A_BAND else ""
        has_mean = not (
            required or are_few(source, delta=check_delta(delta) / 3.0)
        )  # few are told of the next one first
        asked = Asked(check_delta(delta), mean=has_mean, require=required, band=wanted, groups=True)
        found = certified(source, asked)
        return _with_shifts(found), found.gate
    if delta is not None or not (isinstance(require, Gate) or not require):
        raise ValueError("delta and requirements are for answers; certificates have a delta, and take require=Gate")
    given: dict[str, Any] = dict(source) if isinstance(source, Mapping) else {"certificate": source}
    remedy = "or answers with a delta, what compare found of one new model, or a mapping of certificates by name"
    for each in given.values():
        check_kind("source", each, rb.Certificate, remedy=remedy)
    return given, require if isinstance(require, Gate) else None


def _with_shifts(found: Findings) -> dict[str, Certificate]:
    """The certificates, and what may change at the usual budgets, which is read off the band and costs nothing."""
    certificates, threshold, band = dict(found.certificates), found.threshold, found.band
    if band is None:
        return certificates
    for divergence in found.divergences:
        known = [found.over_budgets(divergence, point) for point in (None, threshold)]
        mean, share = ([size for size in DEFAULT_BUDGETS if size not in bounds] for bounds in known)
        shift: dict[str, Any] = {"divergence": divergence}
        if mean:
            certificates[f"mean@{divergence}"] = rb.worst_case_mean(band, budget=mean, **shift)
        if share and threshold is not None:
            more = rb.worst_case_cdf(band, budget=share, thresholds=threshold, **shift)
            certificates[f"share:{exactly(threshold)}@{divergence}"] = more
    return certificates


@cache
def _template(markup: str) -> Template:
    check_installed("jinja2", extra="report")
    from jinja2 import Environment, StrictUndefined  # only pages need it

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # and keys as they are: the order of axes counts
    return environment.from_string(markup)


def _check_one_evaluation(answers_of: Mapping[str, Mapping[str, Any]]) -> None:
    if not answers_of:
        raise ValueError("a report needs at least one certificate, got none")
    (name, first), *others = answers_of.items()
    for other, answers in others:
        if _rows(answers) != _rows(first):
            raise ValueError(
                f"certificates of a report must be of the same answers, got others in {other!r} than in {name!r}; "
                "make a page for each evaluation"
            )


def _rows(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Plain answers regardless of the order of the clients, in which bets may have put them; others as they are."""
    values, sizes = answers.get("values"), answers.get("num_examples")
    if values is None or not isinstance(sizes, list):
        return dict(answers)
    return {**answers, "values": sorted(zip(values, sizes, strict=True)), "num_examples": None}


def _answers(certificate: Certificate) -> dict[str, Any]:
    """The answers of a certificate, without names and groups, which those of the same clients may lack."""
    stored = certificate.recipe.get("answers", {})
    return {key: value for key, value in stored.items() if key not in ("names", "groups")}


def _without_movement(answers: dict[str, Any]) -> dict[str, Any]:
    """Adversarial answers as the plain losses, which requirements are about; others as they are."""
    return AdversarialAnswers(**answers).clean.to_dict() if "radii" in answers else answers


def _stored(
    certificates: Mapping[str, Certificate], gate: Gate | None, page: Mapping[str, Any], *, public: bool
) -> tuple[dict[str, Any], str]:
    """What the page holds, to be verified and made again, and how much that is: `WHOLE`, `PACKED` or nothing, ""."""
    if public:
        said = {
            name: {"statement": each.statement, "validity": each.validity, "delta": each.delta, "method": each.method}
            for name, each in certificates.items()
        }
        return {"schema": PUBLIC_SCHEMA, "withheld": NOT_RECOMPUTABLE, "certificates": said}, ""
    whole = {name: each.to_dict() for name, each in certificates.items()}
    document: dict[str, Any] = {"schema": COLLECTION_SCHEMA, "page": dict(page), "certificates": whole}
    if gate is not None:
        document["gate"] = gate.to_dict()
    if len(json.dumps(document)) <= _LARGEST_STORED:
        return document, WHOLE
    # Certificates of the same answers repeat them, which costs nothing once packed.
    packed = base64.b64encode(lzma.compress(json.dumps(document).encode("utf-8"))).decode("ascii")
    if len(packed) <= _LARGEST_STORED:
        return {"schema": PACKED_SCHEMA, "xz": packed}, PACKED
    return {"schema": PUBLIC_SCHEMA, "withheld": "the certificates are too large for this page"}, ""


def _digest(certificate: Certificate) -> str:
    return hashlib.sha256(certificate.to_json().encode("utf-8")).hexdigest()


def _hash(text: str) -> str:
    """Hash of a script or style in the form of a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
