"""A task for tests of whole runs, as a local plugin: coloured squares, and verifiers of which some misbehave on purpose."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mmrl import Case, NoGold, Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (30, 60, 220), "black": (0, 0, 0)}


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(id="toy/colour", target="toy:Colour", verifiers={"toy/letters": 1.0}, metric="toy/exact"),
        TaskSpec(id="toy/unknown", target="toy:Unknown", verifiers={"toy/letters": 1.0}, metric="toy/exact"),
        TaskSpec(id="toy/broken-images", target="toy:Broken", verifiers={"toy/letters": 1.0}, metric="toy/exact"),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    names = ("letters", "exact", "zero", "raises", "sometimes", "nan", "prints", "hangs", "forks")
    return [VerifierSpec(id=f"toy/{n}", target=f"toy:{n}", timeout_s=0.3 if n == "hangs" else 5.0) for n in names]


class Colour(Task):
    """Which colour the picture has."""

    def __init__(self, copies: int = 4, colours: int = 4) -> None:
        self.copies, self.colours = copies, colours

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        from PIL import Image

        for name, rgb in list(COLOURS.items())[: self.colours]:
            for k in range(self.copies):
                shade = tuple(max(0, c - 5 * k - (3 if split == "test" else 0)) for c in rgb)
                yield Prompt(
                    id=f"{split}-{name}-{k}",
                    messages=[user_message("The colour is", Image.new("RGB", (56, 56), shade))],
                    answer=name,
                )

    def pair(self, prompt: Prompt) -> tuple[str, str]:
        names = list(COLOURS)
        return prompt.answer, names[(names.index(prompt.answer) + 1) % len(names)]


class Unknown(Colour):
    """The same, of which nobody says what is right."""

    def gold(self, prompt: Prompt) -> str:
        raise NoGold(f"nobody knows the colour of {prompt.id}")


class Broken(Colour):
    """Every so many pictures is a file that is not one."""

    def __init__(self, folder: str, each: int = 8, copies: int = 4, colours: int = 4) -> None:
        super().__init__(copies, colours)
        self.folder, self.each = folder, each

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        for i, prompt in enumerate(super().prompts(split, seed)):
            path = os.path.join(self.folder, f"{prompt.id}.png")
            if split == "train" and i % self.each == 0:
                with open(path, "wb") as file:
                    file.write(b"not a picture")
            else:
                prompt.images[0].save(path)
            yield Prompt(id=prompt.id, messages=[user_message("The colour is", path)], answer=prompt.answer)


def letters(case: Case) -> float:
    """Differs between random completions, so that every group has spread."""
    return float(case.completion == case.answer) or min(0.9, sum(ord(c) % 17 for c in case.completion) / 400)


def exact(case: Case) -> float:
    return float(case.completion.strip() == case.answer)


def zero(case: Case) -> float:
    return 0.0


def raises(case: Case) -> float:
    raise RuntimeError("the grader is out")


def sometimes(case: Case) -> float:
    """Fails for about one completion in sixteen, depending on nothing but its text."""
    if sum(case.completion.encode()) % 16 == 0:
        raise RuntimeError("bad luck")
    return letters(case)


def nan(case: Case) -> float:
    return float("nan")


def prints(case: Case) -> float:
    print("look at me")
    return letters(case)


def hangs(case: Case) -> float:
    while True:
        pass


def forks(case: Case) -> float:
    os.fork()
    return letters(case)
