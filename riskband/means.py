"""Upper bounds on the mean risk of unseen clients that need no band (math §2.6).

The expected empirical risk of a fresh client equals the mean risk over clients exactly, so the mean of the answers
needs no step from empirical to true risks: the examples of a client only add to the spread that we see.
"""

from collections.abc import Callable, Mapping

import numpy as np

from riskband.answers.histogram import Histogram, PlainAnswers, clients_above
from riskband.answers.risks import ClientRisks, shared_assumptions
from riskband.certificate import Certificate, recipe
from riskband.checks import check_choice, check_delta, check_optional_seed
from riskband.duals import mean_upper_limit
from riskband.wording import chosen_before


def mean_bound(risks: PlainAnswers, *, delta: float, method: str = "betting", seed: int | None = None) -> Certificate:
    """Upper bound on the mean risk over unseen clients.

    Parameters
    ----------
    risks : ClientRisks, HistogramRisks or HistogramLimits
        The clients' answers, or counts of clients in bins.
    delta : float
        Probability that the bound fails, in (0, 1).
    method : {"betting", "hoeffding", "empirical_bernstein", "published"}
        `betting` (default) is the sharpest; `published` is [RE] Theorem 4.1. Only the first two know clients that are
        missing="worst", contamination, counts and noisy answers: they cut these to a range, and add what that may take
        away from the mean.
    seed : int, optional
        By default betting depends neither on a seed nor on the order of the answers. With a seed, bets look at clients
        one after the other in an order that the seed draws. This is sharper where there are many clients, but only
        valid if the seed was fixed before any answer was seen: that becomes an assumption. Counts, and answers that are
        missing or wrong, have no order.

    Returns
    -------
    Certificate
        A single number. Sources: `betting` [WSR] Waudby-Smith & Ramdas 2024 and, with a seed, Voráček & Orabona 2025,
        `empirical_bernstein` Maurer & Pontil 2009, `published` [RE] Theorem 4.1; math §2.6.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the method is unknown, or does not know missing, wrong or noisy
        answers or counts.
    """
    answers, risks = risks, clients_above(risks)
    is_counted = isinstance(answers, Histogram)
    delta, seed = check_delta(delta), check_optional_seed(seed)
    method = check_choice("method", method, (*MEAN_BOUNDS, "betting"))
    if method in ("empirical_bernstein", "published"):
        risks.require_certain_answers(f"method={method!r}", "method='betting' or method='hoeffding'")
        if is_counted:
            raise ValueError(f"method must be 'betting' or 'hoeffding' for counts, got {method!r}; use betting")
    name, assumed = method, tuple[str, ...]()
    if method == "betting":
        bounded = risks.bounded(risks.values)
        # Counts in bins are no answers, and have no order.
        order = None if is_counted else seed
        found, name, assumed = mean_upper_limit(risks, bounded.in_unit, delta=delta, seed=order)
        value = bounded.from_unit(found)
    else:
        value = MEAN_BOUNDS[method](risks, delta)
    return Certificate(
        quantity="the mean risk over unseen clients",
        value=float(np.clip(value, 0.0, 1.0)),
        delta=delta,
        method=name,
        assumptions=(
            *shared_assumptions(risks, knows_draws=method == "betting"),
            *answers.own_assumptions,
            *assumed,
            *chosen_before(method=(method, "betting")),
        ),
        recipe=recipe("mean_bound", {"delta": delta, "method": method, "seed": seed}, answers),
    )


def _hoeffding(risks: ClientRisks, delta: float) -> float:
    bounded = risks.bounded(risks.values)
    values = risks.worst_completion(bounded.in_unit)
    return bounded.from_unit(float(values.mean() + np.sqrt(np.log(1.0 / delta) / (2.0 * values.size))))


def _empirical_bernstein(risks: ClientRisks, delta: float) -> float:
    num_clients, log_term = risks.num_clients, np.log(2.0 / delta)
    variance = risks.values.var(ddof=1)
    slack = np.sqrt(2.0 * variance * log_term / num_clients) + 7.0 * log_term / (3.0 * (num_clients - 1))
    return float(risks.values.mean() + slack)


def _published(risks: ClientRisks, delta: float) -> float:
    log_term = np.log((risks.num_clients + 1) / delta)
    between = np.sqrt(log_term / (2.0 * risks.num_clients))
    within = np.sqrt(log_term / (2.0 * risks.num_examples)).mean()
    return float(risks.values.mean() + between + within)


MEAN_BOUNDS: Mapping[str, Callable[[ClientRisks, float], float]] = {
    "hoeffding": _hoeffding,
    "empirical_bernstein": _empirical_bernstein,
    "published": _published,
}
