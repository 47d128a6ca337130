"""The plugin contract: rules for names, ids, hooks, specs and the required version of the core.

Each check raises a UserError whose message names the broken rule and the remedy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution
from typing import Any, NamedTuple

import mmrl
from mmrl.api import hooks as hookspecs
from mmrl.api.errors import UserError, did_you_mean, is_finite
from mmrl.api.specs import (
    AlarmSpec,
    AlgorithmSpec,
    PolicySpec,
    SamplingRuleSpec,
    SimulatorSpec,
    Spec,
    StageSpec,
    TaskSpec,
    TrackerSpec,
    VerifierSpec,
)
from mmrl.registry.distributions import DISTRIBUTION

KINDS: dict[str, type[Spec]] = {
    "tasks": TaskSpec,
    "verifiers": VerifierSpec,
    "simulators": SimulatorSpec,
    "policies": PolicySpec,
    "algorithms": AlgorithmSpec,
    "sampling_rules": SamplingRuleSpec,
    "stages": StageSpec,
    "alarms": AlarmSpec,
    "trackers": TrackerSpec,
}
SINGULAR = {
    "tasks": "task",
    "verifiers": "verifier",
    "simulators": "simulator",
    "policies": "policy",
    "algorithms": "algorithm",
    "sampling_rules": "sampling rule",
    "stages": "stage",
    "alarms": "alarm",
    "trackers": "tracker",
}
CORE = "mmrl"
"""The plugin name of the core's own specs; only their ids have no plugin name."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_ID = re.compile(
    r"(?P<name>(?:[a-z0-9][a-z0-9_.-]*/)?[A-Za-z0-9][\w.+-]*?)"
    r"(?:-v(?P<version>\d+))?(?:@(?P<system>[A-Za-z0-9][\w.-]*))?",
    re.ASCII,
)
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class Id(NamedTuple):
    """The parts of an id: `plugin/name`, optionally with `-vN` and `@system`."""

    name: str
    version: int | None
    system: str | None


def parse_id(text: str) -> Id | None:
    """The parts of an id; None if the text is no valid id."""
    match = _ID.fullmatch(text)
    return Id(match["name"], int(match["version"]) if match["version"] else None, match["system"]) if match else None


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def contract_error(rule: str) -> UserError:
    return UserError(f"breaks the plugin contract: {rule}")


def check_name(name: str) -> None:
    if not is_name(name):
        raise contract_error(f"its name {name!r} must be lower-case letters, digits, '-', '_' and '.'")
    if name == CORE:
        raise contract_error(f"the name {CORE!r} belongs to the core; choose another one")


def check_core_version(dist: Distribution) -> None:
    """Raise UserError unless the running core satisfies the distribution's requirements."""
    core_requirements = [r for r in dist.requires or () if re.match(r"(mmrl|multimodal[-_.]+rl)(?![\w.-])", r, re.IGNORECASE)]
    if not core_requirements:
        return
    from packaging.requirements import Requirement
    from packaging.version import Version

    running = Version(mmrl.__version__)
    for requirement in map(Requirement, core_requirements):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name.lower() == CORE:
            raise UserError(
                f"requires {CORE}{requirement.specifier}, which is another project on the package index: "
                f"name {DISTRIBUTION} in its pyproject.toml, or upgrade the plugin: pip install -U {dist.name}"
            )
        for clause in requirement.specifier:
            if not clause.contains(running, prereleases=True):
                too_old = clause.operator not in ("<", "<=", "!=") and running < Version(clause.version.removesuffix(".*"))
                cure = (
                    f'upgrade the core: pip install "{DISTRIBUTION}{requirement.specifier}"'
                    if too_old
                    else f"upgrade the plugin: pip install -U {dist.name}"
                )
                raise UserError(f"needs {DISTRIBUTION}{requirement.specifier} and {running} is running: {cure}")


def declared_contract(plugin: Any) -> int | None:
    """The `MMRL_CONTRACT` of a plugin; None if it declares none. Raises UserError if it differs from the core's."""
    number = getattr(plugin, "MMRL_CONTRACT", None)
    if number is None or (type(number) is int and number == hookspecs.CONTRACT):
        return number
    if type(number) is not int or number < 1:
        raise contract_error(f"MMRL_CONTRACT = {number!r} must be a whole number such as {hookspecs.CONTRACT}")
    older = number < hookspecs.CONTRACT
    cure = f"upgrade {'the plugin' if older else f'the core: pip install -U {DISTRIBUTION}'}"
    raise UserError(f"was written for hook contract {number}, and mmrl {mmrl.__version__} has {hookspecs.CONTRACT}: {cure}")


def check_hooks(plugin: Any, implemented: Iterable[str], hooks: Iterable[str]) -> None:
    """Check that the plugin's hooks exist, and that functions with a hook's name have the decorator."""
    hooks = set(hooks)
    for name in implemented:
        if name not in hooks:
            raise contract_error(f"there is no hook {name!r}.{did_you_mean(name, hooks)}")
    for name, value in vars(plugin).items():
        if name in hooks and inspect.isfunction(value) and not hasattr(value, "mmrl_impl"):
            raise contract_error(f"{name} lacks the decorator: put @hookimpl (from mmrl import hookimpl) above it")


def check_specs(plugin: str, kind: str, returned: Any) -> dict[str, Spec]:
    """Id -> spec, for the result of a plugin's `mmrl_<kind>()`, after all checks that import nothing."""
    hook, cls = f"mmrl_{kind}()", KINDS[kind]
    if not isinstance(returned, list | tuple):
        hint = "; is the `return` missing?" if returned is None else ""
        raise contract_error(f"{hook} must return a list of {cls.__name__}, not {type(returned).__name__}{hint}")
    specs: dict[str, Spec] = {}
    for spec in returned:
        if not isinstance(spec, cls):
            raise contract_error(f"{hook} must return a list of {cls.__name__}; it holds a {type(spec).__name__}")
        check_spec(plugin, spec)
        if spec.id in specs:
            raise contract_error(f"{hook} returns the id {spec.id!r} twice")
        specs[spec.id] = spec
    versioned = {(i.name, i.system): spec_id for spec_id in specs if (i := parse_id(spec_id)) and i.version is not None}
    for spec_id in specs:
        i = parse_id(spec_id)
        if i and i.version is None and (i.name, i.system) in versioned:
            raise contract_error(
                f"{spec_id!r} stands for the highest version, {versioned[i.name, i.system]!r}: "
                f"rename the older one {i.name}-v1{'@' + i.system if i.system else ''}"
            )
    return specs


def check_spec(plugin: str, spec: Spec) -> None:
    """Check the id, targets and fields of one spec."""
    if parse_id(spec.id) is None:
        raise contract_error(f"id {spec.id!r} is not plugin/name[-vN][@system], made of letters, digits, '-', '_' and '.'")
    if plugin != CORE and not spec.id.startswith(f"{plugin}/"):
        raise contract_error(f"id {spec.id!r} must start with '{plugin}/', the name of the plugin's entry point")
    targets = [spec.target, spec.loss] if isinstance(spec, AlgorithmSpec) else [spec.target]
    for target in targets:
        if not isinstance(target, str) or not _TARGET.fullmatch(target):
            raise contract_error(f'the target of {spec.id!r} must be "module:Name", not {target!r}')
    for name in ("options", "verifiers", "stage_defaults"):
        value = getattr(spec, name, {})
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise contract_error(f"{name} of {spec.id!r} must be a dict by names, not {value!r:.60}")
    for name in ("summary", "metric", "paper"):
        if not isinstance(value := getattr(spec, name, ""), str):
            raise contract_error(f"{name} of {spec.id!r} must be a text, not {value!r:.60}")
    for verifier, weight in getattr(spec, "verifiers", {}).items():
        if not is_finite(weight):
            raise contract_error(f"{spec.id!r} needs a finite weight for {verifier!r}, not {weight!r:.60}")
    if isinstance(spec, TrackerSpec) and not (
        isinstance(spec.requires, tuple) and all(isinstance(n, str) for n in spec.requires)
    ):
        raise contract_error(f"requires of {spec.id!r} must be a tuple of modules such as ('wandb',), not {spec.requires!r:.60}")
    if isinstance(spec, AlarmSpec):
        for name in ("warn", "stop"):
            if (value := getattr(spec, name)) is not None and not (is_finite(value) and value >= 0):
                raise contract_error(f"{spec.id!r} needs a number of at least 0, or None, as {name}, not {value!r:.60}")
    if isinstance(spec, VerifierSpec):
        for name in ("low", "high", "timeout_s"):
            if not is_finite(getattr(spec, name)):
                raise contract_error(f"{spec.id!r} needs a finite number as {name}, not {getattr(spec, name)!r:.60}")
        if not spec.low < spec.high:
            raise contract_error(f"{spec.id!r} needs low < high, not {spec.low} and {spec.high}")
        if not spec.timeout_s > 0:
            raise contract_error(f"{spec.id!r} needs a timeout_s above 0, not {spec.timeout_s}")
