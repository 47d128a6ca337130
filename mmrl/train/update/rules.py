"""The rules by which an optimiser steps: torch's, Muon, and AdamW with 8-bit states."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import torch

from mmrl.compute.bitsandbytes import import_bitsandbytes
from mmrl.config.training import EIGHT_BIT, Training
from mmrl.policies.shard import distribute_like

TABLES = ("qmap1", "qmap2")
"""What the bytes of 8-bit states stand for: the same for all weights, so it is not saved."""


CURE = 'optimizer = "adamw"'


class Rules:
    """Several rules that step together, each its own weights: Muon or 8-bit AdamW for some, AdamW in 32 bits for the others."""

    def __init__(self, rules: list[Any]) -> None:
        self.rules = rules
        self.param_groups = [group for rule in rules for group in rule.param_groups]
        self.state: dict[torch.Tensor, dict[str, Any]] = collections.defaultdict(dict)
        for rule in rules:
            rule.state = self.state
        self.defaults = rules[0].defaults

    def step(self) -> None:
        for rule in self.rules:
            rule.step()


Rule = torch.optim.Optimizer | Rules


def is_special(stage: Training, name: str, weight: torch.Tensor) -> bool:
    """Whether a weight is one of those that `muon` or 8-bit AdamW are for: matrices between hidden states, and all but
    embeddings. Rows of embeddings have a gradient in few steps, which 8 bits are too coarse for; Dettmers et al., 8-bit
    Optimizers via Block-wise Quantization, section 2.3, arXiv 2110.02861."""
    embeds = any("embed" in step for step in name.split("."))
    if stage.optimizer == "muon":
        steps = name.split(".")
        return weight.ndim == 2 and not embeds and "lm_head" not in steps and steps[0] != "value"
    return stage.optimizer in EIGHT_BIT and not embeds


def make_rule(stage: Training, groups: list[dict], special: list[dict]) -> Rule:
    """The rule of a stage. groups: torch's parameter groups. special: those of the weights that `is_special` names, of an
    optimiser that has such."""
    betas = (stage.beta1, stage.beta2)
    if stage.optimizer == "muon":
        rules: list[Any] = [torch.optim.AdamW(groups, betas=betas, fused=True)] if groups else []
        return Rules(
            rules + ([torch.optim.Muon(special, momentum=stage.beta1, adjust_lr_fn="match_rms_adamw")] if special else [])
        )
    if stage.optimizer in EIGHT_BIT:
        return _eight_bit(stage, groups, special)
    if stage.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=betas, fused=True)
    if stage.optimizer == "adam":
        return torch.optim.Adam(groups, betas=betas, fused=True)
    if stage.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=stage.beta1)
    if stage.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, alpha=stage.beta2)
    return torch.optim.Adafactor(groups)


def _eight_bit(stage: Training, groups: list[dict], special: list[dict]) -> Rules:
    """bitsandbytes' AdamW with 8-bit states, and with 32-bit ones for `groups`. Both may be paged, on a GPU alone: a CPU's memory
    is the host's."""
    optim = import_bitsandbytes(f'stages.optimizer = "{stage.optimizer}"', CURE).optim
    first = (special or groups)[0]["params"][0]
    options = {
        "betas": (stage.beta1, stage.beta2),
        "is_paged": stage.optimizer.startswith("paged") and first.device.type != "cpu",
    }
    return Rules([kind(g, **options) for kind, g in ((optim.AdamW32bit, groups), (optim.AdamW8bit, special)) if g])


# -- the state of a weight ----------------------------------------------------------------------------------------------------


def forget(rule: Rule) -> None:
    """Let a rule forget its running means. bitsandbytes frees no paged tensor, so its own are blanked."""
    for weight, held in list(rule.state.items()):
        if "state1" not in held:
            del rule.state[weight]
            continue
        for key, value in held.items():
            held[key] = 0 if key == "step" else value if key in TABLES else value.zero_()


def saved_state(rule: Rule, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a rule remembers of a weight, for a safetensors file."""
    held = rule.state.get(weight, {})
    return {key: torch.as_tensor(value).contiguous() for key, value in held.items() if key not in TABLES}


def restore_state(rule: Rule, weight: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
    """Let a rule remember what `saved_state` gave. Raises ValueError for the state of another weight."""
    if "state1" in state:
        _restore_eight_bit(rule, weight, state)
        return
    placed = {}
    for key, value in state.items():  # torch keeps `step` on the CPU unless the rule is fused
        on_cpu = key == "step" and not rule.defaults.get("fused")
        value = value.to("cpu" if on_cpu else weight.device, copy=True)
        placed[key] = value if key == "step" else distribute_like(value, weight, factor=True)
    rule.state[weight] = placed


def _restore_eight_bit(rule: Rule, weight: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
    """bitsandbytes makes the tensors, some of them paged, and the saved values are written into them."""
    for one in getattr(rule, "rules", ()):
        for number, group in enumerate(one.param_groups):
            if any(weight is p for p in group["params"]):
                one.init_state(group, weight, number, 0)
    held = rule.state[weight]
    if weight.is_cuda:
        torch.cuda.synchronize(weight.device)  # paged tensors, which the host writes to, are blanked on the device
    for key, value in state.items():
        if key == "step":
            held[key] = int(value)
            continue
        if key not in held or held[key].shape != value.shape or held[key].dtype != value.dtype:
            raise ValueError(
                f"its optimiser has {key} of {list(value.shape)} for a weight of {list(weight.shape)}: it is another"
            )
        held[key].copy_(value)
