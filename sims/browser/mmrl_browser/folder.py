"""A folder of your own HTML pages, with instructions and success conditions.

`tasks.json` in the folder is a list of {"name", "page", "instruction", "success"}: page is a file, and success a JavaScript
expression that is true when the task is done, such as `document.title === 'Sent'`. It is evaluated in the page after every
action. The optional "failure" is an expression that ends the episode without success. The pages' `Math.random` uses the episode's
seed. Without the file, every `.html` is a page without a task.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from mmrl import EnvironmentFailed, UserError
from mmrl.api.tasks.option_checks import did_you_mean
from mmrl_browser.acting import ACTIONS
from mmrl_browser.driver import After, Driver
from mmrl_browser.page import Page
from mmrl_browser.screens import Browser, State
from mmrl_browser.site import folder as files_of

TASKS = "tasks.json"
MOST = 10_000
"""Maximum number of pages in a folder."""
KEYS = frozenset(("name", "page", "instruction", "success", "failure"))
EVALUATED = """async source => {
  try { return [!!(await (0, eval)(source)), ""]; } catch (error) { return [false, `${error}` || "error"]; }
}"""
_numbers = itertools.count()


class Goal(NamedTuple):
    """The task of a page."""

    page: str
    instruction: str = ""
    success: str = ""
    failure: str = ""


class Folder(Browser):
    """Screens of a folder's pages. The action `open` opens any file of the folder."""

    def __init__(self, folder: str, *, size: Sequence[int] = (640, 480), step_ms: int = 500) -> None:
        """folder: a folder with HTML files. size: [width, height] of the window in pixels. step_ms: milliseconds of the page's
        time per action."""
        if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):  # which takes names that are too long
            raise UserError(f"folder = {folder!r:.200} is not a folder: set it to one with HTML files")
        root = Path(folder)
        goals = _goals(root)
        super().__init__(lambda driver: Files(driver, root, goals), size, step_ms)


class Files:
    """Implements `mmrl_browser.screens.Pages`."""

    actions = ACTIONS
    aside = ""
    after: After = "nothing"

    def __init__(self, driver: Driver, root: Path, goals: dict[str, Goal]) -> None:
        self.root, self.goals = root.resolve(), goals
        self.pages: Sequence[str] = tuple(goals)
        self._url = driver.site.host(f"folder-{next(_numbers)}", files_of(root))

    def address(self, page: str) -> str:
        if page not in self.goals:
            raise UserError(f"{str(self.root)!r} has no page {page!r:.60}.{did_you_mean(page, self.goals)}")
        return self._url + quote(self.goals[page].page)

    def expert(self, page: str) -> None:
        """None: there is no expert."""

    def opened(self, text: str) -> str | None:
        path = text.strip().lstrip("/").partition("#")[0].partition("?")[0]
        try:
            file = (self.root / path).resolve()
            there = path != "" and file.is_relative_to(self.root) and file.is_file()
        except (OSError, ValueError):  # too long, or with a NUL
            return None
        return self._url + quote(path) if there else None

    async def begin(self, page: Page, name: str, seed: int) -> State:
        """Raises UserError if an expression can't be evaluated or is already true: then `tasks.json` is wrong, not the page."""
        goal = page.episode = self.goals[name]
        for expression in filter(None, (goal.success, goal.failure)):
            holds, error = await self._is(page, expression)
            if error or holds:
                why = (
                    f"can't be evaluated in {goal.page}: {error}" if error else f"is true in {goal.page} before the first action"
                )
                raise UserError(f"{self.root / TASKS}: {expression[:80]!r} {why}")
        return State(instruction=goal.instruction)

    async def state(self, page: Page) -> State:
        goal: Goal = page.episode
        done, _ = await self._is(page, goal.success)  # an error counts as false here: the page may be another one now
        failed = not done and (await self._is(page, goal.failure))[0]
        reward = float(done) - float(failed)
        return State(instruction=goal.instruction, reward=reward, raw_reward=reward, terminated=done or failed, success=done)

    async def _is(self, page: Page, expression: str) -> tuple[bool, str]:
        """(Whether the expression is true in the page, why it can't be evaluated); a promise is awaited."""
        if not expression:
            return False, ""
        found = await page.script(EVALUATED, expression)
        match found:
            case [bool(holds), str(error)]:
                return holds, error[:120]
        raise EnvironmentFailed(f"the page returned {found!r:.60} instead of true or false: its script may have replaced eval")


def _goals(root: Path) -> dict[str, Goal]:
    """Page name -> its task. Raises UserError for an invalid `tasks.json`."""
    file = root / TASKS
    if not file.is_file():
        pages = sorted(str(path.relative_to(root)) for path in itertools.islice(root.rglob("*.html"), MOST))
        if not pages:
            raise UserError(f"{str(root)!r} has no .html file")
        return {page: Goal(page) for page in pages}
    try:
        rows: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{file} must be a list of objects with name, page, instruction and success")
    goals: dict[str, Goal] = {}
    for number, row in enumerate(rows):
        where = f"{file}: task {number}"
        if not isinstance(row, dict) or not isinstance(row.get("page"), str):
            raise UserError(f"{where} must be an object with a page")
        if unknown := sorted(set(row) - KEYS):
            raise UserError(f"{where} has the unknown key {unknown[0]!r}.{did_you_mean(unknown[0], KEYS)}")
        for key in KEYS:
            if not isinstance(row.get(key, ""), str):
                raise UserError(f"{where}: {key} must be a text, not {row[key]!r:.40}")
        page = (root / row["page"]).resolve()
        if not page.is_relative_to(root.resolve()) or not page.is_file():
            raise UserError(f"{where}: there is no page {row['page']!r:.80} in {root}")
        name = row.get("name") or row["page"]
        if name in goals:
            raise UserError(f"{where}: the name {name!r:.60} is taken already")
        goals[name] = Goal(row["page"], row.get("instruction", ""), row.get("success", ""), row.get("failure", ""))
    return goals
