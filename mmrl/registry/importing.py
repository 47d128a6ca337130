"""Import the object of a "module:Name", explain import errors, and check options."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from mmrl.api.errors import PluginError, UserError, did_you_mean, plugin_errors, shorten
from mmrl.api.specs import Bounds
from mmrl.registry import contract
from mmrl.registry.distributions import DISTRIBUTION, canonical, distribution_with

MODULES = {
    "levenshtein": "Levenshtein",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
}
"""Distribution -> module, for those with different names, to find the extra of a missing module."""


def load_target(target: str, what: str) -> Any:
    """The object at `module:Name`. what: begins the message of the PluginError, such as "task 'flags/country'"."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} {explain_import(error, module_name)}") from error
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError as error:
        raise PluginError(
            f"{what}: its target {target!r} does not exist, {module_name} has no {name!r}.{did_you_mean(name, vars(module))}"
        ) from error


@contextlib.contextmanager
def build_errors(what: str, target: Callable[..., Any], options: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors of calling a target with its options into clear ones. Its own UserErrors pass; other exceptions become a
    PluginError, or a UserError if an option has another type than its annotation. An option of a wrong type is a UserError even
    if the call succeeds."""
    try:
        with plugin_errors(f"{what}, made with {options},"):
            yield
    except PluginError as error:
        if wrong := type_mismatch(target, options):
            raise UserError(f"{what}: {wrong}") from error
        raise
    check_types(f"{what}: ", target, options)


def check_types(before: str, target: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise UserError for an option whose type differs from its annotation. before: begins the message."""
    if wrong := type_mismatch(target, options):
        raise UserError(before + wrong)


def explain_import(error: BaseException, module: str, dist: str | None = None) -> str:
    """Why importing `module` (of distribution `dist`) failed and what to install; a predicate for the name of what failed."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return f"failed to import: {type(error).__name__}: {shorten(error)}"
    missing = error.name
    if missing.partition(".")[0] == module.partition(".")[0]:
        cure = "correct the name, or install the plugin again"
    elif requirement := _provider(missing.partition(".")[0], [d for d in (dist or distribution_with(module), DISTRIBUTION) if d]):
        cure = f'pip install "{requirement}"'
    else:
        cure = "install its package"
    return f"failed to import: no module named {missing!r}: {cure}"


CURE = "give options = {{{name} = ...}} in a run file, or --set {name}=..."
"""The remedy for a missing option."""


FILLED = {"policies": ("device", "seed", "source"), "simulators": ("num_envs", "device")}
"""Kind -> keyword arguments of its targets that mmrl gives, and no run file."""


def options_class(target: Callable[..., Any]) -> type[Any] | None:
    """The dataclass of a target's options: its attribute `options_class`, if it takes any keyword arguments; else None. Such a
    target makes an object of it from the arguments that it doesn't name itself."""
    found: type[Any] | None = getattr(target, "options_class", None)
    takes_any = found is not None and any(p.kind is p.VAR_KEYWORD for p in inspect.signature(target).parameters.values())
    return found if takes_any else None


def parameters_of(target: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a target, with the fields of its `options_class` in place of `**options`. Raises TypeError or ValueError
    for one that has no signature."""
    own = inspect.signature(target).parameters
    declared = options_class(target)
    if declared is None:
        return list(own.values())
    named = [p for p in own.values() if p.kind is not p.VAR_KEYWORD]
    return [*named, *(p for p in inspect.signature(declared).parameters.values() if p.name not in own)]


def check_options(
    what: str,
    target: Callable[..., Any],
    options: Mapping[str, Any],
    skip: int = 0,
    cure: str = CURE,
    filled: Collection[str] = (),
) -> None:
    """Raise UserError unless `target` can be called with these keyword arguments after `skip` positional ones. filled: names of
    further keyword arguments, which mmrl gives."""
    try:
        parameters = parameters_of(target)[skip:]
    except (TypeError, ValueError) as error:
        raise PluginError(f"{what}: its target must be a class or a function with named parameters: {shorten(error)}") from None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    accepted = [p.name for p in named if p.name not in filled]
    if taken := [name for name in options if name in filled]:
        raise UserError(f"{what}: leave out the option {taken[0]!r}, which mmrl gives itself")
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        if lacking := [name for name in filled if name not in {p.name for p in named}]:
            raise PluginError(f"{what}: its target must take the keyword argument {lacking[0]!r}, which mmrl gives: add it")
        for name in options:
            if name not in accepted:
                raise UserError(
                    f"{what} has no option {name!r}.{did_you_mean(name, accepted)} It accepts: "
                    f"{', '.join(accepted) or 'no options'}"
                )
    for p in named:
        if p.default is p.empty and p.name not in options and p.name not in filled:
            raise UserError(f"{what} needs the option {p.name!r}: {cure.format(name=p.name)}; it accepts: {', '.join(accepted)}")
        choices = _choices(p.annotation)
        if p.name in options and choices and not _is_one_of(options[p.name], choices):
            known = ", ".join(repr(c) for c in choices)
            raise UserError(f"{what}: {p.name} = {options[p.name]!r} is not one of {known}")


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of `Literal["a", "b"]`, also if the annotation is a string."""
    if isinstance(annotation, str) and re.fullmatch(r"Literal\[[^\[\]]*\]", annotation):
        return tuple(ast.literal_eval(annotation.removeprefix("Literal")))
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _is_one_of(value: Any, choices: Iterable[Any]) -> bool:
    """Whether a value is a choice. Booleans are not numbers here: `true` is not the choice 1."""
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def type_mismatch(target: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """A message about the first option whose type or range differs from its annotation; empty if there is none."""
    hints = hints_of(target)
    name = next((name for name in options if name in hints and not _fits(options[name], hints[name])), None)
    if name is None:
        return ""
    value = options[name]
    near = did_you_mean(value, _texts(hints[name])) if isinstance(value, str) else ""
    return f"{name} = {value!r:.60} must be {describe_hint(hints[name])}{'.' if near else ''}{near}"


_NAMES: Mapping[Any, tuple[str, str]] = {
    str: ("a text", "texts"),
    bool: ("true or false", "true and false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    Mapping: ("a table", "tables"),
    dict: ("a table", "tables"),
    Sequence: ("a list", "lists"),
    list: ("a list", "lists"),
}
"""Type of an option -> its singular and plural name in messages. Other types are not checked."""


def hints_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Parameter -> type, with its `Bounds`, for the parameters of a target and of its options. Annotations that can't be resolved
    at run time are left out."""
    found: dict[str, Any] = {}
    owners: list[Any] = [target] if callable(target) else []
    if inspect.isclass(target):
        owners = [*reversed(inspect.getmro(target)), target.__init__]  # type: ignore[misc]  # subclasses override annotations
    for owner in owners:
        known = vars(sys.modules.get(getattr(owner, "__module__", None) or "", builtins))
        for name, annotation in inspect.get_annotations(owner).items():
            with contextlib.suppress(NameError, TypeError, AttributeError, SyntaxError):
                found |= get_type_hints(SimpleNamespace(__annotations__={name: annotation}), dict(known), include_extras=True)
    if declared := options_class(target):  # the class may have attributes of the same names
        own = inspect.signature(target).parameters
        found |= {name: hint for name, hint in hints_of(declared).items() if name not in own}
    return found


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type and range of an annotation; True for types that are not checked. An integer is a valid
    float."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return _fits(value, inner[0]) and (not contract.is_number(value) or all(b.allows(value) for b in _bounds(hint)))
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if hint is None or hint is type(None):
        return value is None
    if origin is Literal:
        return _is_one_of(value, inner)
    if origin not in _NAMES:
        return True
    if origin in (str, bool):
        return isinstance(value, origin)
    if origin in (int, float):
        return isinstance(value, (int, float) if origin is float else int) and not isinstance(value, bool)
    if origin in (Mapping, dict):
        return isinstance(value, Mapping) and (not inner or all(_fits(one, inner[1]) for one in value.values()))
    return isinstance(value, list | tuple) and (not inner or all(_fits(one, inner[0]) for one in value))


def _bounds(hint: Any) -> list[Bounds]:
    """Those that annotate a type."""
    return [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Bounds)]


def _texts(hint: Any) -> list[str]:
    """The texts among the choices of an annotation."""
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return [one for one in inner if isinstance(one, str)]
    return [text for one in inner for text in _texts(one)]


def has_bounds(hint: Any) -> bool:
    """Whether there are `Bounds` in an annotation."""
    return bool(_bounds(hint)) or any(has_bounds(one) for one in get_args(hint))


def describe_hint(hint: Any, several: bool = False) -> str:
    """What a value of an annotation is, such as "a whole number from 1 to 256". several: in the plural."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        limits = [f"of {bound}" if str(bound).startswith("at ") else str(bound) for bound in _bounds(hint)]
        return " ".join([describe_hint(inner[0], several), *limits])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(describe_hint(one, several) for one in inner if one is not type(None)))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inner))
    name = _NAMES[origin][several] if origin in _NAMES else ""
    of = describe_hint(inner[-1], True) if inner and name else ""
    return f"{name} of {of}" if of else name


def _provider(module: str, dists: Iterable[str]) -> str | None:
    """The requirement to install for `module`: an extra such as `multimodal-rl[train]`, or a requirement of one of `dists`."""
    from packaging.requirements import Requirement

    for dist in dists:
        try:
            declared = metadata.metadata(dist)
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, declared.get_all("Requires-Dist") or ()):
            name = canonical(requirement.name)
            if MODULES.get(name, name.replace("-", "_")) == module:
                for extra in declared.get_all("Provides-Extra") or ():
                    if requirement.marker and not requirement.marker.evaluate() and requirement.marker.evaluate({"extra": extra}):
                        return f"{dist}[{extra}]"
                return f"{requirement.name}{requirement.specifier}"
    return None


def make_importable(files: Iterable[str]) -> None:
    """Let local files be imported by their names, as where they are plugins that have been loaded."""
    paths = {Path(file).stem: file for file in files if file}

    class LocalFiles:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return importlib.util.spec_from_file_location(name, paths[name]) if name in paths else None

    sys.meta_path.append(LocalFiles)


def import_file(path: Path) -> Any:
    """Import a local file as a module with its stem as the name, so that "stem:Name" works in this process."""
    name, path = path.stem, path.resolve()
    if not name.isidentifier():
        raise contract.contract_error(f"the file's name {path.name!r} must be a Python name, as in my_task.py")
    spec = importlib.util.find_spec(name)
    if spec is not None and Path(spec.origin or "").resolve() != path:
        raise contract.contract_error(f"a module named {name!r} exists already ({spec.origin}); rename the file")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise contract.contract_error(f"{path.name!r} is no Python file: name one that ends in .py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
