"""The report page in a real browser: opened, read, its slider moved, printed; nothing fails and nothing is fetched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import riskband as rb
from riskband.report.page import report_page
from tests.house import ROOT
from tests.report.test_page import HOSTILE, SECTIONS, adversarial_answers, answers_of
from tests.report.test_scaled_page import CHANGES, SCORES
from tests.server.running import run_app

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is found")
STUDIES = ("f_divergence", "secure_histogram", "dispersion", "selection", "comparison", "wasserstein")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def opened(browser, path, **context):
    """A page that must neither complain nor ask anybody for anything."""
    found = browser.new_page(viewport={"width": 1000, "height": 900}, **context)
    heard = []
    found.on("console", lambda message: heard.append(message.text))
    found.on("pageerror", lambda error: heard.append(str(error)))
    found.on("dialog", lambda dialog: heard.append(dialog.message))
    found.on("request", lambda request: heard.append(request.url) if request.url != path.as_uri() else None)
    found.goto(path.as_uri())
    yield found
    assert heard == []
    found.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    names = [f"{HOSTILE[k % 5]}{k}" for k in range(50)]
    risks = answers_of(50, names=names, groups=[HOSTILE[k % 5] for k in range(50)])
    found = tmp_path_factory.mktemp("page") / "report.html"
    found.write_text(report_page(risks, delta=0.05, require=["mean<=0.2", "share:0.3<=0.2"], title=HOSTILE[0]))
    return found


def test_the_slider_says_what_the_table_says_and_marks_its_row(browser, path):
    with opened(browser, path) as page:
        slider, table = page.get_by_role("slider"), page.locator("#steps")
        budgets = [step[0] for step in json.loads(table.get_attribute("data-steps"))]
        for row in table.locator("tbody tr").all()[1::3]:
            budget, _, ten, _, mean, _ = row.locator("th, td").all_inner_texts()
            slider.fill(str(budgets.index(budget) - 1))
            slider.press("ArrowRight")
            assert page.locator("#budget-value").inner_text() == budget
            assert f"10\u00a0% today may become {ten}" in page.locator("#budget-words").inner_text()
            assert f"at most {mean}" in page.locator("#budget-words").inner_text()
            assert row.get_attribute("class") == "now"


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    band = rb.band(answers_of(50), delta=0.05)
    found = tmp_path_factory.mktemp("two") / "report.html"
    found.write_text(
        report_page({name: rb.worst_case_mean(band, divergence=name, budget=[0.05, 0.1, 0.2]) for name in ("kl", "tv")})
    )
    return found


def test_a_divergence_is_chosen_beside_the_slider(browser, two):
    with opened(browser, two) as page:
        choice, slider = page.get_by_label("Divergence", exact=True), page.get_by_role("slider")
        assert choice.locator("option").all_inner_texts() == ["KL divergence", "total variation"]
        for unit, shown, other in (("total variation", "-2", ""), ("KL divergence", "", "-2")):
            choice.select_option(unit)
            assert page.locator(f"#steps{shown}").is_visible()
            assert page.locator(f"#shift-chart{shown} .cursor").count() == 1
            assert not page.locator(f"#steps{other}").is_visible()
            steps = json.loads(page.locator(f"#steps{shown}").get_attribute("data-steps"))
            budget, (_, ten, _), (mean,) = steps[1]
            slider.fill("1")
            assert page.locator("#budget-value").inner_text() == budget
            words = page.locator("#budget-words").inner_text()
            assert f"10\u00a0% today may become {ten}" in words
            assert f"at most {mean}" in words
        page.emulate_media(media="print")
        assert page.locator("#steps").is_visible()
        assert page.locator("#steps-2").is_visible()
    with opened(browser, two, java_script_enabled=False) as page:
        assert page.locator("#steps").is_visible()
        assert page.locator("#steps-2").is_visible()
        assert not page.get_by_label("Divergence", exact=True).is_visible()


def test_the_band_is_read_by_pointer_and_by_keys(browser, path):
    with opened(browser, path) as page:
        chart = page.get_by_role("img", name="Who does how badly")
        readout = page.locator("#chart-1 .readout")
        assert not readout.is_visible()
        chart.hover()
        said = readout.inner_text()
        assert said.startswith("risk of a client")
        assert "certificate: share of unseen clients: 0." in said
        chart.focus()
        page.keyboard.press("ArrowLeft")
        assert readout.is_visible()
        assert readout.inner_text() != said


def test_the_arrows_say_which_client_it_is(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report_page(CHANGES, delta=0.05))
    worst = CHANGES.names[int(CHANGES.values.argmax())]
    with opened(browser, path) as page:
        page.get_by_role("img", name="Who gets worse").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        assert page.locator("#chart-1 .readout").inner_text().startswith(f"client, the worst first: 1. {worst}: 0.")


def test_the_readout_rounds_no_budget(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(
        report_page(rb.wasserstein_mean(adversarial_answers(), delta=0.05, cost_budget=[0.0, 0.01, 0.0123456]))
    )
    with opened(browser, path) as page:
        page.get_by_role("img", name="Bounds over the cost").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert "examples: 0.0123456. " in page.locator("#shift-chart .readout").inner_text()


def test_it_is_read_aloud_in_its_order_and_works_without_script(browser, path):
    with opened(browser, path, java_script_enabled=False) as page:
        assert page.get_by_role("heading", level=2).all_inner_texts() == list(SECTIONS)
        assert not page.locator(".slider").is_visible()
        assert page.locator("#steps").is_visible()
        page.get_by_label("Did every client report").check()
        page.get_by_label("Owner of question 1", exact=True).fill("Dr A. Risk")
        page.get_by_text("What each client measured").click()
        assert page.get_by_text(HOSTILE[0] + "0", exact=True).is_visible()


def test_dark_light_and_print_have_their_own_colours_and_enough_contrast(browser, path):
    backs = {}
    for scheme in ("light", "dark"):
        with opened(browser, path, color_scheme=scheme) as page:
            backs[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            for name in (".word", ".label >> nth=0", ".note >> nth=0", "h1", "summary >> nth=0"):
                colour = page.locator(name).first.evaluate("element => getComputedStyle(element).color")
                assert contrast(colour, backs[scheme]) >= 4.5, (name, scheme)
            page.emulate_media(media="print")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            assert not page.locator(".slider").is_visible()
    assert backs["light"] != backs["dark"]


def test_it_prints(browser, path):
    with opened(browser, path) as page:
        page.get_by_label("Owner of question 1", exact=True).fill("Dr A. Risk")
        printed = page.pdf(format="A4")
        assert page.locator("details[open]").count() == 0  # folded as before
    assert printed.startswith(b"%PDF")
    assert 3 <= printed.count(b"/Type /Page\n") <= 16


@pytest.mark.parametrize("has_script", [True, False])
def test_on_paper_every_fold_is_open(browser, path, has_script):
    with opened(browser, path, java_script_enabled=has_script) as page:
        inside = page.locator("details td")
        assert inside.count() > 50
        shown = "all => all.filter((each) => each.checkVisibility({contentVisibilityAuto: true})).length"
        assert inside.evaluate_all(shown) == 0
        page.emulate_media(media="print")
        page.screenshot()  # only a frame that was drawn knows what it shows
        assert inside.evaluate_all(shown) == inside.count()


NARROW = """cells => cells.filter((cell) => {
  const size = parseFloat(getComputedStyle(cell).fontSize), box = cell.getBoundingClientRect();
  return box.width > 0 && (box.width < 3 * size || box.right > document.documentElement.clientWidth);
}).map((cell) => cell.textContent)"""  # three widths of an m: at least six characters


PAGES = {
    "risks": lambda: report_page(answers_of(60), delta=0.05),
    "moved": lambda: report_page(rb.wasserstein_mean(adversarial_answers(), delta=0.05, cost_budget=[0.0, 0.1])),
    "trained": lambda: report_page(rb.mean_bound(answers_of(30, answered_by="trainers"), delta=0.05)),
    "changes": lambda: report_page(CHANGES, delta=0.05, require=["change<=0.2", "harmed:0.02<=0.8"]),
    "scores": lambda: report_page(SCORES, delta=0.05),
}


@pytest.mark.parametrize(
    "name", ["hostile", "changes", *(pytest.param(name, marks=pytest.mark.slow) for name in PAGES if name != "changes")]
)
def test_a_phone_shows_no_cell_of_less_than_six_characters_and_nothing_beside_the_screen(name, browser, path, tmp_path):
    if name != "hostile":
        path = tmp_path / "page.html"
        path.write_text(PAGES[name]())
    with opened(browser, path) as page:
        page.set_viewport_size({"width": 375, "height": 800})
        page.locator("details").evaluate_all("all => all.forEach((fold) => { fold.open = true; })")
        assert page.locator("td").count() > 8
        assert page.locator("th, td").evaluate_all(NARROW) == []
        assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


@pytest.mark.slow
def test_the_pictures_of_the_documentation_are_made_by_a_command(tmp_path):
    subprocess.run([sys.executable, ROOT / "docs" / "screenshots.py", tmp_path], check=True, cwd=ROOT)
    made = {path.name for path in tmp_path.iterdir()}
    # The dashboard is drawn from a run that Prometheus has watched (`python -m docs.dashboard`).
    assert made | {"dashboard.png"} == {path.name for path in (ROOT / "docs" / "figures").glob("*.png")}


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours "rgb(r, g, b)" by the definition of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("num_clients", [5, 50, 500])
def test_federations_of_every_size(browser, tmp_path, num_clients, public):
    found = tmp_path / "report.html"
    found.write_text(report_page(answers_of(num_clients), delta=0.05, require="mean<=0.2", public=public))
    with opened(browser, found) as page:
        is_wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(is_wider)
        page.set_viewport_size({"width": 380, "height": 800})
        assert not page.evaluate(is_wider)
        assert page.locator("#chart-1").count() == (0 if public else 1)  # the band's steps are the losses


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_the_page_of_every_study(browser, tmp_path, study):
    defaults = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    run_app(
        tmp_path,
        defaults,
        strategy=study,
        num_radii=6,
        num_multipliers=6,
        cost_budgets="0,0.5,1",
        candidate_epochs="1",
        old_model="local",
    )
    with opened(browser, tmp_path / "report.html") as page:
        assert page.get_by_role("heading", level=2).all_inner_texts() == list(SECTIONS)
        assert page.locator(".light.grey").is_visible()
        assert "12 of 12 that were asked" in page.locator("#who").inner_text()
        assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
