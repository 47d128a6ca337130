"""The source of prompts: a weighted mixture of tasks, drawn epoch by epoch, and replay of prompts that failed before.

Tasks are identified by their labels: a run file may list the same task twice under two labels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from mmrl.api.errors import NoGold, PluginError, UserError, is_finite, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.seeds import derive
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.api.types import Message, Prompt

DECAY = 0.9
"""Decay per group of the running share of a task's groups with spread (`adapt_task_weights = "variance"`)."""
FLOOR = 0.1
"""Added to that share, so that a task whose groups have no spread is still drawn."""

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


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of one group of completions."""

    place: PromptIndex
    """The group's prompt."""
    rewards: tuple[float, ...]
    """Rewards of the completions whose score didn't fail."""
    spread: bool
    """Whether the rewards differ, so that the group teaches something."""
    failed: bool
    """Whether no completion succeeded."""


class PromptStream:
    """Prompts of several tasks in the proportion of their weights.

    The next prompt is a function of the seed, the number of draws and the recorded outcomes, so a resumed run continues with the
    same prompts.
    """

    def __init__(
        self,
        prompts: Mapping[str, Indexable],
        weights: Mapping[str, float],
        seed: int,
        *,
        order: str = "shuffled",
        adapt: str = "none",
        replay: float = 0.0,
        replay_size: int = 256,
        templates: Mapping[str, str] = {},
        history: bool = False,
    ) -> None:
        """prompts: label -> the task's prompts.

        weights: label -> weight, relative to the others; a label without one is never drawn.
        order: `shuffled`, anew each epoch, or `easy-first`, by `meta["difficulty"]`, which reads all prompts once.
        adapt: `none`, or `variance`: weights are multiplied by 0.1 + the running share of the task's groups with spread.
        replay: share of draws, 0 to 1, that take one of the last `replay_size` prompts that failed.
        templates: label -> template of its prompts, see `prompt_at`.
        history: keep the rewards that `reward_history` returns.

        Raises UserError if a prompt has no finite difficulty with `easy-first`.
        """
        if unknown := weights.keys() - prompts.keys():
            raise ValueError(f"{sorted(unknown)} have weights but no prompts")
        self.prompts = dict(prompts)
        self.weights = {label: weights[label] for label in prompts if weights.get(label)}
        self.seed, self.adapt, self.templates = seed, adapt, dict(templates)
        self.replay, self.replay_size, self.history = replay, replay_size, history
        self.draws = 0
        self.taken = dict.fromkeys(self.weights, 0)
        """Label -> number of draws, without replayed prompts."""
        self.spread = dict.fromkeys(self.weights, 1.0)
        """Label -> running share of the task's groups with spread."""
        self.again = 0
        """Number of prompts replayed since the last `record_outcomes`."""
        self.failed: dict[PromptIndex, bool] = {}
        """Prompts that failed, the oldest first -> whether replayed since the last `record_outcomes`. A step replays each of them
        at most once."""
        self._past: dict[PromptIndex, tuple[int, int, float, float]] = {}
        self._orders: dict[str, tuple[int, list[int]]] = {}
        self._easy = {label: easy_first(prompts[label], label) for label in self.weights} if order == "easy-first" else {}

    def __len__(self) -> int:
        """The number of different prompts."""
        return sum(len(self.prompts[label]) for label in self.weights)

    def take(self, n: int) -> list[Prompt]:
        """The next n prompts."""
        return [self[self.draw()] for _ in range(n)]

    def draw(self) -> PromptIndex:
        """Draw the place of the next prompt."""
        count, self.draws = self.draws, self.draws + 1
        if waiting := [place for place, again in self.failed.items() if not again]:
            chance = random.Random(derive(self.seed, "replay", count))
            if chance.random() < self.replay:
                place = chance.choice(waiting)
                self.failed[place], self.again = True, self.again + 1
                return place
        mixture = self.mixture()
        return self._next(random.Random(derive(self.seed, "mixture", count)).choices(list(mixture), list(mixture.values()))[0])

    def __getitem__(self, place: PromptIndex) -> Prompt:
        """The prompt at a place. Raises UserError if the task can't open its media."""
        label, index = place
        return prompt_at(self.prompts[label], index, label, self.templates.get(label, ""))

    def mixture(self) -> dict[str, float]:
        """Label -> its current weight in draws without replay, relative to the others."""
        if self.adapt == "none":
            return self.weights
        return {label: weight * (FLOOR + self.spread[label]) for label, weight in self.weights.items()}

    def metrics(self) -> dict[str, float]:
        """Metrics of replay and adapted weights. Call it before `record_outcomes`."""
        found = {"sampling/replayed": float(self.again)} if self.replay else {}
        if self.adapt != "none":
            mixture = self.mixture()
            found |= {f"task/{label}/share": weight / sum(mixture.values()) for label, weight in mixture.items()}
        return found

    def record_outcomes(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Record the outcomes of a step's groups."""
        for outcome in outcomes:
            label, place = outcome.place[0], outcome.place
            self.spread[label] = DECAY * self.spread[label] + (1 - DECAY) * bool(outcome.spread)
            self.failed.pop(place, None)
            if outcome.failed and self.replay:
                self.failed[place] = False
                if len(self.failed) > self.replay_size:
                    del self.failed[next(iter(self.failed))]
            if self.history:
                self._past[place] = _merged(self._past.get(place, (0, 0, 0.0, 0.0)), outcome.rewards)
        self.failed, self.again = dict.fromkeys(self.failed, False), 0

    def reward_history(self, place: PromptIndex) -> tuple[float, float, float, float]:
        """(visits, number of rewards, their mean, sum of their squared deviations) of a prompt in earlier steps. Zeros unless the
        source keeps a history."""
        return self._past.get(place, (0, 0, 0.0, 0.0))

    def state(self) -> dict[str, Any]:
        """The state for `restore`, as JSON data."""
        return {
            "draws": self.draws,
            "taken": dict(self.taken),
            "spread": dict(self.spread),
            "failed": [[*place, again] for place, again in self.failed.items()],
            "past": [[*place, *seen] for place, seen in self._past.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`. Raises ValueError, and changes nothing, if it can't be a state of this source."""
        expected = self.state()
        if not isinstance(state, Mapping) or state.keys() != expected.keys():
            raise ValueError(f"a source's state has {', '.join(expected)}; found {state!r:.200}")
        draws, taken, spread = state["draws"], state["taken"], state["spread"]
        for name, found in (("taken", taken), ("spread", spread)):
            if not isinstance(found, Mapping) or found.keys() != self.weights.keys():
                raise ValueError(f"{name} must have the tasks {', '.join(self.weights)}; found {found!r:.200}")
        if not all(_is_count(n) for n in [draws, *taken.values()]) or sum(taken.values()) > draws:
            raise ValueError(f"draws and taken must be counts, draws at least all taken; found {draws!r} and {taken!r:.200}")
        if not all(is_finite(s) and 0 <= s <= 1 for s in spread.values()):
            raise ValueError(f"spread must be shares from 0 to 1; found {spread!r:.200}")
        failed, past = (self._rows(state, name, width) for name, width in (("failed", 3), ("past", 6)))
        most = self.replay_size if self.replay else 0
        if len(failed) > most or not all(isinstance(again, bool) for (again,) in failed.values()):
            raise ValueError(f"failed must be at most {most} rows of a task, an item and a bool; found {state['failed']!r:.200}")
        if past and not self.history:
            raise ValueError(f"past has {len(past)} rows, but this source keeps no history")
        for place, (visits, n, mean, squares) in past.items():
            if not (_is_count(visits) and _is_count(n) and is_finite(mean) and is_finite(squares) and visits and squares >= 0):
                raise ValueError(f"past of {place} can't be {visits!r:.60}, {n!r:.60}, {mean!r:.60}, {squares!r:.60}")
        self.draws, self.taken, self.spread = draws, {t: taken[t] for t in self.taken}, {t: spread[t] for t in self.spread}
        self.failed, self._past = {place: again for place, (again,) in failed.items()}, past

    def _rows(self, state: Mapping[str, Any], name: str, width: int) -> dict[PromptIndex, Any]:
        """Rows of a state that begin with a place: place -> the rest of the row."""
        rows = state[name]
        if not isinstance(rows, Sequence) or isinstance(rows, str):
            raise ValueError(f"{name} must be a list; found {rows!r:.200}")
        found: dict[PromptIndex, Any] = {}
        for row in rows:
            if not isinstance(row, Sequence) or len(row) != width or not isinstance(row[0], str) or row[0] not in self.weights:
                raise ValueError(f"{name} must be rows of a task, an item and {width - 2} more; found {row!r:.200}")
            place, most = (row[0], row[1]), len(self.prompts[row[0]])
            if not _is_count(row[1]) or row[1] >= most or place in found:
                raise ValueError(f"{name} must name each item once, up to {most - 1} of {row[0]!r}; found {row!r:.200}")
            found[place] = tuple(row[2:])
        return found

    def _next(self, label: str) -> PromptIndex:
        count = len(self.prompts[label])
        epoch, index = divmod(self.taken[label], count)
        self.taken[label] += 1
        if label in self._easy:
            return label, self._easy[label][index]
        if self._orders.get(label, (-1, []))[0] != epoch:
            order = list(range(count))
            random.Random(derive(self.seed, "order", label, epoch)).shuffle(order)
            self._orders[label] = (epoch, order)
        return label, self._orders[label][1][index]


def easy_first(items: Indexable, label: str) -> list[int]:
    """The items' indices sorted by `meta["difficulty"]`, the lowest first. Makes all prompts unless the task knows difficulties
    beforehand.

    A prompt that the task can't open comes last; drawing it raises the error. Raises UserError for a prompt without a finite
    difficulty.
    """
    found = []
    for i in range(len(items)):
        try:
            difficulty = _difficulty_at(items, i, label)
        except PluginError:
            raise
        except UserError:
            found.append(math.inf)
            continue
        if not is_finite(difficulty):
            raise UserError(
                f'order = "easy-first": item {i} of task {label!r} has meta["difficulty"] = {difficulty!r:.60}, not a number: '
                'let the task give a number to each prompt, or use order = "shuffled"'
            )
        found.append(float(difficulty))
    return sorted(range(len(found)), key=found.__getitem__)


def _difficulty_at(items: Indexable, index: int, label: str) -> Any:
    if isinstance(items, LazyPrompts) and items.difficulty:
        with plugin_errors(f"task {label!r}: difficulty of item {index} of its prompts"):
            return items.difficulty(items.items[index])
    return prompt_at(items, index, label).meta.get("difficulty")


def _merged(seen: tuple[int, int, float, float], rewards: Sequence[float]) -> tuple[int, int, float, float]:
    """(visits, count, mean, squared deviations) updated with the rewards of one more visit (Welford 1962)."""
    visits, n, mean, squares = seen
    for reward in rewards:
        n, before = n + 1, reward - mean
        mean += before / n
        squares += before * (reward - mean)
    return visits + 1, n, mean, squares


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
