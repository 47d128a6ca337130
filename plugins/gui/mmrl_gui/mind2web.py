"""The step of Multimodal-Mind2Web as SeeClick scores it, where a model points, and the figures of its parts
(agent_tasks/mind2web_test.py of github.com/njucckevin/SeeClick, commit 0ef37ac), after Deng et al. 2023, arXiv 2306.06070.

`case.answer` or `meta["true"]` is `{"action": ..., "box": [...]}`, see `episode_layouts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmrl import Case, Prompt, Score
from mmrl.api.simulators.gui import Action
from mmrl_gui.actions import FILLS, of_data, read
from mmrl_gui.coordinates import numbers_of
from mmrl_gui.geometry import inside
from mmrl_gui.names import NoAction, offered


def action(case: Case) -> Score:
    """1 when the place is in the element's box, edges included, and the operation has an F1 of 1. Parts: `element`, and `f1`,
    that of the words of both operations, each counted once: the kind, and for typing and selecting the text in small letters.

    Unlike there, a hover is no click. An unreadable answer is 0, and so is one without a place.
    """
    about = case.meta.get("true", case.answer)
    true = of_data(about["action"])
    try:
        found = read(case.completion, numbers_of(case), tags=case.meta.get("style") == "tags", names=offered(case.meta))
        if found.at is None:
            raise NoAction(f"{found.kind} says no place")
    except NoAction as why:
        return Score(0.0, parts={"element": 0.0, "f1": 0.0}, detail=str(why))
    element = float(about.get("box") is not None and inside(found.at, about["box"]))
    a, b = _words(found), _words(true)
    f1 = 2 * len(a & b) / (len(a) + len(b))
    return Score(
        float(bool(element) and f1 == 1),
        parts={"element": element, "f1": f1},
        detail=f"F1 {f1:.3f}, {'in' if element else 'out'}side",
    )


def part_figures(parts: Mapping[str, Sequence[tuple[Prompt, float]]]) -> dict[str, float]:
    """Of each part `NAME/episode-mean`, the mean over episodes of the mean of their steps: Macro Element Accuracy of `element`
    and Macro Operation F1 of `f1`, as in Mind2Web's own tables; and `f1/kind-mean`, the mean over kinds of action of the mean of
    each, SeeClick's Operation F1. parts: name -> (prompt, value), see `Task.summarise_parts`."""
    found = {f"{name}/episode-mean": mean_of_means(own, "episode") for name, own in parts.items()}
    found |= {"f1/kind-mean": mean_of_means(parts["f1"], "kind")} if "f1" in parts else {}
    return {name: value for name, value in found.items() if value is not None}


def mean_of_means(results: Sequence[tuple[Prompt, float]], key: str) -> float | None:
    """The mean over the values of `meta[key]` of the mean result of each; None where no prompt has it."""
    groups: dict[str, list[float]] = {}
    for prompt, value in results:
        if key in prompt.meta:
            groups.setdefault(prompt.meta[key], []).append(value)
    means = [sum(own) / len(own) for own in groups.values()]
    return sum(means) / len(means) if means else None


def _words(action: Action) -> set[str]:
    return {f"<{action.kind}>", *(action.text.lower().split() if action.kind in FILLS else ())}
