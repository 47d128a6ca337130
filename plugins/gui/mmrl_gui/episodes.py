"""Episodes on a live screen: the policy sees the screen and writes an action, until the page ends the episode."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

from mmrl import Conversation, EnvironmentFailed, NoGold, Prompt, Reply, Rollout, Task, UserError, user_message
from mmrl.api.media.content import text_and_media
from mmrl.api.services import screens_of
from mmrl.api.simulators.gui import Action, Screen, ScreenObservation, Screens
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type, did_you_mean
from mmrl_gui import asking
from mmrl_gui.actions import STYLES, listed, read
from mmrl_gui.coordinates import Numbers, numbers_for
from mmrl_gui.examples import Examples, Trials, Walks
from mmrl_gui.exploring import Step
from mmrl_gui.filmstrip import filmstrip, said_to, seen_in, showing
from mmrl_gui.listing import kept, number_of
from mmrl_gui.names import NoAction
from mmrl_gui.planning import plan_of, told_goals
from mmrl_gui.programs import PROGRAM, Call, placed, program_language, read_program, write_program
from mmrl_gui.replay import Recording, Replay
from mmrl_gui.tracking import Course, Tracker, told_current
from mmrl_gui.trajectories import ONLY

APART = 100_000_000
"""Distance between the seeds of different splits."""
SPLITS = ("demo", "train", "test")
OBSERVE = ("picture", "elements", "both")
STARTED_EARLY = 8
"""Number of episodes whose pages are started before they are needed."""
_EARLY = threading.BoundedSemaphore(STARTED_EARLY)
TRIES = 3
"""Attempts to show a first screen."""
Observe = Literal["picture", "elements", "both"]


class Episodes(Task):
    """The splits `demo`, `train` and `test` have no seed in common. An episode's outcome has `success`, `steps`, `refused`: the
    number of answers that were not valid actions, and once the page has given one `raw_reward` and `reward` (its own, with
    time)."""

    splits = SPLITS

    def __init__(
        self,
        *,
        simulator: str = "browser/miniwob",
        options: Mapping[str, Any] | None = None,
        pages: Sequence[str] | str = (),
        observe: Observe = "picture",
        most: int = 0,
        examples: int = 0,
        explorer: Mapping[str, Any] | None = None,
        style: str = "json",
        grid: Sequence[int] | None = None,
        prompt: str = "",
        again: str = "",
        recording: str = "",
        only: str = "success",
        subgoals: str | Mapping[str, Any] = "",
        tracker: Mapping[str, Any] | None = None,
        demos: int = 1000,
        starts: int = 100_000,
        held_out: int = 2000,
    ) -> None:
        """simulator: id of a simulator with screens. options: its options. pages: pages to play, in turn; all when empty.
        observe: what a turn shows: picture, elements (a list, in which actions name an element by number, `click [3]`), or both.
        most: maximum of listed elements, of those that can be clicked or typed into or share a word with the instruction; 0 lists
        all. examples: number of successful episodes of the same page, by an expert or a random walk, as text before the
        instruction; needs a list of elements. explorer: the options of an endpoint whose model finds these examples by itself,
        without one. style: form of an action: json, brief, tags, a thought and JSON in tags, ui-tars, a thought and a call, or
        program, calls and loops. grid: [columns, rows] of cells for positions, instead of the policy's coordinate format. prompt:
        the text of the first turn, with {instruction} in it, instead of one that explains the actions. again: the text of later
        turns. recording: a folder with recorded episodes for the split demo, instead of an expert's. only: which of them, success
        or all, such as those of a random walk. subgoals: tell the policy the sub-goals of the instruction: words, those that its
        words name; or the options of an endpoint whose model proposes them. tracker: the options of an endpoint whose model says
        after each turn whether the current sub-goal was reached, so that each turn tells the policy which is the current one.
        demos: episodes of the split demo. starts: of the split train. held_out: of the split test."""
        check_type("simulator", simulator, str)
        check_choice("observe", observe, OBSERVE)
        check_choice("style", style, (*STYLES, PROGRAM))
        check_choice("only", only, ONLY)
        for name, text in (("prompt", prompt), ("again", again), ("recording", recording)):
            check_type(name, text, str)
        if prompt and "{instruction}" not in prompt:
            raise UserError(f"prompt = {prompt!r:.60} must contain {{instruction}}, which the page's instruction replaces")
        for name, value in (("demos", demos), ("starts", starts), ("held_out", held_out)):
            check_integer(name, value, 1, APART)
        check_integer("most", most, 0, 10_000)
        check_integer("examples", examples, 0, 20)
        if most and observe == "picture":
            raise UserError(f'most = {most} needs a list of elements: set observe = "elements" or "both"')
        if examples and observe == "picture":
            raise UserError(f'examples = {examples} needs a list of elements: set observe = "elements" or "both"')
        if explorer is not None and not isinstance(explorer, Mapping):
            raise UserError(f'explorer = {explorer!r:.60} must be a table such as {{ model = "...", base_url = "..." }}')
        if explorer is not None and not examples:
            raise UserError("explorer finds examples, and there are none: set examples = 1")
        if grid is not None:
            if not isinstance(grid, Sequence) or isinstance(grid, str) or len(grid) != 2:
                raise UserError(f"grid = {grid!r:.60} must be [columns, rows], such as [8, 10]")
            for value in grid:
                check_integer("grid", value, 1, 1000)
        self.simulator, self.options, self.observe, self.style = simulator, dict(options or {}), observe, style
        self.grid = None if grid is None else [int(value) for value in grid]
        self.text, self.again, self.most = prompt, again, most
        self.plan, self.tracker = plan_of(subgoals), None if tracker is None else Tracker(tracker)
        if self.tracker and not self.plan:
            raise UserError('tracker says which sub-goal is the current one, and there are none: set subgoals = "words"')
        if self.tracker and observe == "elements":
            raise UserError('tracker needs pictures: set observe = "picture" or "both"')
        self.sizes = {"demo": demos, "train": starts, "test": held_out}
        self._asked = [pages] if isinstance(pages, str) else list(pages)
        self._screens: Screens | None = None
        first = APART * SPLITS.index("demo") + demos  # seeds outside all splits
        plays = Walks(lambda: self.screens, self._told) if explorer is None else Trials(explorer, self._begun)
        self._examples = Examples(plays, examples, first) if examples else None
        if only != "success" and not recording:
            raise UserError(f"only = {only!r} needs recorded episodes: set recording to a folder of them")
        self.recording = Recording(recording, only) if recording else None
        if self.recording and self.numbered:
            raise UserError(f'recording = {recording!r:.60} has only pictures: set observe = "picture"')

    @property
    def screens(self) -> Screens:
        """Made on first use, so that run files are read without a browser."""
        if self._screens is None:
            self._screens = screens_of(self.simulator, self.options)
            for page in self._asked:
                if page not in self._screens.pages:
                    raise UserError(
                        f"simulator {self.simulator!r} has no page {page!r:.60}.{did_you_mean(page, self._screens.pages)}"
                    )
        return self._screens

    @property
    def numbered(self) -> bool:
        """Whether elements are listed and may be named by number."""
        return self.observe != "picture"

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        check_split(split, self.splits)
        if split == "demo" and (recorded := self.recording):
            recorded.of_size(self.screens.size)
            return LazyPrompts(range(self.sizes[split]), lambda number: self._recorded(recorded, number % len(recorded)))
        known, first = self.screens.pages, APART * SPLITS.index(split)
        pages = self._asked or list(known)
        if not pages:
            raise UserError(f"simulator {self.simulator!r} has no list of pages: set the task's option pages = [...]")
        return LazyPrompts(range(self.sizes[split]), lambda number: self._prompt(pages[number % len(pages)], first + number))

    def _prompt(self, page: str, seed: int, examples: bool = True) -> Prompt:
        shown, expert_action = self._looked(page, seed)
        shown = self.seen(shown, shown.instruction)
        meta: dict[str, Any] = {"page": page, "instruction": shown.instruction, "size": list(self.screens.size)}
        goals = self._goals(shown)
        meta |= {"subgoals": goals} if goals else {}
        if self.grid:
            meta["grid"] = self.grid
        if expert_action is not None:
            meta["gold"] = self.write(expert_action, shown)
        return Prompt(
            id=f"{page}-{seed}", messages=[self.message(shown, True, page if examples else "", goals)], seed=seed, meta=meta
        )

    def _begun(self, page: str, seed: int) -> tuple[Prompt, Play]:
        """An episode of which nobody has shown an example."""
        prompt = self._prompt(page, seed, examples=False)
        return prompt, self._play(prompt)

    def _recorded(self, recording: Recording, episode: int) -> Prompt:
        shown, action = recording.at(episode, 0)
        meta = {"page": "recorded", "episode": episode, "instruction": shown.instruction, "size": list(self.screens.size)}
        meta |= {"gold": self.write(action)} | ({"grid": self.grid} if self.grid else {})
        goals = self._goals(shown)
        meta |= {"subgoals": goals} if goals else {}
        return Prompt(id=f"recorded-{episode}", messages=[self.message(shown, True, goals=goals)], meta=meta)

    def _goals(self, shown: ScreenObservation) -> list[str]:
        """The sub-goals that the policy is told."""
        return self.plan(shown.instruction, shown.screenshot) if self.plan else []

    def _looked(self, page: str, seed: int) -> tuple[ScreenObservation, Action | None]:
        """The first screen of an episode, and the right action. A screen that fails is tried again."""
        for last in range(TRIES):
            screen = self.screens.open(elements=self.numbered)
            try:
                try:
                    return screen.start(page, seed), screen.expert_action()
                finally:
                    screen.close()  # may fail as well
            except EnvironmentFailed as why:
                if last + 1 == TRIES:
                    raise UserError(f"page {page!r} can't be shown, tried {TRIES} times: {why}") from why
        raise AssertionError

    def seen(self, shown: ScreenObservation, instruction: str) -> ScreenObservation:
        """The observation with only the listed elements."""
        return dataclasses.replace(shown, elements=kept(shown.elements, instruction, self.most)) if self.most else shown

    def message(
        self, shown: ScreenObservation, first: bool, page: str = "", goals: Sequence[str] = (), current: str = ""
    ) -> Mapping[str, Any]:
        """The message of a turn. page: its examples come before the first turn; empty if unknown. goals: sub-goals that the first
        turn tells. current: what a later turn says of the current one."""
        if first:
            told = [self._examples.of(page), ""] if self._examples and page else []
            lines = [*told, self._asks(shown.instruction), *([told_goals(goals)] if goals else [])]
            lines += [told_current(goals)] if goals and self.tracker else []
        else:
            lines = [*shown.notes, *([self.again] if self.again else []), *([current] if current else [])]
        if self.numbered:
            lines.append(listed(shown.elements))
        pictures = [shown.screenshot] if self.observe != "elements" and shown.screenshot is not None else []
        return showing(user_message("\n".join(lines), *pictures), shown.elements)

    def _asks(self, instruction: str) -> str:
        if self.text:
            return self.text.replace("{instruction}", instruction)
        elements: asking.Elements = "either" if self.observe == "both" else self.numbered
        known = sorted(self.screens.actions)
        if self.style == PROGRAM:
            calls = program_language(known, self.numbers(), self.numbered, places=self.observe != "elements")
            return f"{instruction}\n{calls}"
        return f"{instruction}\n{asking.language(self.style, known, self.numbers(), elements)}"

    def numbers(self) -> Numbers:
        return numbers_for(self.image_processing, self.screens.size, grid=self.grid)

    def _told(self, shown: ScreenObservation, step: Step, instruction: str) -> str:
        """A turn of an example: a list of elements, and the action with an element's number, since the screen isn't shown."""
        shown = self.seen(shown, instruction)
        return "\n".join([listed(shown.elements), self.write(step.action, shown, told=True)])

    def write(self, action: Action, shown: ScreenObservation | None = None, told: bool = False) -> str:
        """An action as a completion. shown: the observation. told: without the picture, so that elements are named by number, as
        when only elements are shown."""
        by_number = shown is not None and (told or self.observe == "elements")
        if self.style == PROGRAM:
            return write_program(action, self.numbers(), shown.elements if shown is not None and by_number else ())
        element = number_of(action, shown.elements) if shown is not None and by_number else None
        return asking.act(self.style, "", action, self.numbers(), element=element)

    def gold(self, prompt: Prompt) -> str:
        if "gold" not in prompt.meta:
            raise NoGold(f"nobody knows what to do on page {prompt.meta['page']!r}: give pages that have an expert, or data")
        return str(prompt.meta["gold"])

    def draw_completion(self, prompt: Prompt, completion: str) -> Any:
        """The first screen with the completion's action."""
        shown = seen_in(prompt.messages)
        return None if shown.picture is None else said_to(shown, completion, self.numbers(), self.style == "tags")

    def draw_episode(self, rollout: Rollout) -> Any:
        """The episode's screens side by side, each with its action."""
        assert isinstance(rollout, Conversation)
        turns = [(seen_in(t.messages if n else rollout.prompt.messages), t.text) for n, t in enumerate(rollout.turns)]
        return filmstrip(turns, self.numbers(), self.style == "tags", rollout.outcome)

    def environment(self, prompt: Prompt) -> Play | Replay:
        if self.recording and "episode" in prompt.meta:
            course = self.course(prompt)

            def later(shown: ScreenObservation, action: Action) -> Mapping[str, Any]:
                return self.message(shown, first=False, current=course.after([action], shown.screenshot) if course else "")

            return Replay(self.recording, prompt.meta["episode"], later, self.write)
        return self._play(prompt)

    def course(self, prompt: Prompt) -> Course | None:
        """The sub-goals of an episode with the one that is current; None if nothing tracks them."""
        return Course(self.tracker, prompt.meta["subgoals"], seen_in(prompt.messages).picture) if self.tracker else None

    def _play(self, prompt: Prompt) -> Play:
        return Play(self, self.screens.open(elements=self.numbered), prompt)


class Play:
    """One episode. The pages of some episodes are started early, while the policy samples; starting all would need too many at a
    time when most episodes are short."""

    waits = True

    def __init__(self, task: Episodes, screen: Screen, prompt: Prompt) -> None:
        self.task, self.screen, self.instruction = task, screen, str(prompt.meta["instruction"])
        self.course, self.steps, self.actions, self.refused = task.course(prompt), 0, 0, 0
        self._start = partial(screen.start, prompt.meta["page"], prompt.seed, picture=False)  # the picture is in the prompt
        self._first = seen_in(prompt.messages).picture
        self._early: Future[ScreenObservation] | None = _threads().submit(self._start) if _EARLY.acquire(blocking=False) else None
        self._whole: ScreenObservation | None = None  # with all its elements
        self._before: ScreenObservation | None = None  # as the last turn saw it

    def step(self, completion: str) -> Reply:
        whole = self._begun()
        self._before = before = self._seen(whole)
        self.steps += 1
        notes: list[str] = []
        try:
            calls = self._said(completion, before)
            did = [call.action for call in calls]
        except NoAction as why:
            calls, notes, did = [Call(action=Action(kind="wait"))], [str(why)], []
        shown = self._carried_out(calls, whole, notes)
        self._whole = shown
        self.refused += bool(notes)
        outcome = {"success": float(shown.success), "steps": float(self.steps), "refused": float(self.refused)}
        if shown.terminated or shown.raw_reward or shown.reward:  # else the page has given none yet
            outcome |= {"raw_reward": shown.raw_reward, "reward": shown.reward}
        if self.task.style == PROGRAM:
            outcome["actions"] = float(self.actions)
        if shown.terminated:
            return Reply(terminated=True, outcome=outcome)
        said = replace(self._seen(shown), notes=tuple(notes))
        current = self.course.after(did, shown.screenshot) if self.course else ""
        return Reply(messages=[self.task.message(said, first=False, current=current)], outcome=outcome)

    def _begun(self) -> ScreenObservation:
        """The last observation; starts the page, if nothing did."""
        self._whole = self._whole or (self._early.result() if self._early else self._start())
        return self._whole

    def state_name(self) -> str:
        """What is on the screen, whatever else a turn tells of it."""
        shown = self._seen(self._begun())
        pictures = [] if self.task.observe == "elements" else [shown.screenshot or self._first]
        return "".join(text_and_media([user_message(listed(shown.elements) if self.task.numbered else "", *pictures)]))

    def _carried_out(self, calls: Sequence[Call], whole: ScreenObservation, notes: list[str]) -> ScreenObservation:
        """The screen after the calls, which end when the page ends the episode, with the first note, or when an element is gone.
        whole: the observation for which they were written. notes: takes what there is to say of them."""
        shown = whole
        for number, call in enumerate(calls, 1):
            action = placed(call, whole.elements, shown.elements)
            if action is None:
                notes.append(f"line {call.line}: its element is gone, or there are others like it now; the program ended there")
                break
            shown = self.screen.act(action)
            self.actions += 1
            where, ended = (f"line {call.line}: ", "; the program ended there") if call.line else ("", "")
            notes += [f"{where}{note}{ended if number < len(calls) else ''}" for note in shown.notes]
            if shown.terminated or shown.notes:
                break
        return shown

    def _said(self, completion: str, before: ScreenObservation) -> list[Call]:
        """The completion's actions; one, if they are not programs. Raises NoAction."""
        numbers = self.task.numbers()
        if self.task.style == PROGRAM:
            calls = read_program(completion, numbers, before.elements)
        else:
            calls = [Call(action=read(completion, numbers, before.elements, tags=self.task.style == "tags"))]
        for call in calls:
            if not all(numbers.holds(place) for place in (call.action.at, call.action.to) if place is not None):
                line = f"line {call.line}: " if call.line else ""
                where = "" if self.task.observe == "elements" else f": places are in {numbers.says()}"
                raise NoAction(f"{line}the {call.action.kind} is off the screen{where}")
        return calls

    def listed(self) -> str:
        """The list of elements before the last turn."""
        return "" if self._before is None else listed(self._before.elements)

    def gold_turn(self) -> str | None:
        """The expert's next action as a completion; None without an expert."""
        expert_action = self.screen.expert_action()
        return None if expert_action is None else self.task.write(expert_action, self._whole and self._seen(self._whole))

    def _seen(self, shown: ScreenObservation) -> ScreenObservation:
        return self.task.seen(shown, self.instruction)

    def close(self) -> None:
        if self._early is not None:
            if not self._early.cancel():
                self._early.exception()  # wait, so that its screen can be returned; its failure doesn't matter now
            _EARLY.release()
        self.screen.close()


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads for starting pages; they only wait for the browser."""
    return ThreadPoolExecutor(STARTED_EARLY, "gui-start")


__all__ = ["Episodes", "Play"]
