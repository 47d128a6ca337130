"""Imports for plugins with a policy: the protocol, the base class of policies that act in simulators, and their parts.

`mmrl.api` imports no other part of mmrl, so each name is listed in a table and imported on first use, as in::

    from mmrl.api.policies import ActingPolicy, Normal

A policy of any other kind inherits from `Policy` and names its own collector and packer, see `Collector` and `Packer`.
"""

from __future__ import annotations

import importlib
from typing import Any

NAMES = {
    # the protocol, and the classes that make rollouts and batches
    "Policy": "mmrl.policies.policy:Policy",
    "PolicyConfig": "mmrl.config.sections:PolicyConfig",
    "RunConfig": "mmrl.config.sections:RunConfig",
    "Collector": "mmrl.rollout.collector:Collector",
    "SamplingParams": "mmrl.rollout.generate.sampling:SamplingParams",
    "Packer": "mmrl.train.update.packer:Packer",
    "PackOptions": "mmrl.train.update.packer:PackOptions",
    # inputs of an update and outputs of a forward pass
    "Batch": "mmrl.policies.batches:Batch",
    "ActionMicroBatch": "mmrl.policies.batches:ActionMicroBatch",
    "Credit": "mmrl.policies.batches:Credit",
    "ForwardOutputs": "mmrl.policies.batches:ForwardOutputs",
    "Targets": "mmrl.policies.batches:Targets",
    # policies that act in simulators
    "ActingPolicy": "mmrl.policies.acting.base:ActingPolicy",
    "META": "mmrl.policies.acting.planned:META",
    "Planned": "mmrl.policies.acting.planned:Planned",
    "Look": "mmrl.policies.acting.look:Look",
    "read_once": "mmrl.policies.acting.look:read_once",
    "CallRandomness": "mmrl.policies.acting.randomness:CallRandomness",
    "Flow": "mmrl.policies.acting.heads:Flow",
    "Laplace": "mmrl.policies.acting.heads:Laplace",
    "Normal": "mmrl.policies.acting.heads:Normal",
    "Tokens": "mmrl.policies.acting.heads:Tokens",
    "ActionTokens": "mmrl.policies.acting.action_tokens:ActionTokens",
    "Statistics": "mmrl.policies.acting.units:Statistics",
    "Units": "mmrl.policies.acting.units:Units",
    "picture_of": "mmrl.policies.acting.observed:picture_of",
    "state_of": "mmrl.policies.acting.observed:state_of",
    "present_state_of": "mmrl.policies.acting.observed:present_state_of",
    "options": "mmrl.policies.acting.options",
    # policies that stand on a frozen one
    "check_beneath": "mmrl.policies.load:check_beneath",
    "policy_beneath": "mmrl.policies.load:policy_beneath",
    "errors_of_base": "mmrl.policies.load:errors_of_base",
    "planned_base": "mmrl.policies.planned_base:planned_base",
    "frozen_of": "mmrl.policies.planned_base:frozen_of",
    # tiny checkpoints of families
    "make_tokenizer": "mmrl.policies.vlm.tiny.tokens:make_tokenizer",
    "chat_template": "mmrl.policies.vlm.tiny.tokens:template",
    # saved policies
    "SETTINGS": "mmrl.policies.acting.saved_policy:SETTINGS",
    "saved_policy": "mmrl.policies.load:saved_policy",
    "read_settings": "mmrl.policies.acting.saved_policy:read_settings",
}
"""Name -> "module:name", or a module."""


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = NAMES[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted(NAMES)
