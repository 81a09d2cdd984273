"""Several mean losses of each client ([DC] appendix C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from riskband.answers.responses import Answers, Responses
from riskband.answers.risks import ClientRisks
from riskband.checks import FloatArray, IntArray, check_kind, check_numbers, set_fields


@dataclass(frozen=True, eq=False, init=False, repr=False)
class JointRisks(Answers):
    """Mean losses of several kinds that each client measured on its own examples.

    Parameters
    ----------
    values : array_like, shape (num_clients, num_losses)
        Empirical risks in [0, 1]; at least two clients and two losses. The losses of one example may depend on each
        other in any way.
    num_examples : int or array_like, shape (num_clients,)
        How many examples each mean is taken over.
    binary : sequence of bool, shape (num_losses,), optional
        For each loss, whether it is 0 or 1 on every example; inferred as for `ClientRisks` by default.
    num_missing, answered_by : int, str
        Who answered, see `responses`.

    Attributes
    ----------
    responses : Responses
        Who answered; as for `ClientRisks`.
    losses : tuple of ClientRisks
        The answers for each loss alone.

    Raises
    ------
    ValueError
        If the shape is wrong, or as for `ClientRisks`.
    """

    values: FloatArray
    num_examples: IntArray
    binary: tuple[bool, ...]
    responses: Responses
    losses: tuple[ClientRisks, ...]

    stored = ("values", "num_examples", "binary")
    shown = ("num_clients", "num_losses", "num_examples", "binary")

    def __init__(
        self,
        values: npt.ArrayLike,
        num_examples: npt.ArrayLike,
        binary: Sequence[bool] | None = None,
        *,
        num_missing: int = 0,
        answered_by: str = "fresh",
    ) -> None:
        array = check_numbers("values", values, remedy="give a row of mean losses for each client")
        if array.ndim != 2 or array.shape[1] < 2:
            raise ValueError(
                f"values must be numbers of shape (num_clients, num_losses) with at least 2 losses, got {array.shape}; "
                "for one loss use ClientRisks"
            )
        kinds: Sequence[bool | None] = [None] * array.shape[1] if binary is None else list(np.atleast_1d(binary))
        if len(kinds) != array.shape[1]:
            raise ValueError(
                f"binary must have one entry per loss ({array.shape[1]}), got {len(kinds)}; or leave it out"
            )
        losses = tuple(
            ClientRisks(column, num_examples, kind, num_missing=num_missing, answered_by=answered_by)
            for column, kind in zip(array.T, kinds, strict=True)
        )
        set_fields(
            self,
            values=array,
            num_examples=losses[0].num_examples,
            binary=tuple(loss.binary for loss in losses),
            responses=losses[0].responses,
            losses=losses,
        )

    @property
    def num_losses(self) -> int:
        """Number of losses."""
        return int(self.values.shape[1])


def check_joint_risks(risks: object) -> None:
    """Raise ValueError unless `risks` are `JointRisks`."""
    check_kind("risks", risks, JointRisks, remedy="make them with JointRisks(values, num_examples)")
