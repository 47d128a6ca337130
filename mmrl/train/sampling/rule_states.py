"""What sampling rules have learned or remember, in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from mmrl.api.sampling import SamplingRule
from mmrl.train.sampling.guard import learned, reload

RuleState = Mapping[str, torch.Tensor]

RULE = "rule-{}.safetensors"
"""A rule's state in a checkpoint, by its number among those of the stage."""


def states_of(rules: Sequence[SamplingRule]) -> list[RuleState]:
    """What the rules have learned or remember, as copies. A step's rules run before its update, and a run that stops in between
    is saved without them: so the states are taken once a step has ended."""
    return [learned(rule) for rule in rules]


def save_states(states: Sequence[RuleState], folder: Path) -> None:
    """Write what `states_of` gave."""
    for number, state in enumerate(states):
        if state:
            save_file(dict(state), folder / RULE.format(number))


def load_states(rules: Sequence[SamplingRule], folder: Path) -> None:
    """Let the rules go on from what `save_states` wrote."""
    for number, rule in enumerate(rules):
        if (path := folder / RULE.format(number)).is_file():
            reload(rule, load_file(path))
