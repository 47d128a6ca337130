"""An episode with tools: it reads the calls of each turn, carries them out within the budgets, and shows the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mmrl import Reply
from mmrl.api.verifiers import tool_calls as calls
from mmrl.api.verifiers.parse import last_tag
from mmrl_tools.tool import PICTURES, Place, Refused, Result, Tool, Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many calls an episode allows."""

    turn: int = 1
    """Calls of a turn that are carried out."""
    episode: int = 6
    """Calls of an episode, those that fail included."""
    tools: Mapping[str, int] = field(default_factory=dict)
    """Name of a tool -> its calls of an episode."""


class ToolUse:
    """The environment of one episode. A turn with an answer tag, or without a call, ends it. What a
    turn thinks before `</think>` is neither.

    Its outcome has `calls`, the calls that were tried; `failed`, those that were refused; `pictures`, the pictures that were
    given back; `last_failed`, 1 if the last call was refused; and `NAME_calls` of each tool.
    """

    def __init__(self, tools: Iterable[Tool], workspace: Workspace, form: str, budget: Budget, turns: Sequence[str] = ()) -> None:
        """form: of `calls.FORMS`. turns: the gold turns after the first."""
        self.tools = {tool.name: tool for tool in tools}
        self.workspace, self.form, self.budget = workspace, form, budget
        self.waits = any(tool.waits for tool in self.tools.values())
        self.looked: list[Place] = []
        self.used: Counter[str] = Counter()
        self.tried = self.failed = self.given = 0
        self.last_failed = False
        self._turns = list(turns)

    def step(self, completion: str) -> Reply:
        said = completion.rpartition("</think>")[2]
        said = said if said.strip() else completion  # some models call tools within their thinking
        answer = last_tag(said) if len(said) <= calls.LONGEST else None
        if answer is not None and answer.strip():
            return self._reply(terminated=True)
        try:
            asked = calls.read(said, self.form)
        except calls.CallError as error:
            self._count(failed=True)
            return self._told([f"Error: {error}."], [])
        if not asked:
            return self._reply(terminated=True)
        texts: list[str] = []
        images = []
        for number, call in enumerate(asked):
            try:
                result = self._carry_out(call, number)
            except Refused as error:
                self._count(failed=True)
                texts.append(f"Error: {error}.")
                continue
            self._count(failed=False)
            self.workspace.pictures.extend(result.pictures)
            self.looked.extend(result.looked)
            self.given += len(result.pictures)
            images += [picture.image for picture in result.pictures]
            texts.append(result.text)
        return self._told(texts, images)

    def _carry_out(self, call: calls.Call, number: int) -> Result:
        """number: of the call in its turn, from 0. Raises Refused."""
        tool = self.tools.get(call.name)
        if tool is None:
            raise Refused(f"there is no tool {call.name!r:.60}; the tools are {', '.join(self.tools)}")
        if number >= self.budget.turn:
            raise Refused(f"only {self.budget.turn} call{'s' * (self.budget.turn > 1)} of a turn can be carried out")
        if self.tried >= self.budget.episode:
            raise Refused("no calls are left: give the answer")
        if self.used[tool.name] >= self.budget.tools.get(tool.name, self.budget.episode):
            raise Refused(f"no calls of {tool.name} are left")
        self.used[tool.name] += 1
        result = tool.call(call.arguments, self.workspace)
        if len(self.workspace.pictures) + len(result.pictures) > PICTURES:
            raise Refused(f"an episode has at most {PICTURES} pictures")
        return result

    def _count(self, failed: bool) -> None:
        self.tried += 1
        self.failed += failed
        self.last_failed = failed

    def _told(self, texts: Sequence[str], images: Sequence[object]) -> Reply:
        message = {"role": "user", "content": calls.reply_parts("\n".join(texts), images, self.form)}
        return Reply(messages=[message], outcome=self._outcome())

    def _reply(self, terminated: bool) -> Reply:
        return Reply(terminated=terminated, outcome=self._outcome())

    def _outcome(self) -> dict[str, float]:
        counts = {"calls": self.tried, "failed": self.failed, "pictures": self.given, "last_failed": self.last_failed}
        counts |= {f"{name}_calls": self.used[name] for name in self.tools}
        return {name: float(count) for name, count in counts.items()}

    def gold_turn(self) -> str | None:
        return self._turns.pop(0) if self._turns else None

    def close(self) -> None:
        """There is nothing to close."""


def places(environment: ToolUse, turns: Iterable[str]) -> list[tuple[int, Place]]:
    """(number of the turn from 1, place) of all that an episode looked at, by playing it again in a new environment. Tools that
    wait are left out: they show no place."""
    environment.tools = {name: tool for name, tool in environment.tools.items() if not tool.waits}
    found: list[tuple[int, Place]] = []
    for number, text in enumerate(turns, 1):
        before = len(environment.looked)
        over = environment.step(text).terminated
        found += [(number, place) for place in environment.looked[before:]]
        if over:
            break
    return found
