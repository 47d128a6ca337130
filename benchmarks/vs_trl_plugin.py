"""The task and the reward of `vs_trl.py`, as a local plugin."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Case, Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    weights = {"vs_trl_plugin/reward": 1.0}
    return [
        TaskSpec(id="vs_trl_plugin/digits", target="vs_trl_plugin:Digits", verifiers=weights),
        TaskSpec(id="vs_trl_plugin/asked", target="vs_trl_plugin:Asked", verifiers=weights),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [VerifierSpec(id="vs_trl_plugin/reward", target="vs_trl_plugin:score")]


def score(case: Case) -> float:
    from vs_trl import reward

    return reward(case.completion)


class Digits(Task):
    """Pictures of digits with `pixels` pixels per side."""

    def __init__(self, pixels: int = 448) -> None:
        from PIL import Image
        from sklearn.datasets import load_digits

        self.images = [
            Image.fromarray((d / 16 * 255).astype("uint8")).resize((pixels, pixels)).convert("RGB")
            for d in load_digits().images[:64]
        ]

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        return [Prompt(id=str(i), messages=[user_message("What digit is shown?", image)]) for i, image in enumerate(self.images)]


class Asked(Task):
    """The same pictures and questions as in TRL's data set."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        from vs_trl import questions

        self.questions = questions(dict(case))

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        return [Prompt(id=str(i), messages=[user_message(text, *images)]) for i, (text, images) in enumerate(self.questions)]
