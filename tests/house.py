"""``python -m tests.house``: the measures of the architecture, printed; `test_house.py` holds them to their bounds.

A *room* is a sub-package of `riskband`, or a module beside them. An *arrow* is one room that imports another, at the
top of a module or inside a function. *Floors* are the rooms on the longest way down along the arrows; rooms that import
each other in a circle count together.
"""

from __future__ import annotations

import argparse
import ast
import re
import resource
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

from packaging.requirements import Requirement

import riskband as rb

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "riskband"
SLOW_TO_LOAD = ("torch", "flwr", "ray", "scipy.stats", "matplotlib", "pandas", "cvxpy", "ot", "sklearn")
PROGRAMS = {
    "import riskband": "import riskband",
    "riskband --help": "import riskband.cli; riskband.cli.main(['--help'])",
    "riskband certify --help": "import riskband.cli; riskband.cli.main(['certify', '--help'])",
    "python -m simulations --help": "import simulations.__main__ as s; s.main(['--help'])",
    "python -m deploy.certify --help": "import deploy.certify as c; c.main(['--help'])",
    "a certificate": "import riskband as r; r.mean_bound(r.ClientRisks([0.1] * 30, 100), delta=0.05).value",
    "python -m simulations nowhere": "import simulations.__main__ as s; s.main(['nowhere'])",
}
_FUNCTIONALS = re.compile(r"\w*(Functional|Measure|Term)")
_PARSERS = re.compile(r"parse\w*|resolve(_functional|_measure|_objective)?")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
EDGE = ("protocol", "client", "strategies")
PRODUCT = ("riskband", *EDGE, "worlds", "server", "simulations", "deploy")
Graph = Mapping[str, frozenset[str]]
_NO_CODE = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
_CODECS = re.compile(r"(encode|decode)_\w+")


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below folders of the repository, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of the parsed file."""
    return tuple(ast.walk(tree_of(path)))


def num_defined(pattern: re.Pattern[str], kind: type | tuple[type, ...], *folders: str) -> int:
    """Return how many classes or functions have a name that matches, methods and inner functions too."""
    nodes = (node for path in python_files(*folders) for node in nodes_of(path))
    return sum(isinstance(node, kind) and pattern.fullmatch(node.name) is not None for node in nodes)


def num_calls(name: str, *folders: str) -> int:
    """Return how often a function is called by that name, such as ``sqlite3.connect``."""
    nodes = (node for path in python_files(*folders) for node in nodes_of(path))
    return sum(isinstance(node, ast.Call) and ast.unparse(node.func) == name for node in nodes)


def room_of(module: str) -> str:
    """Return the room of a module of the library; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def imported(path: Path, *, for_types: bool = False) -> Iterator[str]:
    """What a file imports by its full name, with what is for type checkers only if asked; names of `riskband` itself
    are those of the module that has them."""
    typing_only = {
        id(inner)
        for node in (() if for_types else nodes_of(path))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in nodes_of(path):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (_full_name(node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and node.attr in rb._MODULES and ast.unparse(node.value) == "rb":
            yield _full_name("riskband", node.attr)


def _full_name(module: str, name: str) -> str:
    return f"{module}.{rb._MODULES.get(name, name) if module == 'riskband' else name}"


@cache
def arrows() -> Graph:
    """For each room of the library, the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in python_files("riskband"):
        room = path.relative_to(LIBRARY).with_suffix("").parts[0]
        if room not in ("__init__", "__main__"):
            names = (name for name in imported(path) if name.startswith("riskband."))
            found.setdefault(room, set()).update(map(room_of, names))
    return {room: frozenset(below & found.keys() - {room}) for room, below in found.items()}


@cache
def file_arrows() -> Graph:
    """For each file of the product, by its module, those it imports anywhere, for type checkers too.

    The package `riskband` itself is the names that it offers, each an arrow to the module that has it.
    """
    modules = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in python_files(*PRODUCT)}
    files = {module.removesuffix(".__init__"): path for path, module in modules.items()}
    del files["riskband"]
    return {
        module: frozenset(_file_of(name, files.keys()) for name in imported(path, for_types=True)) & files.keys()
        for module, path in files.items()
    }


def _file_of(name: str, files: Set[str]) -> str:
    """The longest beginning of a name that is a file, of which the rest is a name; "" if there is none."""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return name


def below(graph: Graph, room: str) -> set[str]:
    """Return the rooms that one can reach along the arrows from a room."""
    seen: set[str] = set()
    left = set(graph[room])
    while left:
        seen.add(following := left.pop())
        left |= graph[following] - seen
    return seen


def circles(graph: Graph) -> list[str]:
    """Return the rooms or files that can be reached from themselves."""
    return sorted(room for room in graph if room in below(graph, room))


def floors(graph: Graph) -> int:
    """Return how many rooms are on the longest way down."""

    @cache
    def height(room: str) -> int:
        together = {other for other in below(graph, room) if room in below(graph, other)} | {room}
        lower = {following for each in together for following in graph[each]} - together
        return len(together) + max(map(height, lower), default=0)

    return max(map(height, graph))


def base_install() -> list[str]:
    """Return the distributions that `pip install riskband` brings without extras, by the metadata of what is here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = set()
    left = list(project["dependencies"])
    while left:
        requirement = Requirement(left.pop())
        name = requirement.name.lower()
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            left += metadata.requires(name) or []
    return sorted(found)


def num_lines(suffix: str, *folders: str) -> int:
    """Return how many lines the files below some folders have."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}"))
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def num_lines_of_code(*folders: str) -> int:
    """Return how many lines of Python the files below some folders have, without blanks, comments and docstrings."""
    return sum(len(lines_of_code(path)) for path in python_files(*folders))


def lines_of_code(path: Path) -> set[int]:
    """Return the numbers of the lines with code, all lines of a string that is more than a docstring among them."""
    with tokenize.open(path) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in _NO_CODE]
    strings = (
        node
        for node in nodes_of(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    free = {line for node in strings for line in _lines(node.lineno, node.end_lineno or node.lineno)}
    return {line for token in tokens for line in _lines(token.start[0], token.end[0])} - free


def _lines(first: int, last: int) -> range:
    return range(first, last + 1)


def num_modules_declaring(field: str) -> int:
    """Return how many modules of the library have a class that declares a field of that name."""
    return sum(
        any(isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == field for node in nodes_of(path))
        for path in python_files("riskband")
    )


def loaded_by(code: str) -> list[str]:
    """Return which packages of `SLOW_TO_LOAD` are there after the code has run in a process of its own."""
    program = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = done.stdout.split("\n")[-2].split()
    assert "riskband" in modules or "simulations" in modules, modules
    return [name for name in SLOW_TO_LOAD if name in modules]


def cpu_seconds(code: str) -> float:
    """Return the CPU seconds of a process that runs the code: the least of three, with nobody else's children."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def vocabulary() -> int:
    """Return how much a user must learn: public names, families and populations of numbers, keys and options."""
    from riskband.cli import COMMANDS
    from riskband.functionals.functional import FUNCTIONALS
    from riskband.worst_cases.bounds import BOUNDS
    from riskband.worst_cases.divergences import DIVERGENCES
    from riskband.worst_cases.number import SHIFTED, UNSEEN

    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    keys = pyproject["tool"]["flwr"]["app"]["config"]
    families = {*FUNCTIONALS, *(family for row in BOUNDS for family in row.families)}
    populations = {row.where for row in BOUNDS} - {UNSEEN, SHIFTED} | {*DIVERGENCES}
    options = 0
    for name in COMMANDS:
        parser = argparse.ArgumentParser(add_help=False)
        import_module(f"riskband.cli.{name}").add_arguments(parser)
        options += sum(bool(action.option_strings) for action in parser._actions)
    return sum(map(len, (rb._MODULES, families, populations, keys))) + options


@dataclass(frozen=True)
class Row:
    """One line of the table: a number that must not exceed `bound`, which is to come down to `goal`."""

    what: str
    measure: Callable[[], int]
    before: str  # in November, before the rooms
    goal: int
    bound: int


ROWS = (
    Row("modules beside the sub-packages of riskband/", lambda: len(list(LIBRARY.glob("*.py"))), "55", 12, 12),
    Row("floors of its rooms", lambda: floors(arrows()), "19", 10, 10),
    Row("arrows between them", lambda: sum(map(len, arrows().values())), "289", 104, 104),
    Row("rooms that import each other in a circle", lambda: len(circles(arrows())), "", 0, 0),
    Row("files that import each other in a circle, for types too", lambda: len(circles(file_arrows())), "", 0, 0),
    Row("public names", lambda: len(rb._MODULES), "99", 40, 57),
    Row("what a user must learn: names, families, populations, keys and options", vocabulary, "", 200, 327),
    Row("classes for a functional of a band", lambda: num_defined(_FUNCTIONALS, ast.ClassDef, "riskband"), "4", 1, 1),
    Row("parsers of its name", lambda: num_defined(_PARSERS, FUNCTIONS, "riskband"), "4", 1, 1),
    Row("functions called encode_… or decode_…", lambda: num_defined(_CODECS, FUNCTIONS, *EDGE), "34", 0, 9),
    Row("modules that declare who answered", lambda: num_modules_declaring("contamination"), "5", 1, 1),
    Row("isinstance in server/report", lambda: num_calls("isinstance", "server/report"), "10", 0, 0),
    Row("places that open SQLite", lambda: num_calls("sqlite3.connect", *EDGE, "server"), "3", 1, 1),
    Row("lines of code of the product", lambda: num_lines_of_code(*PRODUCT), "", 26_000, 34_820),
    Row("packages of a base install", lambda: len(base_install()), "112", 2, 2),
)


def main() -> None:
    """Print the table, and what start-up costs on this machine."""
    print("| | November | now | goal |\n|---|---|---|---|")
    for row in ROWS:
        print(f"| {row.what} | {row.before} | {row.measure():,} | {row.goal:,} |")
    print(f"\nbase install: {', '.join(base_install())}")
    print(f"rooms: {len(arrows())}; in a circle: {', '.join(circles(arrows())) or 'none'}")
    print(f"benchmarks: {num_lines('.py', 'benchmarks'):,} lines; pages: {num_lines('.md', 'docs'):,} lines\n")
    for name, code in PROGRAMS.items():
        print(f"{name}: {cpu_seconds(code):.2f} s CPU; loads {', '.join(loaded_by(code)) or 'nothing that is slow'}")


if __name__ == "__main__":
    main()
