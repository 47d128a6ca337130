"""The plugin contract: rules for names, ids, hooks, specs and the required version of the core.

Each check raises a UserError whose message names the broken rule and the remedy.
"""

from __future__ import annotations

import inspect
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib.metadata import Distribution
from typing import Any, NamedTuple

import mmrl
from mmrl.api import hooks as hookspecs
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.errors import UserError, did_you_mean, is_finite
from mmrl.api.moved import RENAMED_FIELDS
from mmrl.api.simulators.types import ActionSpec
from mmrl.api.specs import (
    CAPABILITIES,
    AlarmSpec,
    AlgorithmSpec,
    Bounds,
    FamilySpec,
    PolicySpec,
    SamplingRuleSpec,
    SimulatorSpec,
    Spec,
    StageSpec,
    TaskSpec,
    TrackerSpec,
    VerifierSpec,
)
from mmrl.registry.distributions import DISTRIBUTION, metadata_of

KINDS: dict[str, type[Spec]] = {
    "tasks": TaskSpec,
    "verifiers": VerifierSpec,
    "simulators": SimulatorSpec,
    "policies": PolicySpec,
    "families": FamilySpec,
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
    "families": "family",
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
    wanted = metadata_of(dist).get_all("Requires-Dist") or ()
    core_requirements = [r for r in wanted if re.match(r"(mmrl|multimodal[-_.]+rl)(?![\w.-])", r, re.IGNORECASE)]
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


def unknown_parameter(plugin: Any, hooks: Iterable[str]) -> str:
    """The message about a parameter of a plugin's hook that the hook doesn't have; empty if there is none."""
    for name in hooks:
        function = getattr(plugin, name, None)
        if not callable(function) or not hasattr(function, "mmrl_impl"):
            continue
        known = list(inspect.signature(getattr(hookspecs, name)).parameters)
        for p in inspect.signature(function).parameters.values():
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in (*known, "self"):
                return f"{name} has no parameter {p.name!r}.{did_you_mean(p.name, known)} It has {', '.join(known) or 'none'}"
    return ""


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
    if not isinstance(spec.id, str):
        raise contract_error(f"the id of a {type(spec).__name__} must be a text such as '{plugin}/name', not {spec.id!r:.60}")
    if parse_id(spec.id) is None:
        raise contract_error(f"id {spec.id!r} is not plugin/name[-vN][@system], made of letters, digits, '-', '_' and '.'")
    if plugin != CORE and not spec.id.startswith(f"{plugin}/"):
        raise contract_error(f"id {spec.id!r} must start with '{plugin}/', the name of the plugin's entry point")
    targets = [spec.target, spec.loss] if isinstance(spec, AlgorithmSpec) else [spec.target]
    for target in targets:
        if not _is_target(target):
            raise contract_error(f'the target of {spec.id!r} must be "module:Name", not {target!r}')
    for names, wanted, fits in _FIELDS:
        for name in names.split():
            if hasattr(spec, name) and not fits(value := getattr(spec, name)):
                raise contract_error(f"{name} of {spec.id!r} must be {wanted}, not {value!r:.60}")
    for verifier, weight in getattr(spec, "verifiers", {}).items():
        if not is_finite(weight):
            raise contract_error(f"{spec.id!r} needs a finite weight for {verifier!r}, not {weight!r:.60}")
    if isinstance(spec, AlgorithmSpec):
        _check_bounds(spec)
    if isinstance(spec, VerifierSpec):
        if not spec.low < spec.high:
            raise contract_error(f"{spec.id!r} needs low < high, not {spec.low} and {spec.high}")
        if not spec.timeout_s > 0:
            raise contract_error(f"{spec.id!r} needs a timeout_s above 0, not {spec.timeout_s}")


def _check_bounds(spec: AlgorithmSpec) -> None:
    """Check the bounds of settings. Defaults that only the code knows are compared when the algorithm is used."""
    for name, bounds in spec.bounds.items():
        if not isinstance(bounds, Bounds):
            raise contract_error(f"bounds of {spec.id!r} must be Bounds(low=..., high=...) for {name!r}, not {bounds!r:.60}")
        limits = {f.name: getattr(bounds, f.name) for f in fields(bounds)}
        for limit, value in limits.items():
            if value is not None and not is_finite(value):
                raise contract_error(
                    f"bounds of {spec.id!r}: {limit} of {name!r} must be a finite number or None, not {value!r:.60}"
                )
        if bounds.low is not None and bounds.high is not None and bounds.low > bounds.high:
            raise contract_error(f"bounds of {spec.id!r}: {name!r} needs low <= high, not {bounds.low} and {bounds.high}")
        if (default := spec.options.get(name)) is not None and not is_number(default):
            raise contract_error(f"bounds of {spec.id!r} are for numbers: its option {name!r} must be one, not {default!r:.60}")


def is_number(value: Any) -> bool:
    """Whether a value can be compared with bounds: a number, infinite ones too, and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_target(value: Any) -> bool:
    return isinstance(value, str) and _TARGET.fullmatch(value) is not None


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_size(value: Any) -> bool:
    return is_finite(value) and value >= 0


_FIELDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("options verifiers stage_defaults bounds", "a dict by names", _is_table),
    ("summary metric paper source", "a text", _is_text),
    ("tiny", "a text or None", lambda v: v is None or isinstance(v, str)),
    ("graded outcome images rollout model screens acts rates local has_turns shares_prompt", "True or False", _is_flag),
    ("cameras", "a tuple of texts such as ('front',)", _is_texts),
    ("parts", "a tuple of texts such as ('grasped',)", _is_texts),
    ("variants", "a tuple of texts such as ('vision.texture',)", _is_texts),
    ("model_type", "a text such as 'qwen3_vl'", lambda v: isinstance(v, str) and v != ""),
    ("placeholders beside_each_other", "a tuple of texts", _is_texts),
    ("completion_type", "a whole number", lambda v: type(v) is int),
    ("coordinate_format", "a CoordinateFormat or None", lambda v: v is None or isinstance(v, CoordinateFormat)),
    ("requires", "a tuple of modules such as ('wandb',)", _is_texts),
    (
        "capabilities",
        f"a frozenset of some of {', '.join(sorted(CAPABILITIES))}",
        lambda v: isinstance(v, frozenset) and v <= CAPABILITIES,
    ),
    (
        "action",
        "an ActionSpec with dims of at least 1, or None",
        lambda v: v is None or (isinstance(v, ActionSpec) and type(v.dims) is int and v.dims > 0),
    ),
    ("doctor", 'a text "module:function"', lambda v: v == "" or _is_target(v)),
    ("max_steps", "a whole number of at least 0", lambda v: type(v) is int and v >= 0),
    ("control_hz", "a finite number of at least 0", _is_size),
    ("low high timeout_s", "a finite number", is_finite),
    ("warn stop", "a number of at least 0, or None", lambda v: v is None or _is_size(v)),
    ("normalise", "token, sequence or constant", lambda v: v in ("token", "sequence", "constant")),
    ("constant", "a finite number above 0, or None", lambda v: v is None or (is_finite(v) and v > 0)),
)
"""Fields of specs by name, what each must be, and the check of that. A field has the same meaning in each class that has it."""


def misspelt_field(error: BaseException) -> str:
    """The message about a keyword that the class of a spec doesn't have; empty for any other exception."""
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    cls = next((c for c in (*KINDS.values(), Bounds, ActionSpec) if found and c.__name__ == found[1]), None)
    if found is None or cls is None or not isinstance(error, TypeError):
        return ""
    names = [f.name for f in fields(cls)]
    new = RENAMED_FIELDS.get(f"{found[1]}.{found[2]}")
    hint = f" It is called {new!r} since mmrl 0.2." if new else did_you_mean(found[2], names)
    return f"{found[1]} has no field {found[2]!r}.{hint} It has {', '.join(names)}"
