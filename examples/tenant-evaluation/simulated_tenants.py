"""Tenants to try it with: they ask for sums, and the model adds every digit right but has never learned to carry."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ModelAPI, ModelOutput, modelapi
from tenant_evaluation import evaluated

NUM_PROMPTS = 50


@modelapi("sums")
class WithoutCarry(ModelAPI):
    """A model that runs here; inspect calls it `sums/` and any name, as it calls others `openai/…` or `hf/…`."""

    async def generate(self, input: list[ChatMessage], **options: Any) -> ModelOutput:
        """Answer one prompt."""
        one, _, other, _ = input[-1].text.split()
        return ModelOutput.from_content(self.model_name, str(int(one) // 10 * 10 + (int(one) + int(other)) % 10))


def risk(context: Context) -> tuple[float, int]:
    """Run the evaluation of one simulated tenant, `partition-id` of its node."""
    return evaluated(MemoryDataset(prompts_of(int(context.node_config["partition-id"]))), "sums/without-carry")


def prompts_of(tenant: int) -> list[Sample]:
    """Draw the sums that a tenant asks for: some tenants have carries to make more often than others."""
    rng = np.random.default_rng([2026, tenant])
    has_carry = rng.random(NUM_PROMPTS) < rng.beta(1.0, 9.0)
    tens, ones = rng.integers(10, 100, NUM_PROMPTS) * 10, rng.integers(1, 10, NUM_PROMPTS)
    added = np.where(has_carry, rng.integers(10 - ones, 10), rng.integers(0, 10 - ones))
    sums = zip((tens + ones).tolist(), added.tolist(), strict=True)
    return [Sample(f"{one} + {other} =", target=str(one + other)) for one, other in sums]
