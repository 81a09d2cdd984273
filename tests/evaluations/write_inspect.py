"""Write `inspect.json.gz` and `inspect_errors.json.gz` by inspect itself: python write_inspect.py

The first is of 8 users with 4 prompts each and a model that answers 4, in two epochs. The second is of 5 users with 2
prompts each, in four epochs, and of a model that is wrong in every third answer and raises an error in one epoch of the
longest prompt.
"""

import gzip
import json
import tempfile
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelAPI, ModelOutput, ModelUsage, get_model, modelapi
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


@modelapi("tired")
class Tired(ModelAPI):
    """A model that raises at the second long prompt that it sees."""

    num_asked, num_long = 0, 0

    async def generate(self, input, **options):
        self.num_long += "long" in input[-1].text
        if self.num_long == 2 and "long" in input[-1].text:
            raise RuntimeError("the context is too long")
        self.num_asked += 1
        return ModelOutput.from_content(self.model_name, "none" if self.num_asked % 3 == 0 else "4")


OTHERS = [
    Sample(
        id=f"{user}-{prompt}",
        input="a long 2 + 2 =" if (user, prompt) == (3, 1) else "2 + 2 =",
        target="4",
        metadata={"user": f"user-{user}"},
    )
    for user in range(5)
    for prompt in range(2)
]


def without_paths(value):
    """The same but for tracebacks, which name the files of whoever wrote it."""
    if isinstance(value, dict):
        return {key: "" if key.startswith("traceback") else without_paths(each) for key, each in value.items()}
    return [without_paths(each) for each in value] if isinstance(value, list) else value


def write(name, samples, model, epochs, **how):
    task = Task(name="sums", dataset=MemoryDataset(samples), solver=[generate()], scorer=[match(), includes()])
    with tempfile.TemporaryDirectory() as folder:
        asked = {"log_dir": folder, "log_format": "json", "display": "none", "max_samples": 1}
        eval(task, model=model, epochs=epochs, **asked, **how)
        (log,) = Path(folder).glob("*.json")
        content = json.dumps(without_paths(json.loads(log.read_bytes())))
        Path(__file__).with_name(name).write_bytes(gzip.compress(content.encode(), mtime=0))


if __name__ == "__main__":
    write("inspect.json.gz", SAMPLES, get_model("mockllm/model", custom_outputs=answers()), epochs=2)
    write("inspect_errors.json.gz", OTHERS, get_model("tired/model"), epochs=4, fail_on_error=False)
