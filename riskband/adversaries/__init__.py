"""Adversaries: how bad a client's loss gets when its examples may move, over all cost budgets at once.

They need torch, ``pip install "riskband[torch]"``, and no Flower. All names are imported on use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "BUILDERS",
    "INPUT_ADVERSARIES",
    "REPRESENTATION_ADVERSARIES",
    "AdversarialCurves",
    "Adversary",
    "Batch",
    "Evidence",
    "InputAdversary",
    "LipschitzAdversary",
    "Points",
    "SandwichAdversary",
    "TransportProblem",
    "adversarial_answers",
    "adversarial_curves",
    "client_curves",
    "margin_constants",
    "wda_accuracy",
    "wda_attack",
]

_NAMES = {
    "answers": "adversarial_answers",
    "attacks.base": "InputAdversary client_curves",
    "attacks.wda": "wda_accuracy wda_attack",
    "base": "Adversary Batch Evidence",
    "bounds.lipschitz": "margin_constants",
    "bounds.sandwich": "LipschitzAdversary SandwichAdversary",
    "curves": "AdversarialCurves Points",
    "names": "INPUT_ADVERSARIES REPRESENTATION_ADVERSARIES",
    "problem": "TransportProblem",
    "registry": "BUILDERS adversarial_curves",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:
    from riskband.adversaries.answers import adversarial_answers
    from riskband.adversaries.attacks.base import InputAdversary, client_curves
    from riskband.adversaries.attacks.wda import wda_accuracy, wda_attack
    from riskband.adversaries.base import Adversary, Batch, Evidence
    from riskband.adversaries.bounds.lipschitz import margin_constants
    from riskband.adversaries.bounds.sandwich import LipschitzAdversary, SandwichAdversary
    from riskband.adversaries.curves import AdversarialCurves, Points
    from riskband.adversaries.names import INPUT_ADVERSARIES, REPRESENTATION_ADVERSARIES
    from riskband.adversaries.problem import TransportProblem
    from riskband.adversaries.registry import BUILDERS, adversarial_curves
else:

    def __getattr__(name: str) -> object:
        """Import what is asked for; without torch, say how to install it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from riskband.checks import check_installed

        check_installed("torch", extra="torch")
        globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return globals()[name]
