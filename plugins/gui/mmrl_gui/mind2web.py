"""The step of Multimodal-Mind2Web as SeeClick scores it, where a model points (agent_tasks/mind2web_test.py of
github.com/njucckevin/SeeClick, commit 73c6835), after Deng et al. 2023, arXiv 2306.06070.

`case.answer` or `meta["true"]` is `{"action": ..., "box": [...]}`, see `episode_layouts`.
"""

from __future__ import annotations

from mmrl import Case, Score
from mmrl.api.simulators.gui import Action
from mmrl_gui.actions import FILLS, of_data, read
from mmrl_gui.coordinates import numbers_of
from mmrl_gui.geometry import inside
from mmrl_gui.names import NoAction, offered


def action(case: Case) -> Score:
    """1 when the place is in the element's box, edges included, and the operation has an F1 of 1. Parts: `element`, and `f1`,
    that of the words of both operations, each counted once: the kind, and for typing and selecting the text in small letters.

    Unlike there, a hover is no click. An unreadable answer is 0.
    """
    about = case.meta.get("true", case.answer)
    true = of_data(about["action"])
    try:
        found = read(case.completion, numbers_of(case), tags=case.meta.get("style") == "tags", names=offered(case.meta))
    except NoAction as why:
        return Score(0.0, parts={"element": 0.0, "f1": 0.0}, detail=str(why))
    element = float(found.at is not None and about.get("box") is not None and inside(found.at, about["box"]))
    a, b = _words(found), _words(true)
    f1 = 2 * len(a & b) / (len(a) + len(b))
    return Score(
        float(bool(element) and f1 == 1),
        parts={"element": element, "f1": f1},
        detail=f"F1 {f1:.3f}, {'in' if element else 'out'}side",
    )


def _words(action: Action) -> set[str]:
    return {f"<{action.kind}>", *(action.text.lower().split() if action.kind in FILLS else ())}
