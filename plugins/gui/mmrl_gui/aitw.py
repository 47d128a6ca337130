"""The action matching of Android in the Wild (Rawles et al. 2023, arXiv 2307.10088, section 5.2; android_in_the_wild of
github.com/google-research/google-research), as SeeClick evaluates it (agent_tasks/aitw_test.py of github.com/njucckevin/SeeClick,
commit 0ef37ac).

`case.answer` or `meta["true"]` is `{"action": ..., "regions": [[...], ...]}`, see `episode_layouts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Case, Score
from mmrl.api.simulators.gui import Action
from mmrl_gui.actions import of_data, read
from mmrl_gui.coordinates import numbers_of
from mmrl_gui.episode_layouts import TAP
from mmrl_gui.geometry import apart, inside
from mmrl_gui.names import NoAction, offered, status
from mmrl_gui.verifiers import NEAR

_GESTURES = ("tap", "vertical", "horizontal")


def action(case: Case) -> Score:
    """1 when the action is the true one. Two taps are the same within 0.14 of the screen, or in the same of its annotated
    elements, each widened to 2.4 times its size; two swipes along the same axis, whichever way they go; two actions of any other
    kind always, whatever is typed. A drag of at most 0.04 of the screen is a tap.

    Parts: `type`, where taps and swipes are one; `text` of what is typed, 1 when one text is in the other in small letters, as
    the empty one of any other action is. The means of the success by kind are Click Acc and Scroll Acc.

    Unlike there, an unreadable answer also counts in `text`, and a screen without annotations can be right.

    Known exploits: a text is not compared; on a screen with a large element any tap on it is right.
    """
    about: Mapping[str, Any] = case.meta.get("true", case.answer)
    true, numbers = of_data(about["action"]), numbers_of(case)
    types = true.kind == "type"
    try:
        found = read(case.completion, numbers, tags=case.meta.get("style") == "tags", names=offered(case.meta))
    except NoAction as why:
        return Score(0.0, parts={"type": 0.0} | ({"text": 0.0} if types else {}), detail=str(why))
    screen = numbers.image or (1000, 1000)
    a, b = _what(found, screen), _what(true, screen)
    right = a == b
    if right and a == "tap":
        assert found.at and true.at
        at, regions = found.at, [*about.get("regions", ()), *([about["box"]] if about.get("box") else ())]
        right = apart(at, true.at, screen) <= NEAR or any(inside(at, region) for region in regions)
    parts = {"type": float(a == b or (a in _GESTURES and b in _GESTURES))}
    if types:
        said, wanted = (one.text.lower() if one.kind == "type" else "" for one in (found, true))
        parts["text"] = float(said in wanted or wanted in said)
    return Score(float(right), parts=parts, detail=f"{a}, and {b} is right" if a != b else "right" if right else "elsewhere")


def _what(action: Action, screen: Sequence[float]) -> str:
    """What an action is compared by: one of `_GESTURES`, or what it is."""
    if action.kind == "click":
        return "tap"
    if action.kind == "scroll":
        return "vertical" if action.direction in ("up", "down") else "horizontal"
    if action.kind == "drag" and action.at and action.to:
        across, down = (abs(action.to[n] - action.at[n]) / screen[n] for n in (0, 1))
        return "tap" if apart(action.at, action.to, screen) <= TAP else "horizontal" if across > down else "vertical"
    text = {"answer": status(action.text), "key": action.text}.get(action.kind, "")
    return f"{action.kind} {text}".rstrip()
