"""From "module:Name" to the thing itself: import it, say why that fails, check the options it is given."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import inspect
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any, Literal, TypeGuard, get_args, get_origin

from mmrl.errors import UserError, WorldLost

MODULES = {"opencv-python-headless": "cv2", "pillow": "PIL", "scikit-learn": "sklearn", "scikit-image": "skimage"}
"""Distributions whose module has another name, so that a missing module leads to its extra."""


class PluginError(UserError):
    """Something that a plugin brings can't be used. `__cause__`, where there is one, is what the plugin's author needs:
    the command line prints its traceback above the line."""


def suggest(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" or nothing. Of equally close ones, that with the same letters in another order."""
    matches = difflib.get_close_matches(word, list(known), n=3)
    closest = max(matches, key=lambda m: (difflib.SequenceMatcher(None, m, word).ratio(), sorted(m) == sorted(word)), default="")
    return f" Did you mean {closest!r}?" if closest else ""


def load_target(target: str, what: str) -> Any:
    """The object behind `module:Name`; `what` opens the message of the PluginError, such as "task 'flags/country'"."""
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
            f"{what}: its target {target!r} does not exist, {module_name} has no {name!r}.{suggest(name, vars(module))}"
        ) from error


@contextlib.contextmanager
def calling(what: str) -> Iterator[None]:
    """Around a plugin's code: what it raises becomes a PluginError that begins with `what`, its traceback kept as the cause."""
    try:
        yield
    except (UserError, WorldLost):
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} raised {type(error).__name__}: {one_line(error)[:300]}") from error


def explain_import(error: BaseException, module: str, dist: str | None = None) -> str:
    """Why importing `module` (of distribution `dist`) failed and what to install, to follow the name of what failed."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return f"failed to import: {type(error).__name__}: {one_line(error)}"
    missing = error.name
    if missing.partition(".")[0] == module.partition(".")[0]:
        cure = "a part of the plugin itself is misspelt or was not installed"
    elif requirement := _provider(missing.partition(".")[0], [d for d in (dist, "mmrl") if d]):
        cure = f'pip install "{requirement}"'
    else:
        cure = "install the package that has it"
    return f"failed to import: no module named {missing!r}: {cure}"


CURE = "give options = {{{name} = ...}} in a run file, or --set {name}=..."
"""How an option is given that is missing."""


def check_options(what: str, target: Callable[..., Any], options: Mapping[str, Any], skip: int = 0, cure: str = CURE) -> None:
    """Raise UserError unless `target` can be called with these keyword arguments after `skip` positional ones."""
    parameters = list(inspect.signature(target).parameters.values())[skip:]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    accepted = [p.name for p in named]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in options:
            if name not in accepted:
                raise UserError(
                    f"{what} has no option {name!r}.{suggest(name, accepted)} It accepts: {', '.join(accepted) or 'no options'}"
                )
    for p in named:
        if p.default is p.empty and p.name not in options:
            raise UserError(f"{what} needs the option {p.name!r}: {cure.format(name=p.name)}; it accepts: {', '.join(accepted)}")
        choices = _choices(p.annotation)
        if p.name in options and choices and options[p.name] not in choices:
            known = ", ".join(repr(c) for c in choices)
            raise UserError(f"{what}: {p.name} = {options[p.name]!r} is not one of {known}")


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of `Literal["a", "b"]`, also when annotations are text."""
    if isinstance(annotation, str) and re.fullmatch(r"Literal\[[^\[\]]*\]", annotation):
        return tuple(ast.literal_eval(annotation.removeprefix("Literal")))
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def is_finite(value: Any) -> TypeGuard[float]:
    """A number that a float holds."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of an integer with hundreds of digits
        return False


def one_line(error: BaseException) -> str:
    """The message of an exception, without line breaks."""
    return " ".join(str(error).split())


def _provider(module: str, dists: Iterable[str]) -> str | None:
    """What to install to get `module`: `mmrl[train]`, or the bare requirement that one of `dists` declares."""
    from packaging.requirements import Requirement

    for dist in dists:
        try:
            declared = metadata.metadata(dist)
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, declared.get_all("Requires-Dist") or ()):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if MODULES.get(name, name.replace("-", "_")) == module:
                for extra in declared.get_all("Provides-Extra") or ():
                    if requirement.marker and not requirement.marker.evaluate() and requirement.marker.evaluate({"extra": extra}):
                        return f"{dist}[{extra}]"
                return f"{requirement.name}{requirement.specifier}"
    return None
