"""Calls of sampling rules that name the rule in an error: a plugin's rule may raise anything, and return anything."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from safetensors.torch import save

from mmrl.api.errors import PluginError, is_finite, plugin_errors
from mmrl.api.sampling import Group, SamplingRule, StepSampler


def applied(rule: SamplingRule, groups: list[Group], step: StepSampler) -> list[Group]:
    """The groups that a rule returns. Raises PluginError if the rule fails, returns something else, breaks a group, or leaves
    groups out in the phase `score`."""
    name, numbers = _name(rule), [group.number for group in groups]
    with _named(rule, ""):
        found = rule(groups, step)
    if not isinstance(found, list) or not all(isinstance(group, Group) for group in found):
        raise PluginError(f"{name} must return a list of mmrl.api.sampling.Group, not {found!r:.80}: is the `return` missing?")
    if rule.phase == "score" and len(found) < len(groups):
        raise PluginError(f'{name} left groups out in the phase "score": write `phase = "select"` in its class')
    if rule.phase == "score" and not {group.number for group in found} >= set(numbers):
        raise PluginError(f"{name} changed the number of a group: leave Group.number and Group.place as they are")
    for group in found:
        if not group.rollouts or len(group.scores) != len(group.rollouts):
            raise PluginError(
                f"{name} returned a group with {len(group.rollouts)} rollouts and {len(group.scores)} scores: there must be one "
                "score for each rollout"
            )
    return found


def counted(rule: SamplingRule, groups: Sequence[Group], known: Collection[str]) -> dict[str, float]:
    """The metrics that a rule counts. Raises PluginError for others than numbers, and for names in `known`, which are taken."""
    with _named(rule, ": counts()"):
        counts = dict(rule.counts(groups))
    for name, value in counts.items():
        if not isinstance(name, str) or not isinstance(value, int | float):
            raise PluginError(f"{_name(rule)}: counts() must return numbers by names, and {name!r} is {value!r:.80}")
    if taken := sorted(counts.keys() & set(known)):
        raise PluginError(f"{_name(rule)}: counts() gives {taken[0]!r}, which is another metric: choose a name of your own")
    return counts


def credited(rule: SamplingRule, groups: Sequence[Group], advantages: torch.Tensor) -> None:
    """Let a rule change the advantages. Raises PluginError if the rule fails, or makes one infinite."""
    with _named(rule, ": credit()"):
        rule.credit(groups, advantages)
    if advantages.isinf().any():
        raise PluginError(f"{_name(rule)}: credit() made an advantage infinite: give finite numbers, or NaN to leave one out")


def learned(rule: SamplingRule) -> dict[str, torch.Tensor]:
    """Copies of the tensors of a rule's state. Raises PluginError if the rule fails, or gives what no checkpoint holds."""
    with _named(rule, ": state()"):
        state = dict(rule.state())
    for name, x in state.items():
        if not isinstance(name, str) or not isinstance(x, torch.Tensor):
            raise PluginError(f"{_name(rule)}: state() must return tensors by names, not {name!r:.60}: {type(x).__name__}")
        if x.is_meta or x.layout is not torch.strided or not _has_file_type(x):
            kind = f"{x.dtype}, {x.layout}, on {x.device}"
            raise PluginError(
                f"{_name(rule)}: no checkpoint holds {name!r:.60} of state() ({kind}): return it dense, such as float32"
            )
    return {name: x.detach().clone(memory_format=torch.contiguous_format) for name, x in state.items()}


def reload(rule: SamplingRule, state: Mapping[str, torch.Tensor]) -> None:
    """Let a rule go on from what `learned` gave. Raises PluginError if it fails."""
    with _named(rule, ": load_state()"):
        rule.load_state(state)


def check_sizes(name: str, rule: SamplingRule) -> None:
    """Raise PluginError for attributes with which no number of prompts can be computed."""
    if not is_finite(rule.oversample) or not 1 <= rule.oversample <= 1000:
        raise PluginError(f"{name}: oversample = {rule.oversample!r:.60} must be a number from 1 to 1000")
    if type(rule.groups_per_prompt) is not int or rule.groups_per_prompt < 1:
        raise PluginError(f"{name}: groups_per_prompt = {rule.groups_per_prompt!r:.60} must be a whole number of at least 1")


def _has_file_type(x: torch.Tensor) -> bool:
    """Whether safetensors can write the data type of a tensor."""
    try:
        save({"": torch.empty(0, dtype=x.dtype)})
    except KeyError:
        return False
    return True


def _name(rule: SamplingRule) -> str:
    return f"sampling rule {type(rule).__name__}"


def _named(rule: SamplingRule, what: str) -> AbstractContextManager[None]:
    """Turns exceptions of a plugin's rule into PluginErrors; those of a built-in one are faults of mmrl, and pass."""
    return contextlib.nullcontext() if type(rule).__module__.startswith("mmrl.") else plugin_errors(f"{_name(rule)}{what}")
