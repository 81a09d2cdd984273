"""What an experiment is: a run from a request to plain numbers, and a figure of these numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers import EXPERIMENTS
from protocol.checks import checked_count, checked_number, checked_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]
"""Plain JSON. Numbers depend on the request only, apart from those under keys named "seconds"; the rows of "table" are
flat, have the same keys, and are printed; then the lines of "remarks"."""

DATA_FOLDER = Path.home() / ".cache" / "riskband-data"


@dataclass(frozen=True)
class Request:
    """What is asked of an experiment."""

    data: Path = DATA_FOLDER
    """Folder of data sets, NAME.npz each."""
    quick: bool = False
    """Whether a small version is enough: embedded digits, a few clients, some seconds, no files."""
    clients: int | None = None
    """Number of clients of each network, ≥ 2; None for the paper's, or few if `quick`."""
    seed: int = 0
    """≥ 0, of everything random."""
    panels: tuple[str, ...] = ()
    """Names of the panels to make; () for all."""
    cache: Path | None = None
    """Folder where a trained model may be kept, and is looked for; None to keep none."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Numbers ≥ 0 by name that replace an experiment's own, such as those of a training that is too long."""
    device: str = "cpu"
    """Where models are trained and attacked, one of `riskband.models.evaluation.DEVICES`."""
    checkpoint: Path | None = None
    model: str = "worlds.cifar10:network"
    dataset_of_model: str = "cifar10"
    """File with the weights of a model of one's own, the model's name for `protocol.models.build_model`, and the data
    set in the folder, or "digits", that it is examined on; None: no such model."""

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        if self.clients is not None:
            checked_count("clients", self.clients, minimum=2, remedy="give the clients of each network")
        for name, value in self.settings.items():
            checked_number(name, value, minimum=0, remedy="leave it out for the experiment's own number")

    def num_clients(self, *, full: int, quick: int) -> int:
        """Return how many clients each network has: what was asked for, else one of the two."""
        return self.clients if self.clients is not None else quick if self.quick else full

    def file(self, name: str) -> Path:
        """Return the file of a data set in the folder; raises ValueError, with how to get it, if it is not there."""
        path = self.data / f"{name}.npz"
        if not path.is_file():
            raise ValueError(f"{path} is missing; write it by: python -m papers.fetch {name} --data {self.data}")
        return path

    def setting(self, name: str, *, full: float, quick: float) -> float:
        """Return the number of that name: what was asked for, else one of the two."""
        return self.settings.get(name, quick if self.quick else full)

    def count(self, name: str, *, full: int, quick: int) -> int:
        """Return the setting of that name; raises ValueError unless it is a whole number of at least 1."""
        number = self.setting(name, full=full, quick=quick)
        whole = int(number) if number == int(number) else number
        return checked_count(name, whole, minimum=1, remedy="leave it out for the experiment's own number")

    def dataset(self, name: str) -> str:
        """Return the name for `worlds.datasets.load_dataset`: "digits" if `quick`, else the file's."""
        return "digits" if self.quick else f"npz:{self.file(name)}"

    def chosen(self, panels: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of an experiment's panels that were asked for, in the experiment's order."""
        unknown = set(self.panels) - set(panels)
        if unknown:
            raise ValueError(f"panels must be among {', '.join(panels)}, got {', '.join(sorted(unknown))}")
        return tuple(name for name in panels if name in self.panels) or panels


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper."""

    name: str
    """Name on the command line and of the files."""
    paper: str
    """What it repeats, as "[RE] Figure 4: …"."""
    sets: tuple[str, ...]
    """Data sets it needs unless it is quick: all are looked for before anything runs."""
    run: Callable[[Request], Result]
    figure: Callable[[Result], Figure]
    """From a request to its numbers, and from the numbers, also as read from the JSON file, to the figure."""
    panels: tuple[str, ...] = ()
    """Names that `Request.panels` may choose from; () if there is nothing to choose. Of several data sets one is not
    needed where no chosen panel's name begins with its own."""
    settings: tuple[str, ...] = ()
    """Names of the numbers that `Request.settings` may replace."""
    has_clients: bool = True
    """Whether `Request.clients` says anything."""
    has_checkpoint: bool = False
    """Whether `Request.checkpoint` and `Request.device` do."""

    def check(self, request: Request) -> None:
        """Raise ValueError, with all that is wrong, if what is asked for is unknown or data it needs are missing."""
        problems = []
        if request.clients is not None and not self.has_clients:
            about = "single models" if self.has_checkpoint else "domains"
            problems.append(f"clients must be left out, got {request.clients}: {self.name} is about {about}")
        if request.device != "cpu" and not self.has_checkpoint:
            problems.append(f"device must be cpu, got {request.device!r}: {self.name} computes there only")
        if request.checkpoint is not None and not self.has_checkpoint:
            problems.append(f"checkpoint must be left out: {self.name} examines models of its own only")
        if request.checkpoint is not None and not request.checkpoint.is_file():
            problems.append(f"checkpoint must be a file, got {str(request.checkpoint)!r}, which is none")
        if unknown := set(request.settings) - set(self.settings):
            known = ", ".join(self.settings) or "none"
            problems.append(f"settings of {self.name} must be among {known}, got {', '.join(sorted(unknown))}")
        looks: list[Callable[[], object]] = [partial(request.chosen, self.panels)]
        looks += [partial(request.file, name) for name in self._needed(request)]
        for look in looks:
            try:
                look()
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))

    def _needed(self, request: Request) -> list[str]:
        """Data sets that the panels asked for need."""
        chooses = bool(request.panels) and len(self.sets) > 1
        needed = [n for n in self.sets if not chooses or any(panel.startswith(n) for panel in request.panels)]
        return [] if request.quick else needed


def load(name: str) -> Experiment:
    """Return the experiment of that name; raises ValueError if there is none."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; use one of {', '.join(EXPERIMENTS) or 'none yet'}")
    module, _, attribute = EXPERIMENTS[name].partition(":")
    experiment: Experiment = getattr(import_module(module), attribute)
    return experiment
