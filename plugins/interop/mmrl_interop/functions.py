"""Functions in users' files, named as "path.py:function" or "package.module:function"."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.errors import check_path, did_you_mean, shorten
from mmrl_interop.worlds.child import run_file


def check_function(name: str) -> None:
    """Raise UserError for a name that can't be that of a function, without running its file."""
    place, function = _parts(name)
    if place.endswith(".py"):
        tree = _tree(Path(place))
        defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        assigned = [t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)]
        imported = [a.asname or a.name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for a in node.names]
        if function not in (*defined, *assigned, *imported, *(["*"] if "*" in imported else [])) and "*" not in imported:
            raise UserError(f"{place} has no function {function!r}.{did_you_mean(function, defined)} It has {', '.join(defined)}")


@functools.lru_cache
def load_function(name: str) -> Callable[..., Any]:
    """Import a function, or make the object of a class that is called like one, as ms-swift's rewards are. Its file is run once
    in a process. Raises UserError if there is none, or its file fails."""
    place, function = _parts(name)
    module = _load(place)
    found: Any = getattr(module, function, None)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise UserError(f"{name}() can't be made ({type(error).__name__}: {shorten(error, 200)}): correct it") from error
    if not callable(found):
        raise UserError(f"{place} has no function {function!r}.{did_you_mean(function, vars(module))}")
    return found  # type: ignore[no-any-return]


def constant_beside(name: str, constant: str, default: Any) -> Any:
    """A constant of the file or module in which a function is; `default` without one. Raises as `load_function` does."""
    return getattr(_load(_parts(name)[0]), constant, default)


@functools.lru_cache
def _load(place: str) -> Any:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        _tree(Path(place))
        return run_file(place)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        lacks = isinstance(error, ModuleNotFoundError) and place.endswith(".py")
        why = f"{type(error).__name__}: {shorten(error, 200)}"
        raise UserError(f"{place} can't be loaded ({why}): {'install what it imports' if lacks else 'correct it'}") from error


def _parts(name: str) -> tuple[str, str]:
    place, _, function = name.rpartition(":")
    if not place or not function.isidentifier():
        raise UserError(f"{name!r:.100} names no function: write path.py:function or package.module:function")
    return place, function


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: {check_path(path)}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path} can't be read ({shorten(error, 200)}): correct it") from None
