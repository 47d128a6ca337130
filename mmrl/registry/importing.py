"""Import the object of a "module:Name", explain import errors, and check options."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from mmrl.api.annotations import check_types, choices_of, is_one_of, parameters_of, type_mismatch
from mmrl.api.errors import PluginError, UserError, did_you_mean, nearest_first, plugin_errors, shorten
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
                known = ", ".join(nearest_first(name, accepted))
                raise UserError(
                    f"{what} has no option {name!r}.{did_you_mean(name, accepted)} It accepts: {known or 'no options'}"
                )
    for p in named:
        if p.default is p.empty and p.name not in options and p.name not in filled:
            raise UserError(f"{what} needs the option {p.name!r}: {cure.format(name=p.name)}; it accepts: {', '.join(accepted)}")
        choices = choices_of(p.annotation)
        if p.name in options and choices and not is_one_of(options[p.name], choices):
            known = ", ".join(repr(c) for c in choices)
            raise UserError(f"{what}: {p.name} = {options[p.name]!r} is not one of {known}")


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
