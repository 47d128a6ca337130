"""A plugin with a task whose split `demo` has each moment of the expert's episodes once, as a data set of them has."""

from mmrl_robotics.task import Episodes

from mmrl import Prompt, TaskSpec, hookimpl

LENGTHS: list[int] = []
"""Steps of the episodes, set by the test that knows them."""


@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="moments/expert", target="moments:Moments", verifiers={"robotics/success": 0.0})]


class Moments(Episodes):
    def prompts(self, split, seed):
        if split != "demo":
            return super().prompts(split, seed)
        return [
            Prompt(id=f"demo-{episode}-{call}", messages=[], seed=episode, meta={"call": call})
            for episode, length in enumerate(LENGTHS)
            for call in range(length)
        ]
