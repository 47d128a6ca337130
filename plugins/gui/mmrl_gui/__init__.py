"""GUI tasks: grounding, next action, inverse dynamics, episodes; on generated pages, recorded episodes and your own data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmrl import SimulatorSpec, TaskSpec, VerifierSpec, hookimpl

if TYPE_CHECKING:
    import click

MMRL_CONTRACT = 2

DATA = "mmrl_gui.data_task:"
ACTIONS = "mmrl_gui.action_task:"
OURS = "mmrl_gui.verifiers:"
FIRST = "gui/hit-first"
R1 = ["click", "long-press", "type", "back", "open", "scroll", "wait", "answer"]
"""The actions in GUI-R1's prompt."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [*_data(), *_screens(), *_episodes()]


def _data() -> list[TaskSpec]:
    """Tasks on your own screens, actions and recordings."""

    def task(id: str, target: str, verifiers: dict[str, float], summary: str, **options: Any) -> TaskSpec:
        metric = options.pop("metric", "")
        named = {f"gui/{name}": weight for name, weight in verifiers.items()}
        return TaskSpec(id=f"gui/{id}", target=target, verifiers=named, options=options, summary=summary, metric=metric)

    where, act, inverse = DATA + "GroundingData", ACTIONS + "NextAction", ACTIONS + "Inverse"
    ours, step, kinds = {"action": 1.0, "format": 0.1}, "gui/action", ["click", "scroll", "type", "back", "open"]
    g1 = {"hit@gui-g1": 1.0, "iou@gui-g1": 1.0, "size@gui-g1": 1.0}
    r1 = {"action-type@ui-r1": 1.0, "coordinate@ui-r1": 1.0, "format@ui-r1": 1.0}
    shift = {"action@uishift": 1.0, "format@uishift": 1.0}
    return [
        task(
            "grounding-data",
            where,
            {"hit": 1.0, "format": 0.1},
            "ScreenSpot, its v2 and Pro, OSWorld-G, UI-Vision, MMBench-GUI, your own data: where to click",
        ),
        task("grounding@gui-g1", where, g1, "the same, with prompt and rewards of GUI-G1", style="gui-g1", metric="gui/hit"),
        task("grounding@ui-r1", where, r1, "the same, with prompt and rewards of UI-R1", style="ui-r1", metric="gui/hit"),
        task(
            "grounding@infigui-g1",
            where,
            {"aer@infigui-g1": 1.0},
            "the same, with prompt and reward of InfiGUI-G1",
            style="infigui-g1",
            metric=FIRST,
        ),
        task("next-action", act, ours, "AndroidControl, your own data: the next action for a goal or a step"),
        task(
            "next-action@uishift", act, shift, "the same, as in UIShift's evaluation", style="uishift", kinds=kinds, metric=step
        ),
        task("next-action@gui-r1", act, {"overall@gui-r1": 1.0}, "the same, as in GUI-R1", style="gui-r1", kinds=R1, metric=step),
        task(
            "next-action@gui-odyssey",
            act,
            {"action@gui-odyssey": 1.0, "format": 0.1},
            "the same, scored as in GUI-Odyssey",
            metric="gui/action@gui-odyssey",
        ),
        task(
            "next-action@mind2web",
            act,
            {"action@mind2web": 1.0, "format": 0.1},
            "the same, scored as Multimodal-Mind2Web",
            kinds=["click", "type", "select"],
            metric="gui/action@mind2web",
        ),
        task(
            "next-action@aitw",
            act,
            {"action@aitw": 1.0, "format": 0.1},
            "the same, scored as Android in the Wild",
            kinds=["click", "scroll", "type", "key", "back", "home", "answer"],
            metric="gui/action@aitw",
        ),
        task("next-action@ui-r1", act, r1, "the same, as in UI-R1", style="ui-r1", kinds=kinds, metric="gui/coordinate@ui-r1"),
        task("inverse", inverse, ours, "the action that led from one screen to another, k steps apart"),
        task(
            "inverse@uishift",
            inverse,
            shift,
            "the same, with prompt and rewards of UIShift",
            style="uishift",
            kinds=kinds,
            metric=step,
        ),
        task("recorded", act, ours, "the actions of recorded episodes", only="success"),
    ]


def _screens() -> list[TaskSpec]:
    """Tasks on generated pages."""
    return [
        TaskSpec(
            id="gui/grounding",
            target="mmrl_gui.screens_task:Grounding",
            verifiers={"gui/hit": 1.0, "gui/format": 0.1},
            summary="where to click for an instruction, on generated pages in a browser",
        ),
        TaskSpec(
            id="gui/transitions",
            target="mmrl_gui.transitions:Transitions",
            verifiers={"gui/action": 1.0, "gui/format": 0.1},
            summary="the action that led from one screen to another, on generated working pages",
        ),
    ]


def _episodes() -> list[TaskSpec]:
    """Tasks with live screens."""
    return [
        TaskSpec(
            id="gui/episodes",
            target="mmrl_gui.episodes:Episodes",
            verifiers={"gui/success": 1.0},
            summary="episodes on live pages: options simulator, pages (MiniWoB++'s, your own)",
        )
    ]


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    def hosted(name: str, target: str, max_steps: int, summary: str) -> SimulatorSpec:
        return SimulatorSpec(
            id=f"gui/{name}",
            target=f"mmrl_gui.hosted.{target}",
            summary=summary,
            screens=True,
            max_steps=max_steps,
            capabilities=frozenset(("partial-reset", "per-env-seed", "needs-assets")),
        )

    return [
        hosted("android-world", "android:AndroidWorld", 30, "AndroidWorld's tasks on emulators whose servers you start"),
        hosted("osworld", "osworld:OSWorld", 15, "OSWorld's tasks on machines whose servers you start: option tasks"),
    ]


@hookimpl
def mmrl_commands(cli: click.Group) -> None:
    from mmrl_gui.commands import record

    cli.add_command(record)


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [*_ours(), *_published()]


def _ours() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str, **more: Any) -> VerifierSpec:
        return VerifierSpec(id=f"gui/{id}", target=OURS + target, summary=summary, **more)

    return [
        spec("hit", "hit", "the point, or the middle of the box, is in the true box: ScreenSpot's accuracy"),
        spec("hit-first", "hit", "the same, with the first of several points, for evaluation", options={"first": True}),
        spec("iou", "iou", "IoU of the one box answered", graded=True),
        spec("size-aware", "size_aware", "hit, IoU and size of the box, as GUI-G1 weights them", graded=True),
        spec("action", "action", "kind and arguments of the action are right: AndroidControl's step success"),
        spec(
            "action-parts", "action", "half for the kind of action, half for its arguments", graded=True, options={"graded": True}
        ),
        spec("action-type", "action_type", "the kind of action is right"),
        spec(
            "action@gui-odyssey",
            "action",
            "the action is right as in GUI-Odyssey: a click in the box or near, a text that is alike",
            options={"text": "anls", "either": True},
        ),
        spec("format", "form", "the answer has the requested form"),
        spec("success", "success", "the episode succeeded", outcome=True),
        spec("raw-reward", "raw_reward", "the page's reward without its time factor", outcome=True, graded=True, low=-1.0),
        spec(
            "decayed-reward", "decayed_reward", "the page's reward, which decays with time", outcome=True, graded=True, low=-1.0
        ),
        VerifierSpec(
            id="gui/subgoals",
            target="mmrl_gui.subgoals:Subgoals",
            model=True,
            rollout=True,
            outcome=True,
            graded=True,
            timeout_s=120.0,
            summary="share of an instruction's sub-goals that a vision-language model finds done",
        ),
    ]


def _published() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str, **more: Any) -> VerifierSpec:
        return VerifierSpec(id=f"gui/{id}", target=f"mmrl_gui.{target}", summary=summary, **more)

    aer = "InfiGUI-G1's exploration reward: 1 for the form, and by the rank of the first right point"
    return [
        spec("hit@gui-g1", "gui_g1:hit", "GUI-G1: the middle of the box is in the true box"),
        spec("iou@gui-g1", "gui_g1:iou", "GUI-G1: a quarter of the IoU", graded=True, high=0.25),
        spec("size@gui-g1", "gui_g1:size", "GUI-G1: an eighth of the closeness of the edges", graded=True, low=-1e3, high=1e3),
        spec("action@uishift", "uishift:action", "UIShift: the action is right"),
        spec("format@uishift", "uishift:form", "UIShift: there is an answer tag"),
        spec("action-type@ui-r1", "ui_r1:action_type", "UI-R1: the type of action is right"),
        spec("coordinate@ui-r1", "ui_r1:coordinate", "UI-R1: the click is in the true box"),
        spec("format@ui-r1", "ui_r1:form", "UI-R1: think, then answer, nothing else"),
        spec("action@mind2web", "mind2web:action", "Mind2Web: the element is hit, and the operation's F1 is 1"),
        spec("action@aitw", "aitw:action", "Android in the Wild: a tap near or on the same element, a swipe along the same axis"),
        spec("action@gui-r1", "gui_r1:action", "GUI-R1: the action is right"),
        spec("format@gui-r1", "gui_r1:form", "GUI-R1: think, then a list of actions"),
        spec("overall@gui-r1", "gui_r1:overall", "GUI-R1: 0.8 for the action, 0.2 for the format", graded=True),
        spec("aer@infigui-g1", "infigui_g1:aer", aer, graded=True, low=-1.0, high=2.0),
    ]
