"""Write `inspect.json.gz` by inspect itself, with a model that answers 4: python write_inspect.py

Every sample is scored twice, in two epochs: 8 users with 4 prompts each.
"""

import gzip
import tempfile
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes, match
from inspect_ai.solver import generate

SAMPLES = [
    Sample(
        id=f"{user}-{prompt}",
        input="2 + 2 =",
        target="4" if prompt * 8 + user > 6 else "5",
        metadata={"user": f"user-{user}", "language": ("en", "de")[user % 2]},
    )
    for user in range(8)
    for prompt in range(4)
]


def answers() -> list[ModelOutput]:
    """What the model says: 4, but in the second epoch not to the last prompts."""
    found = [ModelOutput.from_content("mockllm/model", "4" if k < 60 else "none") for k in range(64)]
    for each in found:
        each.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return found


if __name__ == "__main__":
    task = Task(name="sums", dataset=MemoryDataset(SAMPLES), solver=[generate()], scorer=[match(), includes()])
    with tempfile.TemporaryDirectory() as folder:
        model = get_model("mockllm/model", custom_outputs=answers())
        eval(task, model=model, log_dir=folder, log_format="json", epochs=2, display="none", max_samples=1)
        (log,) = Path(folder).glob("*.json")
        Path(__file__).with_name("inspect.json.gz").write_bytes(gzip.compress(log.read_bytes(), mtime=0))
