"""The prompts of published systems, word for word, and their gold completions.

GUI-G1 (Zhou et al. 2025), UI-R1 (Lu et al. 2025), InfiGUI-G1 (Liu et al. 2025), UIShift (Gao et al. 2025), GUI-R1 (Luo et al.
2025): the files that the modules of their rewards name, and UIShift's data/processing and eval/prompt.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.simulators.gui import Action, Box
from mmrl_gui.actions import NO_TEXT
from mmrl_gui.asking import thought
from mmrl_gui.coordinates import Numbers
from mmrl_gui.geometry import middle

GUI_G1 = "Grounding instruction is: {0}. Report the bbox coordinates in JSON format."
UI_R1_KINDS = ("click", "open_app", "scroll", "navigate_back", "input_text")
UI_R1 = (
    "In this UI screenshot, I want to perform the command '{0}'.\n"
    "Please provide the action to perform (enumerate in ['click', 'open_app', 'scroll', 'navigate_back', 'input_text'])"
    "and the coordinate where the cursor is moved to(integer) if click is performed.\n"
    "Output the thinking process in <think> </think> and final answer in <answer> </answer> tags."
    "The output answer format should be as follows:\n"
    "<think> ... </think> <answer>[{{'action': enum['click', 'open_app', 'scroll', 'navigate_back', 'input_text], "
    "'coordinate': [x, y]}}]</answer>\n"
    "Please strictly follow the format."
)
INFIGUI_G1_SYSTEM = (
    "You FIRST think about the reasoning process as an internal monologue and then provide the final answer.\n"
    "The reasoning process MUST BE enclosed within <think> </think> tags."
)
INFIGUI_G1 = (
    "The screen's resolution is {1}x{2}.\n"
    'Locate the UI element(s) for "{0}", output the coordinates using JSON format: [{{"point_2d": [x, y]}}, ...]'
)
_ACTIONS = (
    '- Click: {{"action_type": "click", "x": <coordinate_x>, "y": <coordinate_y>}}\n'
    '- Input text: {{"action_type": "input_text", "text": <text>}}\n'
    '- Navigate back: {{"action_type": "navigate_back"}}\n'
    '- Open app: {{"action_type": "open_app", "app_name": <app_name>}}\n'
    '- Scroll: {{"action_type": "scroll", "direction": <up/down/left/right>}}'
)
UISHIFT = (
    "You are given two GUI screenshots:\n"
    "- Screenshot 1: the screen *before* the action.\n"
    "- Screenshot 2: the screen *after* the action.\n\n"
    "Your task is to infer the single GUI action that caused this transition.\n\n"
    "Return exactly one JSON-formatted action inside <answer>{{...}}</answer>.\n\n"
    f"Available action types:\n{_ACTIONS} \n\n"
    "Screenshot width: {0}\nScreenshot height: {1}\n"
    "# Now, describe the action that led from Screenshot 1 to Screenshot 2.\n"
    " Output the final answer in <answer> </answer> tags. Do not output any extra text."
)
UISHIFT_LATER = (
    "You are given two GUI screenshots:\n"
    "- Screenshot 1: the screen *before* any actions.\n"
    "- Screenshot {2}: the screen *after* {3} consecutive actions.\n\n"
    "Your task is to infer the first GUI action that was executed on Screenshot 1.\n\n"
    "Return exactly one JSON-formatted action inside <answer>{{...}}</answer>.\n\n"
    f"Available action types:\n{_ACTIONS} \n\n"
    "Screenshot width: {0}\nScreenshot height: {1}\n"
    "# Now, based on the transition from Screenshot 1 to Screenshot {2}, infer the first action that was executed.\n"
    " Output the final answer in <answer> </answer> tags. Do not output any extra text."
)
"""For several steps, similar to the prompt for two in UIShift's code."""
UISHIFT_LOW = (
    "You are given a GUI screenshot and an instruction.\n"
    "Your task is to output the next GUI action to perform.\n"
    "Return exactly one JSON-formatted action inside <answer>{{...}}</answer>. Do not output extra text.\n\n"
    f"Available action types:\n{_ACTIONS}\n"
    "(Use input_text/open_app/navigate_back directly and never click first)\n\n"
    "# Instruction: {0}\nScreenshot width: {1}\nScreenshot height: {2}\n"
    "# Now, output the next action to perform."
)
UISHIFT_HIGH = (
    "You are given a GUI screenshot from an ongoing task execution and a high-level instruction that describes the final "
    "goal.\n"
    "This screenshot corresponds to **step {3}** in the execution sequence.\n"
    "Your task is to analyze the screenshot, understand the current state of the UI, and output the **next single action** "
    "needed to move closer to completing the instruction.\n"
    "Return exactly one JSON-formatted action inside <answer>{{...}}</answer>. Do not output extra text.\n\n"
    f"Available action types:\n{_ACTIONS}\n"
    "(Use input_text/open_app/navigate_back directly and never click first)\n\n"
    "# Instruction (final goal): {0}\nScreenshot width: {1}\nScreenshot height: {2}\n"
    "# Now, output the next action to perform:"
)
_GUI_R1_KINDS = "['wait', 'long_press', 'click', 'press_back', 'type', 'open_app', 'scroll', 'complete']"
GUI_R1 = (
    "You are GUI-R1, a reasoning GUI Agent Assistant. In this UI screenshot, I want you to continue executing the command "
    "'{0}', with the action history being '{1}'.\n"
    f"Please provide the action to perform (enumerate from {_GUI_R1_KINDS}), the point where the cursor is moved to "
    "(integer) if a click is performed, and any input text required to complete the action.\n"
    "Output the thinking process in <think> </think> tags, and the final answer in <answer> </answer> tags as follows:\n"
    f"<think> ... </think> <answer>[{{{{'action': enum{_GUI_R1_KINDS}, 'point': [x, y], "
    "'input_text': 'no input text [default]'}}]</answer>\n"
    "Note:\n specific input text (no default) is necessary for actions enum['type', 'open_app', 'scroll'] \n"
)
_ANDROID = {
    **{"click": "click", "long-press": "long_press", "type": "input_text", "back": "navigate_back", "home": "navigate_home"},
    **{"open": "open_app", "scroll": "scroll", "wait": "wait"},
}
"""Our kind -> AndroidControl's type."""
_GUI_R1 = {
    **{"click": "click", "long-press": "long_press", "type": "type", "back": "press_back", "home": "press_home"},
    **{"open": "open_app", "scroll": "scroll", "wait": "wait", "answer": "complete"},
}


def android(action: Action, box: Box | None) -> dict[str, Any]:
    """An action in the form of AndroidControl and UIShift. Raises ValueError for one that they don't have."""
    kind = _known(action, _ANDROID)
    found: dict[str, Any] = {"action_type": kind}
    if action.at is not None and kind != "scroll":
        found |= {"x": round(action.at[0]), "y": round(action.at[1])}
        found |= {"bbox": list(box)} if box else {}
    if kind == "scroll":
        found["direction"] = action.direction
    if kind in ("open_app", "input_text"):
        found["app_name" if kind == "open_app" else "text"] = action.text
    return found


def gui_r1(action: Action, box: Box | None) -> dict[str, Any]:
    """An action in the form of GUI-R1's data."""
    kind = _known(action, _GUI_R1)
    where = list(box) if box else [round(v) for v in action.at] if action.at else [-100, -100]
    return {"action": kind, "gt_bbox": where, "input_text": action.text or action.direction or NO_TEXT}


def ui_r1(action: Action, box: Box | None) -> dict[str, Any]:
    """An action in the form of UI-R1's data: a click without a box gets one with sides of three pixels."""
    kind = _known(action, _ANDROID)
    if kind not in UI_R1_KINDS:
        raise ValueError(f"UI-R1 has no {kind}")
    if kind != "click" or action.at is None:
        return {"action": kind, "bbox": [0, 0, 0, 0]}
    x, y = (max(1, round(v)) for v in action.at)
    corners = [round(v) for v in box] if box else [x - 1, y - 1, x + 1, y + 1]
    return {"action": kind, "bbox": corners}


def _known(action: Action, names: Mapping[str, str]) -> str:
    if action.kind not in names:
        raise ValueError(f"there is no {action.kind} in this style: leave it out with kinds, or choose another style")
    return names[action.kind]


def gold_action(style: str, answer: Mapping[str, Any], at: Sequence[float] | None, said: str) -> str:
    """The gold completion of an action in a published style. at: its written position; said: the thought."""
    point = [round(v) if v == int(v) else v for v in at] if at else None
    if style == "uishift":
        found = {k: v for k, v in answer.items() if k != "bbox"}
        found |= {"x": point[0], "y": point[1]} if point and "x" in found else {}
        return f"<answer>{json.dumps(found, ensure_ascii=False)}</answer>"
    if style == "ui-r1":
        return f"<think>{said}</think> <answer>[{{'action': '{answer['action']}', 'coordinate': {point or [0, 0]}}}]</answer>"
    text = answer["input_text"].replace("\\", " ").replace("'", " ")  # GUI-R1 reads up to the first quote
    where = point if point and answer["action"] in ("click", "long_press") else [-100, -100]
    return (
        f"<think>{said}</think> <answer>[{{'action': '{answer['action']}', 'point': {where}, 'input_text': '{text}'}}]</answer>"
    )


def gold_place(style: str, box: Box, numbers: Numbers, said: str) -> str:
    """The gold completion of a position in a published style."""
    if style == "gui-g1":
        corners = json.dumps([{"bbox_2d": list(numbers.written_box(box)), "label": "element"}])
        return f"```json\n{corners}\n```"
    point = list(numbers.written(middle(box), box))  # with decimals if only they hit, which UI-R1 doesn't read
    if style == "infigui-g1":
        return f"<think>{said}</think>\n{json.dumps([{'point_2d': point}])}"
    return thought("tags", said, f"[{{'action': 'click', 'coordinate': {point}}}]")
