"""The tasks: maps whose answers are true, splits that share nothing, rows of one's own, and one clear line for bad input."""

import base64
import hashlib
import io
import json
import re
from collections import Counter, deque
from itertools import pairwise
from pathlib import Path

import pytest
from mmrl_transit import draw, network, reasonmap
from mmrl_transit.draw import layout, picture
from mmrl_transit.network import Ride, best_route, cost, stops_between, transfer_stations
from mmrl_transit.questions import KINDS
from mmrl_transit.reasonmap import Rows
from mmrl_transit.rewardmap import score as published
from mmrl_transit.task import Plans, Questions
from mmrl_transit.verifiers import route
from PIL import Image

from mmrl import Case, UserError
from mmrl.api.tasks.image_sources import chance, split_of
from mmrl.api.tasks.tables import DataTable
from mmrl.testing import check_plugin

LINES = {"Red": ["Oak", "Elm", "Bay", "Fir"], "Blue": ["Bay", "Hay", "Ivy"], "Green": ["Ivy", "Moor", "Elm", "Pier"]}


# -- networks and maps ------------------------------------------------------------------------------------------------------


def test_the_best_route_has_the_fewest_transfers_then_the_fewest_stops():
    assert best_route(LINES, "Oak", "Fir") == [Ride("Red", "Oak", "Fir")]
    found = best_route(LINES, "Oak", "Ivy")
    assert found == [Ride("Red", "Oak", "Elm"), Ride("Green", "Elm", "Ivy")] and cost(LINES, found) == (1, 3)
    assert best_route(LINES, "Oak", "Nowhere") is None and best_route(LINES, "Oak", "Oak") == []
    assert transfer_stations(LINES) == ["Bay", "Elm", "Ivy"]
    assert stops_between(["A", "B", "C", "D", "A"], "A", "D") == 1  # a ring


def rides_needed(lines, start):
    """Rides to every station, by breadth: another way to the same numbers."""
    reached, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for stops in lines.values():
            for there in stops if here in stops else ():
                if there not in reached:
                    reached[there] = reached[here] + 1
                    queue.append(there)
    return reached


@pytest.mark.parametrize("lines, stations", [(2, 3), (2, 4), (3, 5), (5, 6), (8, 8), (6, 3)])
def test_every_map_is_a_connected_network_that_can_be_drawn(lines, stations):
    for seed in range(12):
        plan = layout(chance(seed, "map"), lines, stations)
        assert len(plan.lines) == lines and {len(set(s)) for s in plan.lines.values()} == {stations}
        first = next(iter(plan.places))
        needed = rides_needed(plan.lines, first)
        assert set(needed) == set(plan.places)
        assert all(len(best_route(plan.lines, first, s)) == n for s, n in needed.items())
        assert max(Counter(s for stops in plan.lines.values() for s in stops).values()) <= 2
        track = [frozenset(pair) for stops in plan.lines.values() for pair in pairwise(stops)]
        assert len(set(track)) == len(track)
        middles = Counter(tuple(sum(plan.places[s][axis] for s in pair) for axis in (0, 1)) for pair in track)
        assert max(middles.values()) == 1  # no two tracks cross between stations
        assert all(max(abs(plan.places[a][i] - plan.places[b][i]) for i in (0, 1)) == 1 for a, b in map(tuple, track))


def test_a_map_shows_every_line_in_its_colour_between_its_stations():
    plan = layout(chance(3, "map"), 5, 6)
    image, points = picture(plan, 336)
    assert image.size == (336, 336) and len(set(points.values())) == len(plan.places)
    for line, stops in plan.lines.items():
        for a, b in pairwise(stops):
            middle = tuple((points[a][i] + points[b][i]) // 2 for i in (0, 1))
            near = {image.getpixel((middle[0] + dx, middle[1] + dy)) for dx in (-2, -1, 0, 1, 2) for dy in (-2, -1, 0, 1, 2)}
            assert draw.COLOURS[line] in near or len(plan.lines) > 3  # a name may lie over one
    assert all(image.getpixel(p) == (255, 255, 255) for p in points.values())


def test_names_hide_no_name(monkeypatch):
    boxes = []
    real = draw._room
    monkeypatch.setattr(draw, "_room", lambda *a: boxes.append(real(*a)) or boxes[-1])
    hidden = total = 0
    for seed in range(40):
        boxes.clear()
        picture(layout(chance(seed, "names"), 5, 6), 336)
        pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
        hidden += sum(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a, b in pairs)
        total += len(boxes)
    assert total > 800 and hidden <= total * 0.01


# -- the tasks --------------------------------------------------------------------------------------------------------------


def test_questions_are_true():
    seen = Counter()
    for prompt in Questions(size=200).prompts("train", 0)[:210]:
        meta, answer = prompt.meta, prompt.answer
        lines, ends, kind = meta["metro_data"], [meta["station1"], meta["station2"]], meta["kind"]
        line = next((w for w in prompt.text.split() if w in lines), "")
        seen[kind, answer] += 1
        if kind == "on":
            assert (answer == "yes") == (ends[0] in lines[line])
        elif kind == "direct":
            assert (answer == "yes") == (rides_needed(lines, ends[0])[ends[1]] == 1)
        elif kind == "lines":
            assert int(answer) == sum(ends[0] in s for s in lines.values())
        elif kind == "line":
            assert [name for name, s in lines.items() if set(ends) <= set(s)] == [answer]
        elif kind == "transfers":
            assert int(answer) == sum(any(s in other for name, other in lines.items() if name != line) for s in lines[line])
        else:
            between = abs(lines[line].index(ends[0]) - lines[line].index(ends[1])) - 1
            shown = dict(re.findall(r"([A-D])\) (\d+)", prompt.text))
            assert int(shown[answer] if kind == "choice" else answer) == between > 0
    assert {k for k, _ in seen} == set(KINDS)
    for kind in ("on", "direct"):
        assert min(seen[kind, "yes"], seen[kind, "no"]) >= 8
    assert len([a for k, a in seen if k == "choice"]) == 4


def test_no_answer_is_a_good_guess(monkeypatch):
    """The best constant answer to each kind, and of a choice the best number and letter, found with the answers known."""
    counts, offered = {kind: Counter() for kind in KINDS}, Counter()
    blank = Image.new("RGB", (8, 8))
    monkeypatch.setattr(draw, "picture", lambda plan, size: (blank, dict.fromkeys(plan.places, (0, 0))))  # drawing takes the time
    for prompt in Questions().prompts("train", 0)[:840]:
        counts[prompt.meta["kind"]][prompt.answer] += 1
        if prompt.meta["kind"] == "choice":
            shown = dict(re.findall(r"([A-D])\) (\d+)", prompt.text))
            offered[shown[prompt.answer]] += 1
    best = {kind: max(found.values()) / found.total() for kind, found in counts.items()}
    assert max(best["on"], best["direct"], best["lines"]) < 0.6 and best["choice"] < 0.35 and best["line"] < 0.25
    assert max(best["stops"], best["transfers"], offered.most_common(1)[0][1] / offered.total()) < 0.45, (best, offered)
    assert sum(best.values()) / len(best) < 0.43


def test_plans_are_best_routes_of_the_transfers_that_are_asked_for():
    for level, options in (("easy", {0, 1}), ("middle", {1}), ("hard", {1, 2})):
        found = set()
        for prompt in Plans(level=level, size=200).prompts("train", 0)[:40]:
            meta = prompt.meta
            needed = rides_needed(meta["metro_data"], meta["station1"])[meta["station2"]]
            assert needed - 1 == meta["question_transfer_count"] == meta["best"][0] == prompt.answer.count(";")
            assert f"from {meta['station1']} to {meta['station2']}" in prompt.text
            found.add(needed - 1)
        assert found == options
    prompt = Plans(lines=6, transfers=[3], size=200).prompts("test", 0)[0]
    assert prompt.answer.count(";") == 3


@pytest.mark.slow
@pytest.mark.parametrize("task", [Questions, Plans])
def test_splits_show_different_maps_and_the_runs_seed_changes_nothing(task):
    made = task(size=200)

    def maps(split, seed=0, n=150):
        return [hashlib.sha256(p.images[0].tobytes()).hexdigest() for p in made.prompts(split, seed)[:n]]

    parts = {split: maps(split) for split in made.splits}
    assert made.splits == ("warm", "train", "test") and len(made.prompts("train", 0)) == 2000
    assert len({m for part in parts.values() for m in part}) == 450
    assert maps("test", 5, 5) == parts["test"][:5]
    assert [p.id for p in made.prompts("test", 0)[:2]] == ["test-0", "test-1"]
    made = task(size=200, seed=1)
    assert maps("test", 0, 5) != parts["test"][:5]


@pytest.mark.parametrize("task", [Questions(size=200), Plans(size=200), Questions(size=200, lines=2), Plans(size=200, lines=5)])
def test_difficulty_is_known_before_a_map_is_drawn(task):
    prompts = task.prompts("train", 0)
    for n in range(24):
        assert prompts.difficulty(n) == prompts[n].meta["difficulty"]


def test_difficulty_rises_with_kind_lines_and_transfers():
    questions = Questions(size=200).prompts("train", 0)[:21]
    assert [p.meta["difficulty"] for p in questions[:4]] == pytest.approx([0.2, 0.3, 0.5, 1.2])
    plans = {p.meta["difficulty"] for p in Plans(size=200).prompts("train", 0)[:30]}
    assert min(plans) > max(p.meta["difficulty"] for p in questions) and {7.2, 8.2, 8.3, 9.5} <= {round(d, 1) for d in plans}


def test_words_of_each_style():
    def first(task):
        return task.gold(task.prompts("train", 0)[0]), task.prompts("train", 0)[0].text

    question = "Is Lane on the Blue line?\nAnswer in <answer></answer>: yes or no."
    assert first(Questions(size=200)) == ("<answer>no</answer>", question)
    assert first(Questions(size=200, style="plain"))[0] == "no"
    assert first(Questions(size=200, style="tags"))[0] == "<think>I look at Lane.</think>\n<answer>no</answer>"
    assert first(Questions(size=200, style="rewardmap"))[0] == "\\boxed{no}"
    gold, text = first(Plans(size=200))
    assert text.startswith("Travel from ") and gold.startswith("<answer>") and " > " in gold


@pytest.mark.parametrize("task", [Questions, Plans])
def test_the_published_reward_reads_the_style_rewardmap(task):
    made = task(size=200, style="rewardmap", level="hard", **({"lines": 6, "transfers": [3]} if task is Plans else {}))
    for prompt in made.prompts("train", 0)[:20]:
        value = published(Case(completion=made.gold(prompt), answer=prompt.answer, meta=prompt.meta))
        assert value == (30 if task is Plans else 15)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"level": "huge"}, "level = 'huge' is unknown: choose one of easy, middle, hard, mixed"),
        ({"style": "loud"}, "style = 'loud' is unknown: choose one of short, tags, plain, rewardmap"),
        ({"lines": 1}, "lines = 1 must be a whole number from 2 to 8"),
        ({"stations": 2.5}, "stations = 2.5 must be a whole number from 3 to 8"),
        ({"size": 100}, "size = 100 must be a whole number from 200 to 2048"),
        ({"size": None}, "size = None must be a whole number from 200 to 2048"),
        ({"items": {"train": 0}}, "items = .* must be a table of splits"),
        ({"items": 5}, "items = 5 must be a table of splits"),
        *(({"seed": wrong}, "seed = .* must be a whole number") for wrong in ("3", {}, "\0", 1.5, True)),
        ({"items": {"train": "x" * 9000}}, "items = .{190,220} must be a table of splits"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, message):
    for task in (Questions, Plans):
        with pytest.raises(UserError, match=message):
            task(**options)


def test_options_of_one_task():
    for options, message in (
        ({"kinds": ["on", "off"]}, "kinds = 'off' is unknown: choose one of on, direct"),
        ({"kinds": []}, r"kinds = \[\] must be a list"),
        ({"kinds": ["line"], "style": "rewardmap"}, "kinds = 'line' is unknown"),
    ):
        with pytest.raises(UserError, match=message):
            Questions(**options)
    for options, message in (
        ({"transfers": [5]}, "transfers = 5 must be a whole number from 0 to 4"),
        ({"transfers": 1}, "transfers = 1 must be a list"),
        ({"transfers": [2], "level": "easy"}, "2 transfers need more than the 2 lines of level easy"),
    ):
        with pytest.raises(UserError, match=message):
            Plans(**options)
    with pytest.raises(UserError, match="there is no split 'dev': choose one of warm, train, test"):
        Plans().prompts("dev", 0)
    assert {p.meta["kind"] for p in Questions(kinds=["stops"], size=200).prompts("train", 0)[:9]} == {"stops"}


# -- rows of one's own ------------------------------------------------------------------------------------------------------


def row(i, kind="planning", **changes):
    stops = [f"{s} (Transfer Station)" if s == "Bay" else s for s in LINES["Red"]]
    found = {
        **{"figure": "map.png", "type": kind, "difficulty_city": "easy", "station_1": "Oak", "station_2": "Ivy"},
        **{"question": f"Question {i}?", "answer": 1, "metro_data": {**LINES, "Red": stops}, "question_transfer_count": 1},
    }
    return {k: v for k, v in {**found, **changes}.items() if v is not ...}


@pytest.fixture
def table(tmp_path):
    def write(rows, name="rows.jsonl"):
        for figure in {"map.png", *(r["figure"] for r in rows if isinstance(r, dict) and r.get("figure"))}:
            if not (tmp_path / figure).exists():
                Image.new("RGB", (64, 64), "white").save(tmp_path / figure)
        (tmp_path / name).write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows), encoding="utf-8")
        return str(tmp_path / name)

    return write


def everything(task):
    return [p for split in task.splits for p in task.prompts(split, 0)]


def test_rows_of_reasonmap_are_read(table, tmp_path):
    kinds = ["TorF1", "Counting1", "Counting2", "planning"]
    path = table([row(i, kinds[i % 4], figure=f"{i // 4}.png") for i in range(80)])
    task = Rows(path=path)
    prompts = everything(task)
    assert len(prompts) == 80 and len({p.id for p in prompts}) == 80 and 8 <= len(task.prompts("test", 0)) <= 40
    maps = [{p.images for p in task.prompts(split, 0)} for split in ("train", "test")]
    assert not maps[0] & maps[1] and len(maps[0] | maps[1]) == 20, "a map has all its questions in one split"
    by_kind = {p.meta["type"]: p for p in prompts}
    assert [by_kind[k].answer for k in kinds] == ["yes", "B", "1", "Red: Oak > Elm; Green: Elm > Ivy"]
    assert by_kind["planning"].text.startswith("Travel from Oak to Ivy") and by_kind["planning"].meta["best"] == (1, 3)
    assert by_kind["planning"].meta["metro_data"]["Red"] == LINES["Red"]
    assert Path(by_kind["planning"].images[0]).parent == tmp_path
    assert by_kind["TorF1"].text.endswith("Answer in <answer></answer>: yes or no.")
    assert {p.meta["type"] for p in everything(Rows(path=path, kinds=["planning"]))} == {"planning"}
    asked = {p.meta["type"]: p for p in everything(Rows(path=path, style="rewardmap"))}
    assert asked["TorF1"].text.startswith("Question") and asked["TorF1"].text.endswith("?") and asked["Counting1"].answer == 1


def test_rows_as_reasonmap_has_them_are_plans(tmp_path):
    """Its own rows have no type, a picture in base64, two questions, and the network as JSON."""
    picture = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(picture, "PNG")
    own = {"figure": base64.b64encode(picture.getvalue()).decode(), "json": json.dumps(LINES), "question_short": "Go?"}
    rows = [
        row(i, **own, question_long="Go, how far?", **dict.fromkeys(("type", "question", "metro_data"), ...)) for i in range(4)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    for options in ({}, {"style": "rewardmap"}, {"kinds": ["planning"]}):
        task = Rows(path=str(tmp_path / "rows.json"), test_path=str(tmp_path / "rows.json"), **options)
        prompt = task.prompts("test", 0)[0]
        assert prompt.meta["type"] == "planning" and prompt.meta["metro_data"] == LINES and prompt.images == (picture.getvalue(),)
        assert prompt.text == "Go?" if options.get("style") else prompt.text.startswith("Travel from Oak to Ivy")


def test_questions_about_one_embedded_map_are_in_one_split(tmp_path, monkeypatch):
    for i in range(20):
        Image.new("RGB", (32, 32), (i, 0, 0)).save(tmp_path / f"{i}.png")
    rows = [row(i, "TorF1", figure=(tmp_path / f"{i // 4}.png").read_bytes()) for i in range(80)]
    monkeypatch.setattr(reasonmap, "read_table", lambda path, **_: DataTable(path, len(rows), rows.__getitem__))
    monkeypatch.setattr(reasonmap, "own_test", lambda path, train: train)
    task = Rows(path="maps.parquet")
    maps = [{p.images for p in task.prompts(split, 0)} for split in ("train", "test")]
    assert not maps[0] & maps[1] and len(maps[0] | maps[1]) == 20


def test_transfers_of_a_plan_are_those_of_the_best_route_if_unset_and_a_text_in_csv(table, tmp_path):
    rows = [row(0, question_transfer_count=...), row(1, question_transfer_count=None), row(2, question_transfer_count="2")]
    path = table([*rows, row(3, question_transfer_count="some")])
    prompts = Rows(path=path, test_path=path, style="rewardmap").prompts("train", 0)
    assert [prompts[i].meta["question_transfer_count"] for i in range(3)] == [1, 1, 2]
    with pytest.raises(UserError, match="line 4: question_transfer_count = 'some' must be a whole number"):
        prompts[3]


def test_networks_may_lie_in_files_and_tests_in_another_table(table, tmp_path):
    (tmp_path / "net.json").write_text(json.dumps(LINES))
    first = table([row(0, metro_data=..., json="net.json")])
    second = table([row(1, station_2="Hay")], "test.jsonl")
    task = Rows(path=first, test_path=second)
    assert [p.meta["station2"] for p in everything(task)] == ["Ivy", "Hay"]
    assert [p.id for p in everything(task)] == ["train-0", "test-0"]


def test_questions_need_no_stations_and_plans_do(table):
    bare = [row(i, kind, station_1=..., station_2=None) for i, kind in enumerate(("TorF1", "Counting3", "planning"))]
    prompts = Rows(path=table(bare), test_path=table([row(9)], "test.jsonl")).prompts("train", 0)
    assert [prompts[i].answer for i in (0, 1)] == ["yes", "1"]
    with pytest.raises(UserError, match="line 3 has no key 'station_1'"):
        prompts[2]


def test_a_table_of_one_map_says_that_tables_are_cut_by_figure(table):
    task = Rows(path=table([row(i) for i in range(9)]))
    full, empty = sorted(task.splits, key=lambda split: split_of("map.png", 0) != split)
    assert len(task.prompts(full, 0)) == 9
    with pytest.raises(UserError, match=f"split '{empty}' of .* is empty: .* all 9 rows show one figure: give more maps"):
        task.prompts(empty, 0)
    with pytest.raises(UserError, match="seed = '3' must be a whole number"):
        Rows(path=table([row(0)]), seed="3")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"type": "essay"}, "type = 'essay' is unknown: choose one of TorF1"),
        ({"difficulty_city": "huge"}, "difficulty_city = 'huge' is unknown"),
        ({"station_1": "Atlantis"}, "station 'Atlantis' is on no line"),
        ({"station_2": "Oak"}, "no route leads from 'Oak' to 'Oak'"),
        ({"station_1": 7}, "station_1 = 7 must be a text"),
        ({"metro_data": []}, "metro_data must be an object of lines"),
        ({"metro_data": {"Red": ["Oak"]}}, "metro_data must be an object of lines"),
        ({"metro_data": ..., "json": "none.json"}, r"the network .*none.json can't be read"),
        ({"metro_data": ...}, "has no key 'json'"),
        ({"figure": ...}, "has no key 'figure'"),
        ({"figure": ""}, "empty path"),
        ({"type": "TorF1", "answer": 7}, "answer = 7 must be a whole number from 0 to 1"),
        ({"type": "Counting1", "answer": "B"}, "answer = 'B' must be a whole number: 1 or 0"),
        ({"type": "Counting2", "answer": 1.5}, "answer = 1.5 must be a whole number"),
    ],
)
def test_broken_rows_are_named_when_they_are_asked_for(table, change, message):
    path = table([row(0), row(1, **change)])
    task = Rows(path=path, test_path=table([row(2)], "test.jsonl"))
    prompts = task.prompts("train", 0)
    assert len(prompts) == 2 and prompts[0].answer
    with pytest.raises(UserError, match=rf"rows.jsonl line 2.*{message}"):
        prompts[1]


def test_tables_that_are_none_are_refused(table):
    with pytest.raises(UserError, match="does not exist"):
        Rows(path="/nowhere/rows.jsonl")
    path = table([row(0), "{broken"])
    with pytest.raises(UserError, match=r"rows.jsonl line 2 is no JSON"):
        list(Rows(path=path, test_path=table([row(2)], "test.jsonl")).prompts("train", 0))
    with pytest.raises(UserError, match=r"split 'test' of .* is empty"):
        Rows(path=path, test_path=table([], "test.jsonl")).prompts("test", 0)


def test_a_route_is_scored_against_a_large_network_in_time():
    lines = {f"Line {i}": [f"s{i}-{j}" for j in range(30)] + [f"s{i + 1}-0"] for i in range(20)}
    found = best_route(lines, "s0-5", "s15-5")
    assert len(found) == 16
    meta = {"metro_data": lines, "station1": "s0-5", "station2": "s15-5"}
    assert route(Case(completion="<answer>" + "\n".join(map(str, found)) + "</answer>", meta=meta)).value == 1
    assert network.cost(lines, found)[0] == 15


# -- the whole --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_everything_passes_the_conformance_kit(table, tmp_path):
    rows = [row(i, ["TorF1", "Counting2", "planning"][i % 3], answer=i % 2, figure=f"{i}.png") for i in range(30)]
    for i in range(30):
        Image.new("RGB", (32, 32), (i, 0, 0)).save(tmp_path / f"{i}.png")
    few = {"items": {"warm": 16, "train": 40, "test": 16}, "size": 200}
    check_plugin("transit", n=8, options={"transit/rows": {"path": table(rows)}, "transit/plan": few, "transit/question": few})


@pytest.mark.parametrize("task", ["transit/question", "transit/plan"])
def test_a_tiny_model_trains_on_it(task, tmp_path):
    runs = pytest.importorskip("runs", reason="tests/support of mmrl's repository")
    options = {"level": "easy", "size": 200, "items": {"warm": 8, "train": 8, "test": 4}}
    stages = [
        {"kind": "sft", "steps": 2, "batch_size": 4, "split": "warm", "learning_rate": 1e-3},
        {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 2, "learning_rate": 1e-3},
    ]
    config = runs.toy_config(tmp_path, tasks=[{"id": task, "options": options}], stages=stages)
    steps = [r for r in runs.rows(runs.run(config)) if "metrics" in r]
    assert len(steps) >= 4 and all(v == v for r in steps for v in r["metrics"].values())
