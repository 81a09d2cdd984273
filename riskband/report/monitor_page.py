"""What was found by monitoring as a page that refreshes itself: one HTML file, as the report page is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from riskband.report.charts import Chart, Curve
from riskband.report.markup import MONITOR_PAGE
from riskband.report.monitored import CHANGED, NO_ALARM, Monitoring
from riskband.report.page import written
from riskband.report.view import Light
from riskband.report.words import bound_in_words, capital, said_once
from riskband.wording import confidence, evenly
from riskband.worst_cases.always_valid import ORDERS
from riskband.worst_cases.number import Number

_MOST_POINTS = 400  # of a chart


def monitor_page(found: Monitoring, *, title: str, about: Mapping[str, str], refresh: int | None = None) -> str:
    """Return the page; a browser that shows it reads it again every `refresh` seconds."""
    peaks = found.capital.max(axis=1).tolist()
    is_well, (word, reason) = found.verdict == NO_ALARM, found.statement.partition(". ")[0].split(": ", 1)
    sure = f"With probability at least {confidence(found.delta)} all of this holds, today and at all other times."
    view = {
        "title": title,
        "kind": "Monitoring",
        "about": about,
        "light": Light("green" if is_well else "red", "✔" if is_well else "✖", word, f"{capital(reason)}."),
        "evidence": _evidence(found),
        "claims": [
            (name, f"{each.name} {each.bound}", f"{peak:.3g}")
            for (name, each), peak in zip(found.claims.items(), peaks, strict=True)
        ],
        "left_out": found.left_out.items(),
        "sure": sure,
        "today": [(each.quantity, bound_in_words(each)) for each in found.certificates.values()]
        + [(Number.of(name).quantity(), f"contradictory: {CHANGED}") for name in found.contradicted],
        "charts": list(_running(found)),
        "note": found.note,
        "assumptions": said_once(found.certificates.values(), delta=found.delta) or (ORDERS["arrival"],),
    }
    return written(MONITOR_PAGE, view=view, refresh=refresh)


def _evidence(found: Monitoring) -> Chart:
    shown = evenly(found.e_values.size, _MOST_POINTS)
    evidence, needed = np.log10(found.e_values[shown]), float(np.log10(1.0 / found.alpha))
    return Chart(
        title="Evidence against what was certified",
        description=f"While it is true, the line ever reaches the alarm with probability at most {found.alpha:g}.",
        x_label=found.unit,
        y_label="e-value, its logarithm to base 10",
        x=found.sizes[shown].astype(float),
        curves=(Curve("evidence", "bound", evidence), Curve("alarm", "worst-0", np.full(shown.size, needed))),
        top=float(np.ceil(max(needed, evidence.max()) + 0.1)),
        bottom=float(np.floor(evidence.min())),
        steps="after",
    )


def _running(found: Monitoring) -> Iterator[Chart]:
    """A chart of each number without a shift: its bounds over the clients, beside what was certified."""
    for number in dict.fromkeys(each.plain for each in found.claims.values()):
        sizes, lower, upper = found.trajectory(number)
        if not sizes.size:
            continue
        curves = [Curve("certified today", "bound", upper, lower)]
        for name, each in ((name, each) for name, each in found.claims.items() if each.plain == number):
            limit = np.full(sizes.size, each.limit)
            curves.append(Curve(f"{name}: {each.bound}", f"worst-{len(curves) % 4}", limit))
        ends = np.concatenate([each.y for each in curves] + [lower])
        low, high = float(ends.min()), float(ends.max())
        yield Chart(
            title=capital(found.certificates[number].quantity if number in found.certificates else number),
            description=f"Its bounds after so many {found.unit}, beside what was certified.",
            x_label=found.unit,
            y_label=number,
            x=sizes.astype(float),
            curves=tuple(curves),
            steps="after",
            top=float(np.ceil(high * 10.0) / 10.0) if high > low else high + 1.0,
            bottom=float(np.floor(low * 10.0) / 10.0),
        )
