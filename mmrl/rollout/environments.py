"""Environments of plugins, called with care: what a reply must be, for training and for other programs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

from mmrl.api.errors import EnvironmentFailed, PluginError, is_finite, plugin_errors
from mmrl.api.interfaces import Environment, Task
from mmrl.api.media.content import State
from mmrl.api.types import Prompt, Reply
from mmrl.data.prompts import check_messages


def has_environment(task: Task) -> bool:
    """Whether its episodes may have more than one turn."""
    return type(task).environment is not Task.environment


def make_environment(task: Task, prompt: Prompt) -> Environment | None:
    """The environment of an episode; None if its first answer ends it. Raises EnvironmentFailed or PluginError."""
    with plugin_errors(f"task {prompt.task!r}: environment()"):
        return task.environment(prompt)


def step_environment(environment: Environment, completion: str, task: str) -> Reply:
    """The environment's reply to a turn. task: its label, for messages. Raises EnvironmentFailed if the environment failed, and
    PluginError for a reply that is none."""
    what = f"task {task!r}: its environment's step()"
    with plugin_errors(what):
        reply = environment.step(completion)
    _check_reply(what, reply)
    if not reply.terminated and not reply.messages:
        raise PluginError(f"{what} neither ends the episode nor gives messages: give messages, or terminated=True")
    return reply


def truncate_environment(environment: Environment, last: Reply, task: str) -> Reply:
    """The last reply of an episode that ends for lack of turns or tokens, with what its environment pays then, if it has
    `truncate`. Raises EnvironmentFailed or PluginError."""
    if not hasattr(environment, "truncate"):
        return last
    what = f"task {task!r}: its environment's truncate()"
    with plugin_errors(what):
        paid = environment.truncate()
    _check_reply(what, paid)
    return replace(last, reward=float(last.reward) + float(paid.reward), outcome=paid.outcome)


def _check_reply(what: str, reply: Reply) -> None:
    """Raise PluginError for a reply that is none. what: gave it, for messages."""
    if not isinstance(reply, Reply) or not is_finite(reply.reward):
        raise PluginError(f"{what} must give a mmrl.Reply with a finite reward, not {reply!r:.80}")
    outcome = reply.outcome
    if not isinstance(outcome, Mapping) or not all(isinstance(k, str) and is_finite(v) for k, v in outcome.items()):
        raise PluginError(f"{what} must give Reply.outcome as a dict of finite numbers by names, not {outcome!r:.80}")
    check_messages(what, reply.messages)


def named_state(environment: Environment, task: str) -> State | None:
    """The state in which the next turn begins, by an environment that has `state_name`; None if it names none. Raises
    EnvironmentFailed or PluginError."""
    if not hasattr(environment, "state_name"):
        return None
    what = f"task {task!r}: its environment's state_name()"
    with plugin_errors(what):
        name: str | None = environment.state_name()
    if name is not None and not isinstance(name, str):
        raise PluginError(f"{what} must give a text or None, not {name!r:.60}")
    return None if name is None else (name, "")


def gold_turn(environment: Environment, task: str) -> str | None:
    """The gold completion of the next turn, by an environment that has `gold_turn`. Raises EnvironmentFailed or PluginError."""
    what = f"task {task!r}: its environment's gold_turn()"
    with plugin_errors(what):
        text: str | None = environment.gold_turn()  # type: ignore[attr-defined]
    if text is not None and not isinstance(text, str):
        raise PluginError(f"{what} must give a text or None, not {text!r:.60}")
    return text


def close_environment(environment: Environment, task: str) -> None:
    """Close an environment; a failure is a warning, since the episode is over and what it earned counts."""
    try:
        with plugin_errors(f"task {task!r}: its environment's close()"):
            environment.close()
    except EnvironmentFailed as error:
        warnings.warn(f"task {task!r}: an environment could not be closed: {error}", stacklevel=2)
