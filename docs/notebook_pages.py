"""Notebooks as pages: executed and turned into Markdown when the site is built (a hook of mkdocs.yml)."""

from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

_TIMEOUT = 1200  # seconds a cell: it is to end what hangs, and CI runs the slow tests beside it
_WIDTH = 88  # characters of a line that was printed


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Put a page and its figures in the place of each notebook; an error in a cell stops the build."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = Path(str(notebook.abs_src_path))
        files.remove(notebook)
        text, figures = rendered(path, path.read_text(encoding="utf-8"))
        page = notebook.src_uri.replace(".ipynb", ".md")
        files.append(File.generated(config, page, content=text))
        for name, content in figures.items():
            files.append(File.generated(config, f"{Path(page).parent}/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to notebooks to their pages."""
    return markdown.replace(".ipynb)", ".md)")


@cache  # `mkdocs serve` builds again after every change of a page
def rendered(path: Path, content: str) -> tuple[str, dict[str, bytes]]:
    """Return an executed notebook as Markdown, and its figures by name."""
    notebook = executed(nbformat.reads(content, as_version=4), folder=path.parent)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "text" in output:  # pages do not wrap what was printed
                output["text"] = "\n".join(fill(line, _WIDTH) for line in output["text"].split("\n"))
    names = {"unique_key": path.stem, "output_files_dir": "."}
    text, resources = MarkdownExporter().from_notebook_node(notebook, resources=names)
    return text, {Path(name).name: figure for name, figure in resources.get("outputs", {}).items()}


def executed(notebook: Any, *, folder: Path) -> Any:
    """Run a notebook in a folder, and return it with its outputs.

    Raises CellExecutionError where a cell fails, and ValueError if the outputs are not those of a page.
    """
    resources = {"metadata": {"path": str(folder)}}
    settings = {"timeout": _TIMEOUT, "kernel_name": "python3", "coalesce_streams": True}
    found = NotebookClient(notebook, **settings, resources=resources).execute()
    if problem := output_problem([output for cell in found.cells for output in cell.get("outputs", ())]):
        raise ValueError(f"a notebook in {folder.name} {problem}")
    return found


def output_problem(outputs: list[Any]) -> str:
    """Say what the outputs of a notebook lack, or have too much; "" if nothing."""
    if not any("image/png" in output.get("data", {}) for output in outputs):
        return "must show a figure, got none"
    if not any("with probability at least 0.95" in output.get("text", "") for output in outputs):
        return "must print the sentence of a certificate at delta = 0.05, got none"
    warned = [output["text"] for output in outputs if output.get("name") == "stderr"]
    return f"must warn of nothing, got {warned[0]:.200}" if warned else ""
