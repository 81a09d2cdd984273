"""The API reference, made from the public names when the site is built, and links to proofs (a hook of mkdocs.yml)."""

import re
from importlib import metadata
from pathlib import Path

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

import riskband.adversaries

CHAPTERS = {  # title: modules, by the beginning of their names
    "Answers": ("riskband.answers",),
    "Bands": ("riskband.bands", "riskband.tuning"),
    "Bounds": ("riskband.functionals", "riskband.means"),
    "Worst cases": ("riskband.worst_cases",),
    "Groups": ("riskband.groups",),
    "Selection": ("riskband.selection",),
    "Certificates": ("riskband.certificate", "riskband.verification", "riskband.search", "riskband.report"),
    "Models": ("riskband.models",),
    "Adversaries": ("riskband.adversaries",),
    "Flower": ("riskband.flower",),
}


# What functions return and take that is not imported from `riskband` itself, beside them on the same page.
BESIDE = (
    "bands.pilots.ClientSplit",
    "functionals.functional.ExtremalDistributions",
    "groups.group_bands.GroupBands",
    "models.evaluation.example_losses",
    "models.group_sort.GroupSort",
    "models.losses.LOSSES",
    "report.monitored.Claim",
    "report.monitored.Monitoring",
    "search.Bracket",
    "selection.CandidateBound",
    "selection.Selection",
    "verification.Verification",
    "worst_cases.divergence_bounds.next_estimate",
    "worst_cases.divergences.FDivergence",
    "worst_cases.planning.Option",
    "worst_cases.planning.Plan",
    "worst_cases.requirements.Gate",
    "worst_cases.requirements.Verdict",
    "flower.kept.KeepRisks",
    "flower.kept.KeptRound",
    "flower.testing.InProcessGrid",
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add one page for each chapter; a public name that belongs to none stops the build. Pages say the version."""
    config.copyright = f"riskband {metadata.version('riskband')}"
    packages = (riskband, riskband.adversaries)
    homes = [f"{each.__name__}.{module}.{name}" for each in packages for name, module in each._MODULES.items()]
    homes += [f"riskband.{name}" for name in BESIDE]
    for title, modules in CHAPTERS.items():
        shown = [home for home in homes if home.startswith(modules)]
        text = "\n".join([f"# {title}", *(f"\n::: {home}" for home in shown)])
        files.append(File.generated(config, f"api/{title.lower().replace(' ', '-')}.md", content=text))
        homes = [home for home in homes if home not in shown]
    if homes:
        raise PluginError(f"docs/api_pages.py has no chapter for {', '.join(homes)}")
    return files


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make a link of every "math §N.M" that is none."""
    proofs = Path(config.docs_dir, "mathematics.md").read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (([\d.]*\d).*)$", proofs, re.MULTILINE)
    anchors = {number: slugify(heading, "-") for heading, number in headings}
    base = get_relative_url("mathematics.html", page.url)
    return re.sub(
        r"math §([\d.]*\d)(?![^<]*</a>)", lambda found: f'<a href="{base}#{anchors[found[1]]}">{found[0]}</a>', html
    )
