"""The tasks: pictures that their code draws, splits that share nothing, files of one's own, and one clear line for bad input."""

import json
import subprocess
import sys

import pytest
from mmrl_rendering import chart as charts
from mmrl_rendering import shapes
from mmrl_rendering.code import render
from mmrl_rendering.task import Charts, Own, Svg
from PIL import Image

from mmrl import UserError
from mmrl.testing import check_plugin
from mmrl.testing.cases import mostly_slow

CODE = '<svg viewBox="0 0 100 50"><rect width="{0}" height="30" fill="red"/></svg>'
CHART = {"type": "pie", "title": "T", "labels": ["a", "b"], "series": [{"values": [1, 3]}]}


@pytest.mark.parametrize("make", [Svg, lambda **o: Svg(code="short", **o), Charts])
@pytest.mark.parametrize("level", ["easy", "middle", "hard"])
def test_the_answer_draws_the_picture(make, level):
    task = make(level=level)
    for prompt in task.prompts("train", 0)[:12]:
        shown = render(task.gold(prompt), prompt.meta["code"], prompt.images[0].size)
        assert shown.tobytes() == prompt.images[0].tobytes()
        assert any(low != high for low, high in shown.getextrema())
        if prompt.meta["code"] != "chart":
            assert prompt.meta["length"] == len(prompt.answer)


def test_levels_have_more_and_more_shapes():
    for code in ("svg", "short"):
        counts = {}
        for level in ("easy", "middle", "hard"):
            prompts = Svg(level=level, code=code, size=28).prompts("train", 0)[:15]
            counts[level] = {round((p.meta["difficulty"] % 1) * 10) for p in prompts}
        assert counts["easy"] == {1} and counts["middle"] == {2, 3} and counts["hard"] == {4, 5, 6}
    kinds = {
        level: {p.meta["chart"]["type"] for p in Charts(level=level).prompts("train", 0)[:30]} for level in ("middle", "hard")
    }
    assert kinds == {"middle": {"bar", "line", "pie"}, "hard": {"bar", "line", "scatter"}}


@pytest.mark.parametrize(
    "make", mostly_slow([lambda **o: Svg(size=28, **o), lambda **o: Svg(code="short", size=28, **o), Charts], everyday=1)
)
def test_splits_show_different_pictures_even_the_simplest(make):
    task = make(level="easy", items={"train": 200, "test": 100})
    shown = {s: {p.images[0].tobytes() + p.answer.encode() for p in task.prompts(s, 0)} for s in task.splits}
    answers = {s: {p.answer for p in task.prompts(s, 0)} for s in task.splits}
    assert not shown["train"] & shown["test"] and not answers["train"] & answers["test"]
    assert len(answers["train"]) > 150
    assert [p.answer for p in task.prompts("test", 5)[:5]] == [p.answer for p in task.prompts("test", 0)[:5]]
    assert [p.answer for p in make(level="easy", seed=1).prompts("test", 0)[:5]] != [
        p.answer for p in task.prompts("test", 0)[:5]
    ]


def test_another_process_with_another_hash_seed_makes_the_same():
    program = (
        "import hashlib; from mmrl_rendering.task import Charts, Svg\n"
        "print([(p.id, p.text, p.answer, hashlib.sha256(p.images[0].tobytes()).hexdigest())"
        " for t in (Svg(), Svg(code='short'), Charts()) for p in t.prompts('test', 0)[:6]])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": s, "PATH": ""}
        ).stdout
        for s in "12"
    }
    assert len(runs) == 1 and len(runs.pop()) > 1000


def test_a_thought_may_be_asked_for():
    task = Svg(think=True)
    prompt = task.prompts("train", 0)[0]
    assert "<think>" in prompt.text and task.gold(prompt).startswith("<think>")
    assert render(task.gold(prompt), "svg", (112, 112)).tobytes() == prompt.images[0].tobytes()


def test_shapes_are_svg_in_few_words():
    assert shapes.to_svg("line 1 2 3 4 red\ntriangle 1 2 3 4 5 6 blue;") == (
        '<svg viewBox="0 0 100 100"><line x1="1" y1="2" x2="3" y2="4" stroke="red" stroke-width="4"/>'
        '<polygon points="1,2 3,4 5,6" fill="blue"/></svg>'
    )


@pytest.mark.parametrize(
    "make, options, message",
    [
        (Svg, {"level": "huge"}, "level = 'huge' is unknown: choose one of easy, middle, hard, mixed"),
        (Svg, {"code": "html"}, "code = 'html' is unknown: choose one of svg, short"),
        (Svg, {"code": "chart"}, "code = 'chart' is unknown: choose one of svg, short"),
        (Svg, {"code": "latex"}, "code = 'latex' is unknown: choose one of svg, short"),
        (Svg, {"size": 5}, "size = 5 must be a whole number from 28 to 512"),
        (Svg, {"think": "yes"}, "think = 'yes' must be true or false"),
        *(
            (make, {"seed": wrong}, "seed = .* must be a whole number")
            for make in (Svg, Charts)
            for wrong in ("3", {}, "\0", True)
        ),
        (Own, {"path": ".", "seed": "3"}, "seed = '3' must be a whole number"),
        (Own, {"path": ".", "think": float("nan")}, "think = nan must be true or false"),
        (Own, {"path": 5}, "path = 5 must be a text"),
        (Own, {"path": "x" * 3000}, r"\.\.\.x* .*File name too long"),
        (Own, {"path": "no/such/folder"}, "no/such/folder does not exist, and is no data set on the Hub"),
        (Charts, {"size": 2000}, "size = 2000 must be"),
        (Charts, {"items": {}}, "items = {} must be a table of splits"),
        (Own, {"path": ".", "code": "latex"}, "code = 'latex' is unknown: choose one of svg, short, chart, html"),
        (Own, {"path": "/nowhere.jsonl"}, "does not exist"),
    ],
)
def test_bad_options_are_refused_in_one_line(make, options, message):
    with pytest.raises(UserError, match=message):
        make(**options)


# -- one's own --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    for i in range(24):
        where = tmp_path / "icons" / ("a" if i % 2 else "b")
        where.mkdir(parents=True, exist_ok=True)
        (where / f"{i}.svg").write_text(f'<?xml version="1.0"?>\n<!DOCTYPE svg>\n{CODE.format(10 + i)}\n', encoding="utf-8")
    return tmp_path


def test_a_folder_of_svg_files(folder):
    task = Own(path=str(folder / "icons"), size=50)
    parts = {s: list(task.prompts(s, 0)) for s in task.splits}
    assert sum(map(len, parts.values())) == 24 and min(map(len, parts.values())) >= 2
    prompt = parts["train"][0]
    assert prompt.id.startswith("train/") and prompt.images[0].size == (50, 25) and prompt.answer.startswith("<svg")
    assert render(task.gold(prompt), "svg", (50, 25)).tobytes() == prompt.images[0].tobytes()
    assert not {p.answer for p in parts["train"]} & {p.answer for p in parts["test"]}
    (folder / "icons" / "a" / "99.svg").write_text("<svg><text>x</text></svg>")
    with pytest.raises(UserError, match=r"icons/a/99.svg: its code can't be used: the element 'text' is not drawn here"):
        [p for s in task.splits for p in Own(path=str(folder / "icons")).prompts(s, 0)]
    with pytest.raises(UserError, match=r"has no pictures"):
        Own(path=str(folder / "icons" / "c" if (folder / "icons" / "c").mkdir() is None else ""))


def test_rows_with_code_pictures_and_files(folder):
    Image.new("RGB", (30, 20), "teal").save(folder / "shot.png")
    rows = [{"code": CODE.format(9)}, {"code": "icons/b/0.svg"}, {"code": CODE.format(8), "image": "shot.png"}]
    for name in ("rows.jsonl", "test.jsonl"):
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    prompts = Own(path=str(folder / "rows.jsonl"), test_path=str(folder / "test.jsonl")).prompts("train", 0)
    assert [p.images[0].size for p in prompts] == [(224, 112), (224, 112), (30, 20)]
    assert prompts[1].answer == CODE.format(10) and [p.id for p in prompts] == ["train/row-0", "train/row-1", "train/row-2"]


def test_a_data_set_without_a_test_split_is_divided(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"code": CODE.format(4 + i)} for i in range(24)])
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "set")
    task = Own(path=str(tmp_path / "set"))
    parts = [{p.answer for p in task.prompts(split, 0)} for split in task.splits]
    assert all(parts) and not parts[0] & parts[1] and len(parts[0] | parts[1]) == 24


def test_rows_of_charts_and_shapes(tmp_path):
    rows = [{"code": CHART}, {"code": json.dumps(CHART)}]
    for name in ("rows.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    task = Own(path=str(tmp_path / "rows.jsonl"), test_path=str(tmp_path / "test.jsonl"), code="chart")
    assert [p.meta["chart"] for p in task.prompts("train", 0)] == [charts.as_json(charts.read(CHART))] * 2
    (tmp_path / "s.jsonl").write_text(json.dumps({"text": "rect 1 2 30 40 red"}))
    task = Own(path=str(tmp_path / "s.jsonl"), test_path=str(tmp_path / "s.jsonl"), code="short", code_column="text", size=64)
    assert task.prompts("train", 0)[0].images[0].getpixel((10, 10)) == (255, 0, 0)


@pytest.mark.parametrize(
    "row, message",
    [
        ("{broken", "is no JSON"),
        ({}, "has no key 'code'"),
        ({"code": 7}, "the code must be a text, not 7"),
        ({"code": ""}, "the code must be a text"),
        ({"code": "none.svg"}, "the file none.svg can't be read"),
        ({"code": "<svg></svg>"}, "nothing is drawn"),
        ({"code": '<svg><image href="x"/></svg>'}, "the element 'image' is not drawn here"),
        ({"code": CODE.format(9), "image": "none.png"}, "does not exist"),
    ],
)
def test_broken_rows_are_named_when_they_are_asked_for(tmp_path, row, message):
    lines = [json.dumps({"code": CODE.format(9)}), row if isinstance(row, str) else json.dumps(row)]
    for name in ("rows.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("\n".join(lines))
    prompts = Own(path=str(tmp_path / "rows.jsonl"), test_path=str(tmp_path / "test.jsonl")).prompts("train", 0)
    assert prompts[0].answer == CODE.format(9)
    with pytest.raises(UserError, match=rf"rows.jsonl line 2.*{message}"):
        prompts[1]


# -- the whole --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_everything_passes_the_conformance_kit(folder):
    few = {"items": {"warm": 12, "train": 30, "test": 12}}
    check_plugin(
        "rendering",
        n=8,
        options={
            "rendering/rows": {"path": str(folder / "icons")},
            "rendering/svg": few,
            "rendering/chart": few,
            "rendering/page": {"size": 112, "items": {"train": 2, "test": 2}},
            "rendering/plot": {"size": 160, "items": {"train": 2, "test": 2}},
        },
        skip=["rendering/page", "rendering/plot"],  # need a browser and a sandbox, see test_html.py and test_plots.py
    )


@pytest.mark.parametrize("task, options", [("rendering/svg", {"code": "short", "size": 56}), ("rendering/chart", {"size": 160})])
def test_a_tiny_model_trains_on_it(task, options, tmp_path):
    runs = pytest.importorskip("runs", reason="tests/support of mmrl's repository")
    options = {"level": "easy", "items": {"warm": 8, "train": 8, "test": 4}, **options}
    stages = [
        {"kind": "sft", "steps": 2, "batch_size": 4, "split": "warm", "learning_rate": 1e-3},
        {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 2, "learning_rate": 1e-3},
    ]
    config = runs.toy_config(tmp_path, tasks=[{"id": task, "options": options}], stages=stages)
    steps = [r for r in runs.rows(runs.run(config)) if "metrics" in r]
    assert len(steps) >= 4 and all(v == v for r in steps for v in r["metrics"].values())
