"""Build the policy that a run file names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from mmrl.api.annotations import check_types, options_class
from mmrl.api.errors import PluginError, UserError, check_path, plugin_errors
from mmrl.api.specs import PolicySpec
from mmrl.api.tokens import TokenKind
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.saved_policy import SETTINGS, check_same_kind, read_settings, saved_options
from mmrl.policies.policy import ON_CLASS, Policy, lacking
from mmrl.registry import plugins
from mmrl.registry.importing import FILLED, check_options

BASE = "policy.options.base"
"""The key of the policy beneath another, with which errors about it begin."""
BENEATH = frozenset({"kind", "model", "options"})
"""Keys of `Base`, where it is a table."""


def make_policy(config: PolicyConfig, **given: Any) -> Policy:
    """Make the policy of a configuration, with its options. given: device, seed and source. Raises UserError for bad options."""
    registry = plugins.registry()
    spec = registry.get("policies", config.kind)
    kind, options = registry.target(spec), checked_options(config, spec)
    with plugin_errors(f"policy {spec.id!r}"):
        policy: Policy = kind(config, **given, **options)
    _refuse_incomplete(spec, lacking(policy))
    return policy


def checked_options(config: PolicyConfig, spec: PolicySpec) -> dict[str, Any]:
    """All options of a configuration's policy: the spec's, those saved with the model, and the run file's. Raises UserError for
    wrong ones, and for keys of `[policy]` that it would ignore, without loading anything."""
    options = {**spec.options, **check_same_kind(Path(config.model), config.kind), **config.options}
    if taken := sorted(name for name in options if name in ("config", *FILLED["policies"])):
        raise UserError(f"policy.options: leave out {', '.join(taken)}: device and seed have keys of their own")
    cure = "set policy.options.{name}"
    kind = plugins.registry().target(spec)
    if config.dtype != "float32" and getattr(kind, "float32_only", False):
        raise UserError(f'policy.dtype = "{config.dtype}": a policy of kind {config.kind!r} computes in float32: leave it out')
    for name in sorted(getattr(kind, "unread", ())):
        if getattr(config, name) != PolicyConfig.model_fields[name].default:
            raise UserError(f"a policy of kind {config.kind!r} doesn't read it: leave it out", key=f"policy.{name}")
    check_types("policy.options.", kind, options)
    check_options(f"policy {spec.id!r}", kind, options, skip=1, cure=cure, filled=FILLED["policies"])
    if declared := options_class(kind):
        declared(**{f.name: options[f.name] for f in fields(declared) if f.name in options})
    return options


def saved_policy(folder: Path, config: PolicyConfig, device: str | torch.device) -> Policy:
    """Load a saved policy that acts, of any kind, with the dtype, attention and limits of this configuration. Raises UserError if
    the folder holds none."""
    kind = read_settings(folder).get("kind", "")
    own = config.model_copy(update={"kind": kind, "model": str(folder), "lora": None, "options": {}})
    return make_policy(own, device=device)


Base = str | Path | Mapping[str, Any]
"""A frozen policy beneath another: a folder with one that acts, or a table with the `kind`, the `model` and the `options` of
`[policy]`, for one that wasn't saved by mmrl."""


def named(base: Base) -> str:
    """A base in messages: its folder, or its kind and model."""
    return f"{base['kind']} {base['model']!r}" if isinstance(base, Mapping) else repr(str(base))


@contextmanager
def errors_of_base(base: Base) -> Iterator[None]:
    """Within it, errors about keys of `[policy]` are about those of the base."""
    try:
        yield
    except UserError as error:
        table = isinstance(base, Mapping)
        key = f"{BASE}{error.key.removeprefix('policy')}" if table and error.key.startswith("policy.") else BASE
        what = re.sub(r"policy\.options\.(?!base\b)", "policy.options.base.options.", error.what) if table else error.what
        raise UserError(what, key=key) from error.__cause__


def config_beneath(base: Base, config: PolicyConfig) -> PolicyConfig:
    """The configuration of the frozen policy beneath one of this configuration, whose dtype, attention and limits it has. Raises
    UserError if there is none."""
    if not isinstance(base, Mapping):
        if not Path(base).is_dir():
            raise UserError(f"{str(base)!r} is no folder here: {check_path(base)}", key=BASE)
        kind = read_settings(Path(base)).get("kind", "")
        if not kind:
            raise UserError(f"{str(base)!r} has no {SETTINGS}: give a folder with a policy that acts", key=BASE)
        base = {"kind": kind, "model": str(base)}
    kind, model, options = base.get("kind"), base.get("model"), base.get("options", {})
    if not (isinstance(kind, str) and isinstance(model, str) and isinstance(options, Mapping) and set(base) <= BENEATH):
        raise UserError(
            f"{dict(base)!r:.100} is no policy: give a folder with one, or kind, model and options, as in [policy], such as "
            '{kind = "pi0", model = "lerobot/pi0_libero_finetuned"}',
            key=BASE,
        )
    spec = plugins.registry().get("policies", kind)
    if not spec.acts:
        raise UserError(f"{named(base)} doesn't act in simulators: give a policy that does", key=BASE)
    target = policy_class(spec)
    ignored = {"lora", *getattr(target, "unread", ()), *(["dtype"] if getattr(target, "float32_only", False) else [])}
    own = {name: PolicyConfig.model_fields[name].default for name in ignored}
    return config.model_copy(update={**own, "kind": kind, "model": model, "options": dict(options)})


def check_beneath(config: PolicyConfig) -> None:
    """Raise UserError if the base of a configuration's policy can't be loaded, as far as that is known without loading it."""
    options = {**saved_options(Path(config.model)), **config.options}
    if base := options.get("base"):
        _checked_beneath(base, config)


def policy_beneath(base: Base, config: PolicyConfig, device: str | torch.device) -> ActingPolicy:
    """Load the frozen policy beneath one of this configuration. base: see `config_beneath`. Raises UserError if there is none."""
    own = _checked_beneath(base, config)
    with errors_of_base(base):
        found = make_policy(own, device=device)
    assert isinstance(found, ActingPolicy)
    found.model.requires_grad_(False)
    return found


def _checked_beneath(base: Base, config: PolicyConfig) -> PolicyConfig:
    """`config_beneath`, whose model was checked."""
    own = config_beneath(base, config)
    with errors_of_base(base):
        policy_class(plugins.registry().get("policies", own.kind)).check(own)
    return own


def policy_class(spec: PolicySpec) -> Any:
    """The class of this kind of policy, for checks before a policy is made. If the target is a function: `Policy`, whose checks
    refuse nothing."""
    kind = plugins.registry().target(spec)
    if not isinstance(kind, type):
        return Policy
    _refuse_incomplete(spec, lacking(kind, ON_CLASS))
    return kind


def token_kind(config: PolicyConfig, spec: PolicySpec) -> TokenKind:
    """What a token of a configuration's policy is; loads nothing. If the target is a function: actions, if the policy acts."""
    kind = policy_class(spec)
    if kind is Policy:
        return TokenKind.ACTION if spec.acts else TokenKind.WORD
    options = {**spec.options, **saved_options(Path(config.model)), **config.options}
    found: TokenKind = kind.token_kind(config.model_copy(update={"options": options}))
    if found.acts != spec.acts:
        raise PluginError(
            f"policy {spec.id!r}: its spec has acts={spec.acts}, and its token_kind() says {found.name}: make both say the same"
        )
    return found


def _refuse_incomplete(spec: PolicySpec, names: Sequence[str]) -> None:
    if names:
        raise PluginError(
            f"policy {spec.id!r} lacks {', '.join(names)}: define them as mmrl.api.policies.Policy says, or inherit from it"
        )
