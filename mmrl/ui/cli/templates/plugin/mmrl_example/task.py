"""The task and its verifier: replace the drawing by your images and the question by yours."""

import random
from collections.abc import Sequence

from PIL import Image, ImageDraw

from mmrl import Case, Prompt, Task, user_message

COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220), "yellow": (230, 210, 40)}
ROWS = {"warm": 48, "train": 400, "test": 100}
"""Split -> number of prompts: `warm` for imitation, `train` for reinforcement learning, `test` held out."""


class Colour(Task):
    """Name the colour of a drawn shape."""

    splits = tuple(ROWS)

    def __init__(self, size: int = 56) -> None:
        """size: width and height of the image in pixels."""
        self.size = size

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        return [self.prompt(split, seed, number) for number in range(ROWS[split])]

    def prompt(self, split: str, seed: int, number: int) -> Prompt:
        draw = random.Random(f"{split} {seed} {number}")  # seeded by its arguments: the same prompt in every process
        colour = draw.choice(sorted(COLOURS))
        picture = self.picture(colour, draw)
        return Prompt(id=f"{split}-{number}", messages=[user_message("What is the colour of the shape?", picture)], answer=colour)

    def picture(self, colour: str, draw: random.Random) -> Image.Image:
        image = Image.new("RGB", (self.size, self.size), tuple(draw.randrange(200, 256) for _ in range(3)))
        radius = draw.randint(self.size // 8, self.size // 4)
        x, y = (draw.randint(radius, self.size - radius) for _ in range(2))
        pen = ImageDraw.Draw(image)
        shape = draw.choice([pen.ellipse, pen.rectangle])
        shape((x - radius, y - radius, x + radius, y + radius), fill=COLOURS[colour])
        return image


def exact(case: Case) -> float:
    """1 for the colour alone, in upper or lower case; 0 for any other completion."""
    return float(case.completion.strip().lower() == case.answer)
