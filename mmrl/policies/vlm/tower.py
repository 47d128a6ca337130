"""The vision tower of a vision-language model: by itself, and what it sees in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from mmrl.api.errors import UserError
from mmrl.api.types import Prompt
from mmrl.config.parts import part_of
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.prompt_rows import read_prompts
from mmrl.policies.vlm.vlm import VLM


def tower_of(model: Any) -> Any:
    """The module of transformers that reads pictures, with its own configuration and without the projector, if that lies outside.
    Raises UserError for a model whose vision part is no such module, so that nothing could load it."""
    from transformers import PreTrainedModel

    for name, module in model.named_modules():  # outer modules come first
        if name and part_of(name) == "vision" and isinstance(module, PreTrainedModel):
            return module
    raise UserError(f"a {type(model).__name__} has no vision tower that could be loaded by itself")


@torch.no_grad()
def tower_features(policy: VLM, prompts: Sequence[Prompt]) -> torch.Tensor:
    """float32 [N, D] on the CPU: the mean over the patches of each prompt's pictures of the tower's last hidden states.

    This is what linear probes read (PIVOT, arXiv 2510.16333, section 4.1 has them on CLIP's features of ImageNet)."""
    seen: list[torch.Tensor] = []
    hook = tower_of(policy.model).register_forward_hook(lambda module, args, output: seen.append(_states(output)))
    found = []
    try:
        for prompt in prompts:
            seen.clear()
            pass_prompt(policy, policy.encode(prompt))
            if not seen:
                raise UserError(f"prompt {prompt.id!r} has no picture for the vision tower: give prompts with pictures")
            found.append(torch.cat(seen).mean(0).float().cpu())
    finally:
        hook.remove()
    return torch.stack(found)


def pass_prompt(policy: VLM, inputs: PromptInputs) -> None:
    """A forward pass over a prompt, for hooks on its modules."""
    read_prompts(policy.family, [inputs], policy.device, DynamicCache(config=policy.model.config))


def _states(output: Any) -> torch.Tensor:
    """The last hidden states of a tower's output, [patches, D]."""
    states: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return states.flatten(0, -2)
