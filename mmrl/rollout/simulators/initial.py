"""First observations of episodes and demonstrations of a task that acts, for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt, user_message
from mmrl.registry import plugins
from mmrl.rollout.simulators.demonstrations import task_demonstration


def initial_observations(task: Task, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with the instruction and the first observation's pictures as their messages. Nothing is played."""
    shown = [task_demonstration(task, prompt) for prompt in prompts]
    seen = [_said(p, d.instruction, d.images) if d is not None else p for p, d in zip(prompts, shown, strict=True)]
    rest = [n for n, d in enumerate(shown) if d is None]
    if not rest:
        return seen
    assert task.simulation is not None
    simulator = plugins.registry().make_simulator(task.simulation, 1, "cpu")
    try:
        for n in rest:
            first = simulator.reset(torch.tensor([prompts[n].seed]), None, prompts[n].meta.get("variant"))
            seen[n] = _said(prompts[n], first.instructions[0], first.images)
    finally:
        simulator.close()
    return seen


def _said(prompt: Prompt, instruction: str, images: Mapping[str, torch.Tensor]) -> Prompt:
    from PIL import Image

    pictures = [Image.fromarray(rows[0].cpu().numpy()) for rows in images.values()]
    return replace(prompt, messages=[user_message(instruction, *pictures)])
