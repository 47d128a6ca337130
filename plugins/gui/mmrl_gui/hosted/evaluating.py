"""OSWorld's steps that set a task up, and its evaluators, as far as the machine's own server can do them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl_gui.hosted.servers import Server

STEPS = {
    "launch": "/setup/launch",
    "execute": "/setup/execute",
    "command": "/setup/execute",
    "open": "/setup/open_file",
    "change_wallpaper": "/setup/change_wallpaper",
    "activate_window": "/setup/activate_window",
    "close_window": "/setup/close_window",
}
"""Type of a step -> where the server takes its parameters."""
LONGEST_SLEEP_S = 60.0
RULES = ("exact_match", "check_include_exclude")
RESULTS = ("vm_command_line", "vm_terminal_output")


def prepare(server: Server, steps: Sequence[Mapping[str, Any]]) -> None:
    """Does the steps of a task's `config`. Raises EnvironmentFailed."""
    for step in steps:
        parameters = dict(step.get("parameters") or {})
        if step["type"] == "sleep":
            time.sleep(min(float(parameters.get("seconds", 0)), LONGEST_SLEEP_S))
            continue
        if step["type"] == "launch" and isinstance(parameters.get("command"), str) and not parameters.get("shell"):
            parameters["command"] = parameters["command"].split()
        server.fetch(STEPS[step["type"]], body=parameters, method="POST")


def missing(task: Mapping[str, Any]) -> str:
    """What of a task can't be done here, as text; empty if all can."""
    for step in [*task["config"], *task["evaluator"].get("postconfig", [])]:
        if step.get("type") not in (*STEPS, "sleep"):
            return f"its step {step.get('type')!r:.40}"
    for func, result, expected in _parts(task["evaluator"]):
        if func == "infeasible":
            continue
        if func not in RULES:
            return f"its evaluator {func!r:.60}"
        if not isinstance(result, Mapping) or result.get("type") not in RESULTS:
            return f"what its evaluator reads, {(result or {}).get('type')!r:.40}"
        if not isinstance(expected, Mapping) or expected.get("type") != "rule" or not isinstance(expected.get("rules"), Mapping):
            return "what its evaluator expects, which is no rule"
    return ""


class Evaluation:
    """A task's `evaluator`: one function, or several that are joined by `conj`."""

    def __init__(self, evaluator: Mapping[str, Any]) -> None:
        self.evaluator = evaluator

    def score(self, server: Server, impossible: bool) -> float:
        """0 or 1. impossible: the policy said that the task can't be done, which is right where the evaluator is `infeasible`,
        and wrong anywhere else. Raises EnvironmentFailed."""
        parts = _parts(self.evaluator)
        if impossible or any(func == "infeasible" for func, _, _ in parts):
            return float(impossible and all(func == "infeasible" for func, _, _ in parts))
        prepare(server, self.evaluator.get("postconfig", []))
        met = (_met(func, _result(server, result), expected["rules"]) for func, result, expected in parts)
        return float(any(met) if self.evaluator.get("conj") == "or" else all(met))


def _result(server: Server, wanted: Mapping[str, Any]) -> str:
    if wanted["type"] == "vm_terminal_output":
        return str(server.field("/terminal", "output"))
    body = {"command": wanted["command"], "shell": bool(wanted.get("shell", False))}
    return str(server.field("/execute", "output", body=body, method="POST"))


def _met(func: str, result: str, rules: Mapping[str, Any]) -> bool:
    if func == "exact_match":
        return bool(result == rules["expected"])
    return all(text in result for text in rules.get("include", [])) and not any(
        text in result for text in rules.get("exclude", [])
    )


def _parts(evaluator: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(function, result, expected) of each."""
    func, result, expected = evaluator.get("func"), evaluator.get("result"), evaluator.get("expected")
    if not isinstance(func, list):
        return [(str(func), result, expected)]
    results = result if isinstance(result, list) else [result] * len(func)
    rules = expected if isinstance(expected, list) else [expected] * len(func)
    return [(str(name), *rest) for name, *rest in zip(func, results, rules, strict=False)]
