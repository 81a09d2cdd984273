"""``python docs/screenshots.py [FOLDER]``: the documentation's pictures of pages; needs chromium."""

import shutil
import sys
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import riskband as rb
from riskband.report.monitor_page import monitor_page

FIGURES = Path(__file__).parent / "figures"
SHOTS = {  # name: colour scheme, answered by, the sections that are shown
    "report-light": ("light", "fresh", ("#answer", "#who", "#change")),
    "report-dark": ("dark", "fresh", ("#suffers",)),
    "report-estimate": ("light", "trainers", ("#answer", "#who")),
    "monitor": ("light", "", ("#answer",)),
}
HIDE_OTHERS = "main > section { display: none } main > section:is(%s) { display: block }"


def page_of(answered_by: str) -> str:
    """Return the page of 120 invented hospitals."""
    rng = np.random.default_rng(5)
    names, groups = [f"Hospital {k + 1}" for k in range(120)], ["city", "city", "country"] * 40
    errors = rng.binomial(200, rng.beta(3, 27, size=120)) / 200
    answers = rb.ClientRisks(errors, num_examples=200, names=names, groups=groups, answered_by=answered_by)
    return rb.report_page(
        answers, delta=0.05, require=["mean<=0.15", "share:0.4<=0.2"], title="Sepsis alert, version 7"
    )


def monitored() -> str:
    """Return the page of thirty days of a fleet, which changes on the eighteenth."""
    rng = np.random.default_rng(18)
    means = np.repeat([0.125, 0.125, 0.22], [200, 17 * 12, 13 * 12])
    risks = rng.binomial(100, rng.beta(24 * means, 24 * (1 - means))) / 100
    before, since = rb.ClientRisks(risks[:200], 100), rb.ClientRisks(risks[200:], 100)
    certificate = rb.bound(before, "mean@chi2:0.1", delta=0.05)
    found = rb.monitor({"worst mean": certificate}, since, batches=[12] * 30)
    return monitor_page(found, title="Fleet, November", about={"Certificate": "certificate.json", "Answers": "days/"})


def main(folder: Path = FIGURES) -> None:
    """Write one picture for each of `SHOTS`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (scheme, answered_by, sections) in SHOTS.items():
            # A style of one's own is against the page's policy, so it is not asked for.
            page = browser.new_page(viewport={"width": 900, "height": 700}, color_scheme=scheme, bypass_csp=True)
            page.set_content(page_of(answered_by) if answered_by else monitored())
            page.add_style_tag(content=HIDE_OTHERS % ", ".join(sections))
            page.screenshot(path=folder / f"{name}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
