"""The in-process grid of `riskband.flower.testing`, under the name that the rooms of the app know it by."""

from riskband.flower.testing import Behaviour, Delivery, InProcessGrid, node_unavailable

__all__ = ["Behaviour", "Delivery", "InProcessGrid", "node_unavailable"]
