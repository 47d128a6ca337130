"""What episodes of a task that acts begin with, for people."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmrl import plugins
from mmrl.interfaces import Task
from mmrl.types import Prompt, replace, user


def starts(task: Task, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with the instruction and the pictures of the first moment as their messages. Nothing is played."""
    from PIL import Image

    assert task.simulation is not None
    simulator = plugins.registry().make_simulator(task.simulation, 1, "cpu")
    found = []
    try:
        for prompt in prompts:
            seen = simulator.reset(torch.tensor([prompt.seed]), None, prompt.meta.get("variant"))
            pictures = [Image.fromarray(images[0].cpu().numpy()) for images in seen.images.values()]
            found.append(replace(prompt, messages=[user(seen.instructions[0], *pictures)]))
    finally:
        simulator.close()
    return found
