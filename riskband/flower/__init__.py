"""Four lines in a Flower app of your own: keep what its clients measured, and bound it (the extra ``flower``)."""

from riskband.flower.kept import KeepRisks, KeptRound

__all__ = ["KeepRisks", "KeptRound"]
