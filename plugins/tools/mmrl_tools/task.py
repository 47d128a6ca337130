"""What tasks with tools share: which tools, how calls are written, budgets, gold episodes, and marks of where the policy
looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrl import Conversation, CoordinateFormat, Overlay, Prompt, Rollout, Task, UserError, user_message
from mmrl.api.coordinates import convert_coordinates
from mmrl.api.tasks.option_checks import check_choice, check_integer, check_type
from mmrl.api.tasks.overlays import box_overlay
from mmrl.api.verifiers import tool_calls as calls
from mmrl_tools import asking
from mmrl_tools.environment import Budget, ToolUse, places
from mmrl_tools.other_tools import text_tools
from mmrl_tools.pictures import picture_tools
from mmrl_tools.published import published_tools
from mmrl_tools.sandbox import check_sandbox
from mmrl_tools.tool import Refused, Tool, Workspace

OWN = ("zoom", "rotate", "draw_box", "draw_line", "select_frames", "read_text", "compute", "python")
SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "": OWN,
    "deepeyes": ("image_zoom_in_tool", "image_rotate_tool"),
    "pixel-reasoner": ("crop_image_normalized", "select_frames"),
}
"""System -> the names of its tools; "" are ours."""
SCHEMAS = ("text", "template", "none")


@dataclass(kw_only=True, eq=False)
class WithTools(Task):
    """Base class: a subclass makes prompts with `posed`, and a `workspace` for an episode."""

    tools: Sequence[str] = ("zoom",)
    """Names of the tools: zoom, rotate, draw_box, draw_line, select_frames, read_text, compute, python; or those of the
    system."""
    system: str = ""
    """The published system whose tools these are: deepeyes, pixel-reasoner; empty for ours."""
    form: str = "hermes"
    """How calls are written: hermes, qwen-xml, json."""
    schemas: str = "text"
    """Where the schemas of the tools are shown: text (in the question), template (by the model's chat template), none."""
    style: str = "short"
    """The requested form of the answer: short (an answer tag), think (a think tag in each turn too), plain (a turn without a
    call)."""
    calls_per_turn: int = 1
    """Calls of a turn that are carried out."""
    max_calls: int = 6
    """Calls of an episode, refused ones included."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Name of a tool -> its calls of an episode; by default `max_calls`."""
    blank: bool = False
    """Give back grey pictures, to see what a policy makes of its tools' pictures."""

    def __post_init__(self) -> None:
        check_choice("system", self.system, SYSTEMS)
        check_choice("form", self.form, calls.FORMS)
        check_choice("schemas", self.schemas, SCHEMAS)
        check_choice("style", self.style, asking.STYLES)
        check_type("blank", self.blank, bool)
        check_integer("calls_per_turn", self.calls_per_turn, 1, calls.MOST)
        check_integer("max_calls", self.max_calls, 0, 64)
        if not isinstance(self.tools, list | tuple) or not self.tools or len(set(map(str, self.tools))) < len(self.tools):
            raise UserError(f"tools = {self.tools!r:.100} must be a list of different names: {', '.join(SYSTEMS[self.system])}")
        for name in self.tools:
            check_choice("tools", name, SYSTEMS[self.system])
        check_type("budgets", self.budgets, Mapping, "{zoom = 3}")
        for name, most in self.budgets.items():
            check_choice("budgets", name, self.tools)
            check_integer(f"budgets.{name}", most, 0, 64)
        if "python" in self.tools:
            check_sandbox()
        self.budget = Budget(turn=self.calls_per_turn, episode=self.max_calls, tools=dict(self.budgets))

    def workspace(self, prompt: Prompt) -> Workspace:
        """What the tools of an episode work on, made anew."""
        raise NotImplementedError(f"{type(self).__name__} must define workspace(prompt)")

    def toolkit(self) -> list[Tool]:
        """The tools, with the policy's coordinate format in their schemas."""
        if self.system:
            known = published_tools()
        else:
            drawn = picture_tools(self.image_processing)
            known = [*drawn, *text_tools(drawn[0].properties["box"])]
        by_name = {tool.name: tool for tool in known}
        return [by_name[name] for name in self.tools]

    def posed(self, id: str, question: str, media: Sequence[Any], answer: Any, meta: Mapping[str, Any]) -> Prompt:
        """A prompt with the schemas of the tools, in the text or for the chat template."""
        tools = self.toolkit() if self.schemas != "none" else []
        text = asking.question(question, self.style)
        if self.schemas == "text":
            text = f"{calls.instructions([tool.schema for tool in tools], self.form)}\n\n{text}"
        shown = tuple(tool.schema for tool in tools) if self.schemas == "template" else ()
        meta = {**meta, "style": self.style}
        return Prompt(id=id, messages=[user_message(text, *media)], answer=answer, meta=meta, tools=shown)

    # -- episodes -------------------------------------------------------------------------------------------------------------

    def environment(self, prompt: Prompt) -> ToolUse:
        workspace = self.workspace(prompt)
        return ToolUse(self.toolkit(), workspace, self.form, self.budget, self.plan(prompt, workspace)[1:])

    def gold(self, prompt: Prompt) -> str:
        return self.plan(prompt)[0]

    def plan(self, prompt: Prompt, workspace: Workspace | None = None) -> list[str]:
        """The turns of a gold episode: a look at the first true box, if there is one and a tool that shows it, then the answer.
        workspace: that of a new episode, by default made anew."""
        answer = prompt.answer[0] if isinstance(prompt.answer, list | tuple) else prompt.answer
        look = self._look(prompt) if self.max_calls else None
        if look and not self._shows(look, workspace or self.workspace(prompt)):
            look = None
        turns = [asking.called(look, self.form, self.style)] if look else []
        return [*turns, asking.written(str(answer), self.style)]

    def _look(self, prompt: Prompt) -> calls.Call | None:
        boxes = prompt.meta.get("boxes")
        if not boxes or not prompt.meta.get("shown"):
            return None
        box, size = boxes[0], prompt.meta["shown"]
        usable = [name for name in self.tools if self.budgets.get(name, 1)]
        if "zoom" in usable:
            written, model_size = self.image_processing.coordinate_format, self.image_processing.model_size(size)
            numbers = convert_coordinates(box, CoordinateFormat.PIXELS, written, size, model_size)
            return calls.Call("zoom", {"box": written.json_value(written.rounded(numbers))})
        if "image_zoom_in_tool" in usable:
            return calls.Call("image_zoom_in_tool", {"bbox_2d": [round(v) for v in box]})
        if "crop_image_normalized" in usable:
            shares = [min(0.999, round(v / side, 3)) for v, side in zip(box, (*size, *size), strict=True)]
            return calls.Call("crop_image_normalized", {"bbox_2d": shares, "target_image": 1})
        return None

    def _shows(self, look: calls.Call, workspace: Workspace) -> bool:
        """Whether the tool carries the call out: a true box may be too small for it."""
        tool = next(tool for tool in self.toolkit() if tool.name == look.name)
        try:
            tool.call(look.arguments, workspace)
        except Refused:
            return False
        return True

    # -- for people -----------------------------------------------------------------------------------------------------------

    def overlays(self, prompt: Prompt, completion: str) -> Sequence[Overlay]:
        return [*super().overlays(prompt, completion), *self._looked(prompt, [completion])]

    def episode_overlays(self, rollout: Rollout) -> Sequence[Overlay]:
        turns = [turn.text for turn in rollout.turns] if isinstance(rollout, Conversation) else []
        return [*super().overlays(rollout.prompt, ""), *self._looked(rollout.prompt, turns)]

    def _looked(self, prompt: Prompt, turns: Sequence[str]) -> list[Overlay]:
        """Where the policy looked in each of its turns, by playing them again."""
        if not prompt.images or not any(turns):
            return []
        unit = (1, 1)  # places are shares
        return [
            box_overlay(place.box, unit, "said", label=f"turn {number}", image=place.picture)
            for number, place in places(self.environment(prompt), turns)
        ]
