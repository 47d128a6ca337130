"""The prompts of tasks: loaded, checked, and with the completions that a task gives for them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from mmrl.api.errors import NoGold, PluginError, UserError, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.api.types import Message, Prompt

PromptIndex = tuple[str, int]
"""A prompt: (label of its task, index among the task's prompts)."""


@runtime_checkable
class Indexable(Protocol):
    """The interface of a lazy sequence of prompts."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Prompt: ...


def load_prompts(label: str, task: Task, split: str, seed: int) -> Indexable:
    """The prompts of a task's split. Raises UserError if the split doesn't exist or is empty."""
    if split not in task.splits:
        raise UserError(f"task {label!r} has no split {split!r}: choose one of {', '.join(task.splits)}")
    with plugin_errors(f"task {label!r}: prompts({split!r}, {seed})"):
        found = task.prompts(split, seed)
        items = found if isinstance(found, Indexable) and not isinstance(found, str | Mapping) else list(found)
    if not len(items):
        raise UserError(f"task {label!r} has no prompts in split {split!r}: check its options and data")
    return items


class Splits:
    """The prompts of each task's splits, loaded once."""

    def __init__(self, tasks: Mapping[str, Task], seed: int) -> None:
        self.tasks, self.seed = tasks, seed
        self._items: dict[tuple[str, str], Indexable] = {}

    def __call__(self, label: str, split: str) -> Indexable:
        """Raises UserError as `load_prompts` does."""
        if (label, split) not in self._items:
            self._items[label, split] = load_prompts(label, self.tasks[label], split, self.seed)
        return self._items[label, split]

    def sets(self, label: str, split: str) -> list[list[int]] | None:
        """The indices of the prompts of each set, as `Task.prompt_sets` says; None if it says none. Raises PluginError unless it
        gives each prompt a set."""
        found: dict[Hashable, list[int]] = {}
        with plugin_errors(f"task {label!r}: prompt_sets({split!r}, {self.seed})"):
            if (given := self.tasks[label].prompt_sets(split, self.seed)) is None:
                return None
            for index, one in enumerate(given):
                found.setdefault(one, []).append(index)
        count, there = sum(map(len, found.values())), len(self(label, split))
        if count != there:
            raise PluginError(f"task {label!r}: prompt_sets() must give a set for each of {there} prompts, not {count}")
        return [*found.values()]

    def forget(self) -> None:
        """Drop loaded prompts after the tasks have changed, such as their image processing. Lazy prompts
        (`mmrl.api.tasks.option_checks.LazyPrompts`) are kept, as they follow by themselves."""
        self._items = {place: items for place, items in self._items.items() if isinstance(items, LazyPrompts)}


def prompt_at(items: Indexable, index: int, label: str, template: str = "") -> Prompt:
    """A prompt of a task. template: if not empty, its `{text}` is replaced by the prompt's text.

    Raises PluginError if the task gives no Prompt, and UserError if the task can't open the prompt's media.
    """
    with plugin_errors(f"task {label!r}: item {index} of its prompts"):
        prompt = items[index]
    prompt = checked_prompt(prompt, index, label)
    if not template:
        return prompt
    last = max((i for i, m in enumerate(prompt.messages) if m["role"] == "user"), default=-1)
    if last < 0:
        raise PluginError(f"task {label!r}: item {index} has no user message for prompt_template of [[tasks]]: drop that key")
    messages = [_reworded(m, template) if i == last else m for i, m in enumerate(prompt.messages)]
    return replace(prompt, messages=messages)


def checked_prompt(prompt: Any, index: int, label: str) -> Prompt:
    """The prompt with its task's label. Raises PluginError if it is no Prompt, or has an id, messages or meta of another type."""
    if not isinstance(prompt, Prompt):
        raise PluginError(f"task {label!r}: prompts() must give mmrl.Prompt, but item {index} is a {type(prompt).__name__}")
    where = f"task {label!r}: item {index} of its prompts"
    if not isinstance(prompt.id, str):
        raise PluginError(f"{where}: the id of a prompt must be a text, not {prompt.id!r:.60}")
    check_messages(where, prompt.messages)
    if not isinstance(prompt.meta, Mapping):
        raise PluginError(f"{where}: its meta must be a dict, not {prompt.meta!r:.60}")
    return replace(prompt, task=label)


def check_messages(where: str, messages: Any) -> None:
    """Raise PluginError unless these are messages as `mmrl.api.types.Message` describes them. where: what they are of."""
    if not isinstance(messages, list | tuple):
        raise PluginError(f"{where}: its messages must be a list, not {messages!r:.60}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PluginError(
                f"{where}: message {number} must be a dict with a role (see mmrl.user_message), not {message!r:.60}"
            )
        content = message.get("content")
        parts = [] if isinstance(content, str) else content
        if not isinstance(parts, list | tuple) or not all(map(_is_part, parts)):
            raise PluginError(
                f"{where}: the content of message {number} must be a text or a list of parts such as "
                f'{{"type": "text", "text": "..."}}, not {content!r:.80}'
            )


def _is_part(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return (kind in ("image", "video", "audio") and kind in part) or (kind == "text" and isinstance(part.get("text"), str))


def max_broken(drawn: int, there: int) -> int:
    """The number of broken prompts that is no error yet: 2 plus a tenth of those drawn, but fewer than `there`, which is all."""
    return min(2 + drawn // 10, there - 1)


def _reworded(message: Message, template: str) -> Message:
    """The message with its last text part inside the template; media stay in place."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": template.replace("{text}", content)}
    at = max((i for i, part in enumerate(content) if part["type"] == "text"), default=len(content))
    text = content[at]["text"] if at < len(content) else ""
    return {**message, "content": [*content[:at], {"type": "text", "text": template.replace("{text}", text)}, *content[at + 1 :]]}


def gold_completion(task: Task, prompt: Prompt) -> str:
    """The task's gold completion of a prompt. Raises PluginError if it is no text."""
    where = f"task {prompt.task!r}: gold() of prompt {prompt.id!r}"
    try:
        with plugin_errors(where):
            gold = task.gold(prompt)
    except NoGold as error:
        raise NoGold(f"{where}: {error}") from error
    if not _can_be_written(gold):
        raise PluginError(f"{where} must be text that can be written as UTF-8, not {gold!r:.60}")
    return gold


def pair_of(task: Task, prompt: Prompt) -> tuple[str, str]:
    """The task's (preferred, rejected) completions of a prompt. Raises UserError if the task has none or both are the same text,
    PluginError if they are no two texts."""
    where = f"task {prompt.task!r}: pair() of prompt {prompt.id!r}"
    with plugin_errors(where):
        found = task.pair(prompt)
    if not isinstance(found, tuple | list) or len(found) != 2 or not all(map(_can_be_written, found)):
        raise PluginError(f"{where} must be two texts that can be written as UTF-8, (preferred, rejected), not {found!r:.60}")
    preferred, rejected = found
    if preferred == rejected:
        raise UserError(f"both sides of its pair are {preferred!r:.60}, so neither is preferred: correct or remove it")
    return preferred, rejected


def _can_be_written(text: Any) -> bool:
    return isinstance(text, str) and text.encode(errors="replace").decode() == text
