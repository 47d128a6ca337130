"""The task and the reward of `vs_trl.py`, as a local plugin."""

from collections.abc import Sequence

from mmrl import Case, Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [TaskSpec(id="vs_trl_plugin/digits", target="vs_trl_plugin:Digits", verifiers={"vs_trl_plugin/reward": 1.0})]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [VerifierSpec(id="vs_trl_plugin/reward", target="vs_trl_plugin:score")]


def score(case: Case) -> float:
    return min(1.0, len(set(case.completion)) / 100 + len(case.completion) / 1000)


class Digits(Task):
    """The same pictures and question as TRL's data set."""

    def __init__(self, pixels: int = 448) -> None:
        from PIL import Image
        from sklearn.datasets import load_digits

        self.images = [
            Image.fromarray((d / 16 * 255).astype("uint8")).resize((pixels, pixels)).convert("RGB")
            for d in load_digits().images[:64]
        ]

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        return [Prompt(id=str(i), messages=[user("What digit is shown?", image)]) for i, image in enumerate(self.images)]
