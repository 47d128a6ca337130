"""The model card of an exported policy: what it is, how it was evaluated, on what it was trained, and how it is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mmrl.api.errors import UserError
from mmrl.config.load import load_config
from mmrl.config.sections import RunConfig, TaskConfig
from mmrl.registry import plugins
from mmrl.run_folder.figures import interval_text
from mmrl.run_folder.reader import RunData

Layout = Literal["transformers", "peft", "lerobot", "mmrl"]
LONGEST_CHAIN = 16
"""Runs that begin with the checkpoint of another, in a row."""
ASK = """```python
from PIL import Image
from transformers import {loader}, AutoProcessor

model = {loader}.from_pretrained("{name}")
processor = AutoProcessor.from_pretrained("{name}")

picture = {{"type": "image", "image": Image.open("picture.png").convert("RGB")}}
question = {{"type": "text", "text": "What is in the picture?"}}
inputs = processor.apply_chat_template(
    [{{"role": "user", "content": [picture, question]}}],
    add_generation_prompt=True,{template}
    tokenize=True,
    return_dict=True,
    return_tensors="pt",
).to(model.device, model.dtype)
answer = model.generate(**inputs, max_new_tokens={tokens}, do_sample=False)
print({opening}processor.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```{pixels}"""
USE: dict[str, str] = {
    "transformers": ASK,
    "peft": """The folder has adapters (LoRA) of {base}, which transformers loads by itself if peft is installed.

"""
    + ASK,
    "thinker": """The folder has adapters (LoRA) of the thinker in {base}, called MODEL here. vLLM loads them beside it;
`mmrl export --merge` makes a model of both, which transformers loads, too.

```sh
vllm serve MODEL --enable-lora --lora-modules {name}=FOLDER
```""",
    "lerobot": """```sh
lerobot-eval --policy.path={name} --env.type=...
```""",
    "mmrl": """[mmrl](https://pypi.org/project/multimodal-rl/) alone loads it, as `policy.model`.""",
}
LOADER = "AutoModelForImageTextToText"
LIBRARIES = {"transformers": "transformers", "peft": "peft", "lerobot": "lerobot", "mmrl": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A task's figure after the exported step, and the one of the run's first evaluation."""

    task: str
    split: str
    metric: str
    value: str
    before: str
    n: int


@dataclass(frozen=True, slots=True)
class Card:
    """A model card for the hub, in Markdown with the hub's metadata above."""

    run: RunData
    config: RunConfig
    step: int
    """Of the exported checkpoint."""
    layout: Layout
    name: str
    """Of the model: its repository, or its folder."""
    base: str
    """The model with which training began."""
    loader: str = LOADER
    """The class of transformers that loads it."""
    opening: str = ""
    """What its chat template writes of each answer, such as `<think>`."""

    def text(self) -> str:
        parts = [self._head(), self._evaluation(), self._training(), self._use(), self._licence()]
        return f"---\n{self._metadata()}\n---\n\n" + "\n\n".join(parts) + "\n"

    def _metadata(self) -> str:
        """YAML, as the hub reads it. It names no licence."""
        from huggingface_hub import EvalResult, ModelCardData

        task = "robotics" if self._acts() else "image-text-to-text"
        results = [
            EvalResult(
                task_type=task,
                dataset_type="mmrl",
                dataset_name=figure["task"],
                dataset_split=figure["split"],
                metric_type=figure["metric"],
                metric_name=figure["metric"],
                metric_value=round(figure["value"], 6),
                metric_args={**_bounds(figure), "n": figure["n"]},
            )
            for figure in self._figures(self.step)
        ]
        data = ModelCardData(
            base_model=self.base if _on_hub(self.base) else None,
            library_name=LIBRARIES[self.layout],
            pipeline_tag=task,
            tags=["mmrl", "reinforcement-learning", *sorted({task.id.replace("/", "-") for task in self.config.tasks})],
            model_name=self.name if results else None,
            eval_results=results or None,
        )
        return str(data.to_yaml())

    def _head(self) -> str:
        stages = ", then ".join(_stage(stage) for stage in self.config.stages)
        return (
            f"# {self.name}\n\n{_shown(self.base)}, trained with [mmrl](https://pypi.org/project/multimodal-rl/): {stages}. "
            f"These are the weights after step {self.step}."
        )

    def _evaluation(self) -> str:
        rows = list(self._rows())
        if not rows:
            return f"## Evaluation\n\nThe run did not evaluate the weights of step {self.step}."
        settings = self.config.evaluate
        sampled = f"sampled at temperature {settings.temperature:g}" if settings.temperature else "greedy"
        posed, answer, of = ("starts", "episode", "from") if self._acts() else ("prompts", "answer", "to")
        answers = f"one {answer}" if settings.num_samples == 1 else f"{settings.num_samples} {answer}s"
        table = _table(
            ("task", "split", "metric", "value (95% interval)", self._earlier(), posed),
            [(row.task, row.split, row.metric, row.value, row.before, str(row.n)) for row in rows],
        )
        again = f"mmrl eval run.toml --set 'policy.model=\"{self.name}\"'"
        return f"## Evaluation\n\nHeld-out {posed}, {answers} {of} each, {sampled}.\n\n{table}\n\n`{again}` evaluates it again."

    def _acts(self) -> bool:
        """Whether the policy acts in simulators. One whose plugin is gone does: the kinds that write are mmrl's own."""
        try:
            return plugins.registry().get("policies", self.config.policy.kind).acts
        except UserError:
            return True

    def _rows(self) -> Iterator[_Row]:
        earlier = self._first()
        before = {(row["task"], row["split"]): row for row in self._figures(earlier)}
        for row in self._figures(self.step):
            first = before.get((row["task"], row["split"])) if earlier < self.step else None
            names = {key: row[key] for key in ("task", "split", "metric", "n")}
            yield _Row(**names, value=_figure(row), before=_figure(first) if first else "")

    def _first(self) -> int:
        """The step of the run's first evaluation: 0, or the end of the sft stages that it began with."""
        return min((row["step"] for row in self.run.evals), default=0)

    def _earlier(self) -> str:
        """The title of the figures of the first evaluation."""
        return f"after step {self._first()}" if self._first() else "before training"

    def _figures(self, step: int) -> list[dict[str, Any]]:
        return [row["eval"] for row in self.run.evals if row["step"] == step]

    def _training(self) -> str:
        rows = [(task.id, f"{task.weight:g}", ", ".join(_verifiers(task))) for task in self.config.tasks]
        used = {id.partition("/")[0] for task in self.config.tasks for id in (task.id, *_verifiers(task))}
        brought = [one for one in self.run.manifest.get("plugins", []) if one.get("name") in used and one.get("dist")]
        own = "".join(f", {one['dist']} {one['version']}" for one in brought)
        packages = self.run.manifest.get("packages", {})
        versions = "".join(f", {name} {packages[name]}" for name in ("torch", "transformers") if name in packages)
        return (
            "## Training\n\n"
            f"{_table(('task', 'weight', 'verifiers'), rows)}\n\n"
            f"`run.toml` is the whole run file, with seed {self.config.seed}: `mmrl train run.toml` trains it again. It was made "
            f"with multimodal-rl {self.run.manifest.get('mmrl', '')}{own}{versions}."
        )

    def _use(self) -> str:
        most, tokens = self.config.policy.max_pixels, self.config.generate.max_tokens
        pixels = f"\n\nIt was trained on pictures of at most {most:,} pixels; larger ones were shrunk to that." if most else ""
        template = "".join(f"\n    {name}={value!r}," for name, value in self.config.policy.chat_template_kwargs.items())
        kind = self.layout if self.loader else "thinker"
        use = USE[kind].format(
            name=self.name,
            base=_shown(self.base),
            loader=self.loader,
            tokens=tokens,
            pixels=pixels,
            template=template,
            opening=json.dumps(self.opening) + " + " if self.opening else "",
        )
        return f"## Use\n\n{use}"

    def _licence(self) -> str:
        base = "" if self.base.startswith("tiny:") else f"{_shown(self.base)} and of "  # random weights have no terms
        return (
            "## Licence\n\nWhoever publishes this model chooses its licence (`license` in the metadata above), within the terms "
            f"of {base}the data that it was trained on."
        )


def origin(model: str) -> str:
    """The model with which training began: where a run began with the checkpoint of another run, that run's."""
    for _ in range(LONGEST_CHAIN):
        folder = Path(model)
        run = folder.resolve().parents[2] if folder.is_dir() and len(folder.resolve().parents) > 2 else None
        if run is None or folder.resolve().parents[1].name != "checkpoints" or not (run / "config.toml").is_file():
            break
        model = load_config(run / "config.toml").policy.model
    return model


def _verifiers(task: TaskConfig) -> list[str]:
    """Ids of the verifiers that a task was scored by. Of a task whose plugin is gone, those that the run file names."""
    try:
        return list(task.verifiers or plugins.registry().get("tasks", task.id).verifiers)
    except UserError:
        return []


def _on_hub(model: str) -> bool:
    return not model.startswith(("tiny:", ".", "/", "~")) and model.count("/") == 1 and not Path(model).is_dir()


def _shown(model: str) -> str:
    """A model's name as a reader elsewhere can use it: of a folder its last part."""
    if _on_hub(model):
        return f"[{model}](https://huggingface.co/{model})"
    return f"`{Path(model).name if Path(model).is_dir() else model}`"


def _stage(stage: Any) -> str:
    algorithm = f" ({stage.algorithm})" if getattr(stage, "algorithm", "") else ""
    return f"{stage.kind}{algorithm} for {stage.steps} step{'s' * (stage.steps != 1)}"


def _figure(row: dict[str, Any]) -> str:
    return f"{row['value']:.3f} ({interval_text(row['low'], row['high'])})"


def _bounds(row: dict[str, Any]) -> dict[str, float]:
    """The bounds of a figure's interval, without those that are unknown."""
    return {key: round(row[key], 6) for key in ("low", "high") if row[key] is not None}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
