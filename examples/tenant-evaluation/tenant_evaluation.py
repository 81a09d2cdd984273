"""What runs on the node of one tenant: an evaluation of a language model on prompts that stay there.

`evaluator="tenant_evaluation:risk"` in the node config runs inspect, `"tenant_evaluation:logged_risk"` reads what
inspect or lm-evaluation-harness wrote before. Only what these return leaves: the mean loss and the number of prompts.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Context

from riskband.answers.doors import Wanted
from riskband.answers.evaluations import NUM_EXAMPLES, evaluation

if TYPE_CHECKING:
    from inspect_ai.dataset import Dataset
    from inspect_ai.model import Model


def risk(context: Context) -> tuple[float, int]:
    """Ask a language model, `language-model` of the node config, everything in the file `prompts`."""
    from inspect_ai.dataset import json_dataset  # here: who reads logs needs no inspect

    own = context.node_config
    return evaluated(json_dataset(str(own["prompts"])), str(own["language-model"]))


def evaluated(prompts: Dataset, model: str | Model) -> tuple[float, int]:
    """Return how often inspect finds the model wrong, and of how many prompts; its log is read and thrown away."""
    from inspect_ai import Task, eval
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate

    task = Task(dataset=prompts, solver=generate(), scorer=match())
    with TemporaryDirectory() as folder:
        (log,) = eval(task, model=model, log_dir=folder, log_format="json", display="none")
        if log.error is not None:
            raise RuntimeError(log.error.traceback)  # which the tenant alone can read
        return mean_loss("inspect", log.location, "match")


def logged_risk(context: Context) -> tuple[float, int]:
    """Read the `log` that a `tool`, "inspect" or "lm_eval", wrote; `score` is a scorer or a metric in it.

    `errors`, "wrong" or "leave_out", says what samples count as that raised an error: without it there is no answer.
    """
    own = context.node_config
    if absent := [name for name in ("tool", "log", "score") if name not in own]:
        raise ValueError(f"the node config must have tool, log and score, got no {' and no '.join(absent)}; add it")
    return mean_loss(str(own["tool"]), str(own["log"]), str(own["score"]), errors=own.get("errors"))


def mean_loss(tool: str, log: str, score: str, *, errors: object = None) -> tuple[float, int]:
    """Return the mean loss over all prompts of a log, 1 minus the score, and their number."""
    if errors not in (None, "wrong", "leave_out"):
        raise ValueError(f"errors must be wrong or leave_out, got {errors!r}; leave it out to give no answer then")
    wanted = Wanted(NUM_EXAMPLES, accuracy=score, client="task")
    tasks = evaluation(tool, log, wanted).table(wanted, on_error=errors).frame
    sizes = tasks[NUM_EXAMPLES]
    return float(np.average(1.0 - tasks[score], weights=sizes)), int(np.sum(sizes))
