"""Every bundled task opens for other programs, and its gold completions score the maximum: as they are, from the JSON form of
their cases, and through TRL's signature."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mmrl_interop.trl import TrlTask

import mmrl
from browsers import no_browser
from mmrl import OpenTask, Prompt, UserError
from mmrl.api.cases import case_from_json, case_to_json
from mmrl.api.services import expert_episodes
from mmrl.registry import plugins
from mmrl.testing.cases import mostly_slow
from sandboxes import no_plots

pytestmark = pytest.mark.forks

SAMPLES = Path(__file__).parents[2] / "assets" / "samples"
VIDEO = {"videos": str(SAMPLES / "video"), "shares": {"test": 1}}
HALVES = {"shares": {"train": 0.5, "test": 0.5}}
PROMPTS = 2
"""Prompts of each task."""


def sample(name: str, **more: Any) -> dict[str, Any]:
    return {"path": str(SAMPLES / name), **more}


def video(name: str) -> dict[str, Any]:
    return sample(f"video/{name}", **VIDEO)


def table(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {"path": str(folder / "rows.jsonl")}


def pictures(folder: Path) -> dict[str, Any]:
    """The sample classes as a data set on disk."""
    datasets = pytest.importorskip("datasets")
    datasets.load_dataset(str(SAMPLES / "classes")).save_to_disk(str(folder / "saved"))
    return {"path": str(folder / "saved")}


def maps(folder: Path) -> dict[str, Any]:
    shutil.copy(SAMPLES / "classes" / "cat" / "0.jpg", folder)
    lines = {"M1": ["Alvalade", "Roma", "Chelas"], "M2": ["Chelas", "Rato"]}
    trip = {"station_1": "Roma", "station_2": "Rato", "metro_data": lines, "question": "How do I get from Roma to Rato?"}
    row = {"figure": "0.jpg", "type": "planning", "difficulty_city": "easy", "question_transfer_count": 1, "answer": None, **trip}
    return table(folder, [row, {**row, "type": "TorF1", "answer": 1}]) | {"test_path": str(folder / "rows.jsonl")}


def steps(folder: Path) -> dict[str, Any]:
    shutil.copy(SAMPLES / "screens" / "0.png", folder)
    act = {"action_type": "click", "x": 20, "y": 30}
    own = {"goal": "Open the list", "step_instruction": "Click", "screenshot": "0.png", "action": act, "bbox": [10, 10, 40, 50]}
    return table(folder, [{"episode_id": n, "index": 0, **own} for n in range(4)]) | {"images": str(folder), **HALVES}


def icons(folder: Path) -> dict[str, Any]:
    circle = '<svg viewBox="0 0 24 24"><circle cx="12" cy="12" r="{}" fill="teal"/></svg>'
    return table(folder, [{"code": circle.format(r)} for r in range(3, 11)])


def problems(folder: Path) -> dict[str, Any]:
    """EasyR1's form."""
    rows = [{"problem": f"<image>What is {n} + {n}?", "answer": str(2 * n), "images": ["0.jpg"]} for n in range(3)]
    shutil.copy(SAMPLES / "classes" / "cat" / "0.jpg", folder)
    return table(folder, rows) | {"test_share": 0}


def demonstrations(folder: Path) -> dict[str, Any]:
    """Two episodes of the embedded simulator's expert."""
    from mmrl_robotics import record

    small = {"size": 32, "dims": 4}
    episodes = expert_episodes("robotics/reach", small, 2, environments=2)
    try:
        record.write(folder / "demos", (shown for shown, _ in episodes), fps=5.0)
    finally:
        episodes.close()
    return {"folder": str(folder / "demos"), "simulator": "tabletop/table", "task": "reach", **small}


OPTIONS: Mapping[str, Any] = {
    **dict.fromkeys(
        ("classification/folder", "classification/folder@cls-rl", "classification/folder@no-thinking-rl"), sample("classes")
    ),
    **dict.fromkeys(
        ("classification/dataset", "classification/dataset@cls-rl", "classification/dataset@no-thinking-rl"), pictures
    ),
    **{f"grounding/{of}": sample("refer.jsonl", **HALVES) for of in ("refer-data", "point-data")},
    "grounding/region-data": sample("regions.jsonl", **HALVES),
    **{f"grounding/refer@{of}": sample("refer.jsonl", **HALVES) for of in ("vlm-r1", "vision-reasoner")},
    **dict.fromkeys(
        ("grounding/detect-data", "grounding/detect@vlm-r1", "grounding/detect@visual-rft"), sample("detect.jsonl", **HALVES)
    ),
    **dict.fromkeys(
        ("grounding/count-data", "grounding/detect@vision-r1"), sample("coco.json", images=str(SAMPLES), labels="all", **HALVES)
    ),
    **{f"gui/grounding{of}": sample("screens", **HALVES) for of in ("-data", "@gui-g1", "@infigui-g1", "@ui-r1")},
    **{f"gui/next-action{of}": steps for of in ("", "@gui-r1", "@ui-r1", "@uishift", "@gui-odyssey", "@mind2web", "@aitw")},
    **{f"gui/{of}": sample("walks", **HALVES) for of in ("inverse", "inverse@uishift")},
    "gui/recorded": sample("clicks", shares={"test": 1}),
    "gui/episodes": {"simulator": "browser/miniwob", "pages": ["click-test-2"]},
    "interop/table": problems,
    "judge/pairs": sample("pairs.jsonl", test_share=0.25),
    "judge/right": {"task": "classification/digits"},
    "judge/better": {"task": "classification/digits"},
    "rendering/rows": icons,
    "rendering/page": {"size": 112, "items": {"train": 2, "test": 2}},
    "rendering/plot": {"size": 160, "items": {"train": 2, "test": 2}},
    "robotics/demos": demonstrations,
    "robotics/episodes": {"simulator": "tabletop/table", "task": "reach"},
    **{f"tools/answer{of}": sample("tools.jsonl") for of in ("", "@deepeyes", "@pixel-reasoner")},
    "transit/rows": maps,
    **{
        f"video/temporal-data{of}": video("time_r1.json") for of in ("", "@temporal-r1", "@time-r1", "@timezero", "@videochat-r1")
    },
    **{f"video/grounded-data{of}": video("next_gqa.json") for of in ("", "@videochat-r1")},
    **{f"video/tracking-data{of}": video("got_10k.json") for of in ("", "@videochat-r1")},
    **{f"video/qa-data{of}": video("next_qa.csv") for of in ("", "@video-rts")},
    "video/qa-data@seed-bench-r1": video("seed_bench_r1.jsonl"),
    "video/qa-data@video-r1": video("video_r1.json"),
    "judge/recycled": {"task": "vqa/shapes"},
    **{
        f"audio/choice-data{of}": sample("audio/avqa.jsonl", test_path=str(SAMPLES / "audio" / "mmau.json"))
        for of in ("", "@r1-aqa")
    },
    "vqa/consult": sample("opinions.jsonl"),
    **{id: sample("questions.jsonl") for id in plugins.registry().specs("tasks") if id.startswith("vqa/table")},
}
"""Task -> the options without which it has no data, or a function that makes the data in a folder. Others need none."""
BROWSER = ("gui/episodes", "rendering/page")
EVERYDAY = ("grounding/refer", "gui/recorded", "rendering/svg")
ELSEWHERE = {f"interop/{name}" for name in ("browsergym", "game", "lmms-eval", "openenv", "verifiers")}
"""Tasks that other programs play, whose tests are the plugin's own."""
IDS = sorted(plugins.registry().specs("tasks").keys() - ELSEWHERE, key=lambda id: (id not in EVERYDAY, id))


def options_of(id: str, folder: Path) -> dict[str, Any]:
    given = OPTIONS.get(id, {})
    return given(folder) if callable(given) else given


@pytest.mark.parametrize("id", mostly_slow(IDS, everyday=len(EVERYDAY)))
def test_gold_scores_the_maximum(id: str, tmp_path: Path) -> None:
    if why := no_browser() if id in BROWSER else no_plots() if id == "rendering/plot" else "":
        pytest.skip(why)
    if id == "interop/reasoning-gym":
        pytest.importorskip("reasoning_gym")
    options = options_of(id, tmp_path)
    with mmrl.open_task(id, options) as task:
        split = "train" if "train" in task.splits and id not in ("gui/recorded",) and "-data" not in id else task.splits[-1]
        if task.acts:
            cases = [played(task, outcome) for outcome in outcomes(id, options)]
        else:
            prompts = list(itertools.islice(task.prompts(split), PROMPTS))
            assert prompts
            cases = [answered(task, prompt) for prompt in prompts]
        stored = [case_from_json(case_to_json(case), id) for case in cases]
        for score in task.score([*cases, *stored]):
            assert score.value == pytest.approx(task.value_range[1], rel=1e-6, abs=1e-9), score
            assert score.parts[task.metric] > 0
        if not task.acts and not task.multi_turn and not prompts[0].videos and not prompts[0].sounds:
            made = TrlTask(task, split, 0, PROMPTS, False, 1)
            said = [[{"role": "assistant", "content": case.completion}] for case in cases]
            columns = {name: made.train_dataset[name] for name in made.train_dataset.column_names if name != "prompt"}
            rewards = made.reward(completions=said, **columns)
            assert rewards == [pytest.approx(task.value_range[1], rel=1e-6, abs=1e-9)] * len(cases)


def answered(task: OpenTask, prompt: Prompt) -> mmrl.Case:
    """The case of a gold completion, or of an episode that gold turns play."""
    if not task.multi_turn:
        return task.case(prompt, task.gold(prompt))
    with task.episode(prompt, max_turns=50) as episode:
        while not episode.done and (turn := episode.gold_turn()) is not None:
            episode.step(turn)
        return episode.case()


def outcomes(id: str, options: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """How the simulator's expert ends its first episodes."""
    split = "demo" if id != "robotics/demos" else "test"
    episodes = expert_episodes(id, options, 2, split=split, environments=2)
    try:
        return [outcome for _, outcome in episodes]
    finally:
        episodes.close()


def played(task: OpenTask, outcome: Mapping[str, float]) -> mmrl.Case:
    return task.case(task.prompts("test")[0], "", outcome=outcome)


def test_every_bundled_task_is_in_the_table() -> None:
    """Those without options open without; the options that are given are of tasks that need them."""
    assert len(IDS) >= 77 and set(OPTIONS) <= set(IDS) and set(EVERYDAY) <= set(IDS)
    for id in OPTIONS:
        if id not in ("rendering/page", "rendering/plot", "gui/episodes"):
            with pytest.raises(UserError, match="needs the option"):
                mmrl.open_task(id)
