"""BrowserGym's tasks: web pages with goals, played through BrowserGym's own environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import UserError
from mmrl.api.errors import is_finite
from mmrl.api.tasks.option_checks import check_choice, check_integer, check_type
from mmrl_interop.worlds.processes import WorldProcesses
from mmrl_interop.worlds.task import WorldTask, check_worlds, seeds

OBSERVE = ("picture", "tree", "both")


class BrowserGymTask(WorldTask):
    """Episodes on web pages: the policy sees a page and writes an action of BrowserGym's, such as `click('12')`.

    Each episode has two browsers of its own, which BrowserGym starts; `gui/episodes` plays MiniWoB++'s pages faster."""

    repeats = False  # of pages on the web

    def __init__(
        self,
        tasks: Sequence[str] | str = "miniwob.click-test",
        actions: Sequence[str] = ("bid", "chat"),
        observe: str = "both",
        task_kwargs: Mapping[str, Any] | None = None,
        slow_mo: int | None = 0,
        delay_s: float = 0.1,
        browser: str | None = None,
        longest: int = 20_000,
        train: int = 10_000,
        test: int = 200,
        test_tasks: Sequence[str] | str = (),
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        processes: int = 4,
        timeout_s: float = 60.0,
    ) -> None:
        """tasks: such as miniwob.click-test, several in turn, or miniwob for all of a benchmark. actions: BrowserGym's sets of
        actions, without upload_file, which reads files of this machine. observe: what a turn shows: picture, tree (the page's
        accessibility tree, with the numbers that actions name), or both. task_kwargs: of the task's class. slow_mo: milliseconds
        after each operation of the browser, None for the task's. delay_s: seconds after an action until the page is looked at.
        browser: path of a Chromium; by default MMRL_BROWSER, the system's, or Playwright's. longest: characters of a tree that
        are shown. train, test: numbers of episodes. test_tasks: those of the split test, where a seed changes nothing, as in
        WebArena; by default the same. python: an interpreter with BrowserGym, by default this one. environment:
        variables for it, such as MINIWOB_URL. processes: how many at most. timeout_s: seconds of a step."""
        names = [tasks] if isinstance(tasks, str) else list(tasks)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise UserError(f'tasks = {tasks!r:.60} must name tasks, such as "miniwob.click-test"')
        if isinstance(actions, str) or not isinstance(actions, Sequence) or not actions:
            raise UserError(f'actions = {actions!r:.60} must be a list of sets of actions, such as ["bid", "chat"]')
        self.test_tasks = [test_tasks] if isinstance(test_tasks, str) else list(test_tasks)
        if not all(isinstance(name, str) and name for name in self.test_tasks):
            raise UserError(f'test_tasks = {test_tasks!r:.60} must name tasks, such as "webarena.310"')
        self.train_tasks = names
        check_choice("observe", observe, OBSERVE)
        check_type("task_kwargs", task_kwargs or {}, Mapping)
        check_integer("longest", longest, 100)
        if slow_mo is not None:
            check_integer("slow_mo", slow_mo, 0, of="milliseconds")
        if not is_finite(delay_s) or delay_s < 0:
            raise UserError(f"delay_s = {delay_s!r:.40} must be a number of seconds from 0")
        check_worlds(timeout_s, train=train, test=test)
        self.sizes = {"train": train, "test": test}
        options: dict[str, Any] = {
            "tasks": [*names, *self.test_tasks],
            "actions": list(actions),
            "observe": observe,
            "task_kwargs": dict(task_kwargs or {}),
        }
        options |= {"slow_mo": slow_mo, "delay_s": delay_s, "browser": browser, "longest": longest}
        self.worlds = WorldProcesses(
            "BrowserGym",
            "mmrl_interop.worlds.browsergym:Worlds",
            options,
            python=python,
            processes=processes,
            environment=environment,
            timeout_s=timeout_s,
            guard=True,
        )

    def starts(self, split: str) -> Sequence[Mapping[str, Any]]:
        wanted = self.test_tasks if split == "test" and self.test_tasks else self.train_tasks
        tasks = [name for name in self.worlds.facts["tasks"] if any(name == w or name.startswith(f"{w}.") for w in wanted)]
        drawn = seeds(split, self.sizes["train"], self.sizes["test"])
        return Starts(tasks, drawn)

    def where(self, start: Mapping[str, Any]) -> Mapping[str, Any]:
        return start


class Starts(Sequence[Mapping[str, Any]]):
    """The tasks in turn, each time with another seed."""

    def __init__(self, tasks: Sequence[str], drawn: range) -> None:
        self.tasks, self.drawn = tasks, drawn

    def __len__(self) -> int:
        return len(self.drawn)

    def __getitem__(self, index: Any) -> Any:
        return {"task": self.tasks[index % len(self.tasks)], "seed": self.drawn[index]}
