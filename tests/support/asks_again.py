"""A task for tests of conversations, as a local plugin: the first answer is met with another picture, and the second ends it."""

from __future__ import annotations

from mmrl import Prompt, Reply, Task, TaskSpec, hookimpl, user_message


@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="asks_again/colour", target="asks_again:Twice", verifiers={"toy/letters": 1.0}, metric="toy/exact")]


class Twice(Task):
    def prompts(self, split, seed):
        return [
            Prompt(id=f"{split}-{i}", messages=[user_message("x" * i, _picture(56, i))], answer="red", meta={"i": i})
            for i in range(8)
        ]

    def environment(self, prompt):
        return _Again(prompt.meta["i"])


class _Again:
    def __init__(self, number):
        self.number, self.turns = number, 0

    def step(self, completion):
        self.turns += 1
        if self.turns == 2:
            return Reply(terminated=True)
        return Reply(messages=[user_message("And this?", _picture(56 + 28 * (self.number % 2), self.number + 1))])

    def close(self): ...


def _picture(side, shade):
    from PIL import Image

    return Image.new("RGB", (side, side), (20 * shade, 90, 150))
