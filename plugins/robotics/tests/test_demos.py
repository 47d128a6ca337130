"""Data sets of demonstrations: what was recorded is what is read, of both versions; what is broken is named in one line."""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import torch
from mmrl_robotics import mmrl_tasks, record
from mmrl_robotics.demos import Demos
from mmrl_robotics.record_files import Tables, Videos

from mmrl import UserError
from mmrl.api.services import expert_episodes
from mmrl.api.simulators.types import Demonstration
from mmrl.registry import plugins
from mmrl.rollout.simulators.demonstrations import task_demonstration
from mmrl.rollout.simulators.initial import initial_observations
from mmrl.testing import check_task
from mmrl.ui.cli import main

OPTIONS = {"dims": 4, "size": 32, "cameras": ["front", "wrist"]}
COUNT = 5


@pytest.fixture(scope="module")
def played():
    """(the expert's episodes, what an action is)."""
    episodes = expert_episodes("robotics/pick", OPTIONS, COUNT, environments=2)
    shown = [demonstration for demonstration, _ in episodes]
    episodes.close()
    return shown, episodes.action


@pytest.fixture(scope="module")
def made(played, tmp_path_factory):
    """Kind -> a folder with the same episodes."""
    shown, action = played
    root = tmp_path_factory.mktemp("demos")
    for name, video in (("png", False), ("mp4", True)):
        assert record.write(root / f"{name}-v3", shown, fps=5.0, video=video) == COUNT
        as_version_2(root / f"{name}-v3", root / name)
    record.write(root / "physical", [record.physical(d, action) for d in shown], fps=5.0)
    return {path.name: path for path in root.iterdir()}


TABLE = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


def as_version_2(new: Path, old: Path) -> None:
    """The same data in the layout of version 2.1: a table and, for each camera, a video of each episode."""
    info = json.loads((new / "meta" / "info.json").read_text())
    listed = pq.read_table(new / record.EPISODES).to_pylist()
    named = pq.read_table(new / record.TASKS).to_pylist()
    table = pq.read_table(new / "data/chunk-000/file-000.parquet")
    (old / "meta").mkdir(parents=True)
    for row in listed:
        place = {"episode_chunk": 0, "episode_index": row["episode_index"]}
        path = old / TABLE.format(**place)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table[row["dataset_from_index"] : row["dataset_to_index"]], path)
        for key in [key for key, feature in info["features"].items() if feature["dtype"] == "video"]:
            whole = Videos(old, key, info["fps"])
            whole.pattern = VIDEO.format(**place, video_key=key)
            pictures = frames(new / f"videos/{key}/chunk-000/file-000.mp4")
            whole.add(pictures[row["dataset_from_index"] : row["dataset_to_index"]])
            whole.close()
    write_lines(old / "meta/episodes.jsonl", [{name: e[name] for name in ("episode_index", "tasks", "length")} for e in listed])
    write_lines(old / "meta/tasks.jsonl", [{"task_index": t["task_index"], "task": t["task"]} for t in named])
    shutil.copyfile(new / "meta/stats.json", old / "meta/stats.json")
    info |= {"codebase_version": "v2.1", "data_path": TABLE, "video_path": VIDEO}
    (old / "meta/info.json").write_text(json.dumps(info))


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def frames(path: Path) -> np.ndarray:
    """All pictures of a video, one after the other: the slow reference for access by time."""
    import av

    with av.open(str(path)) as video:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)])


def moments(task):
    return [(p, task.demonstration(p)) for p in task.prompts("demo", 0)]


# -- what was recorded is what is read --------------------------------------------------------------------------------------


def test_each_frame_has_the_instruction_of_its_moment(played, tmp_path):
    """LeRobot's format has a task for each frame, and lists those of an episode once."""
    whole = played[0][0]
    count, text = len(whole.actions_MA), whole.instruction
    told = (text, *["push it."] * (count - 2), text)
    record.write(tmp_path / "data", [played[0][1], replace(whole, instructions=told)], fps=5.0)
    first = played[0][1].instruction
    found = moments(Demos(folder=str(tmp_path / "data")))
    assert [d.instruction for p, d in found if p.meta["episode"] == 1] == list(told)
    assert {d.instruction for p, d in found if p.meta["episode"] == 0} == {first}
    ends = [1, *[count - 1] * (count - 2), count]
    for (_, shown), at, end in zip(found[-count:], range(count), ends, strict=True):
        assert torch.equal(shown.actions_MA, whole.actions_MA[at:end]), "what is done for the next instruction is another's"
    rows = pq.read_table(tmp_path / "data" / record.EPISODES).to_pylist()
    assert [row["tasks"] for row in rows] == [[first], [text, "push it."]]
    assert json.loads((tmp_path / "data/meta/info.json").read_text())["total_tasks"] == len({first, text, "push it."})


@pytest.mark.parametrize("kind", ["png", "png-v3", "mp4", "mp4-v3"])
def test_what_was_recorded_is_what_is_read(made, played, kind):
    found = moments(Demos(folder=str(made[kind])))
    assert len(found) == sum(len(d.actions_MA) for d in played[0])
    for prompt, shown in found:
        whole, at = played[0][prompt.meta["episode"]], prompt.meta["step"]
        assert shown.instruction == whole.instruction and not shown.physical_units
        assert torch.equal(shown.actions_MA, whole.actions_MA[at:]) and torch.equal(shown.state, whole.state[at : at + 1])
        assert list(shown.images) == ["front", "wrist"]
        for camera, picture in shown.images.items():
            apart = (picture[0].int() - whole.images[camera][at].int()).abs()
            if kind.startswith("png"):
                assert not apart.any()
            else:
                assert apart.float().mean() < 6
    assert len({p.id for p, _ in found}) == len(found)


def test_a_version_is_read_as_the_others_are(made, tmp_path):
    shutil.copytree(made["mp4"], tmp_path / "old")
    info(codebase_version="v2.0")(tmp_path / "old")
    first, second = (moments(Demos(folder=str(folder))) for folder in (tmp_path / "old", made["mp4-v3"]))
    assert [prompt.meta for prompt, _ in first] == [prompt.meta for prompt, _ in second] and len(first) > COUNT
    for (_, a), (_, b) in zip(first, second, strict=True):
        assert torch.equal(a.actions_MA, b.actions_MA)
        assert all((a.images[c].int() - b.images[c].int()).abs().float().mean() < 6 for c in b.images)


@pytest.mark.parametrize("video", [False, True])
def test_a_file_that_has_its_size_is_followed_by_another(played, tmp_path, monkeypatch, video):
    for files in (Tables, Videos):
        monkeypatch.setattr(files.__init__, "__defaults__", (0,))
    monkeypatch.setattr("mmrl_robotics.record_files.CHUNK", 2)
    record.write(tmp_path / "demos", played[0], fps=5.0, video=video)
    ends = ["*front/*/*.mp4", "data/*/*.parquet"] if video else ["data/*/*.parquet"]
    for end in ends:
        names = [f"{path.parent.name}/{path.stem}" for path in sorted((tmp_path / "demos").rglob(end))]
        assert names == [f"chunk-{n // 2:03d}/file-{n % 2:03d}" for n in range(COUNT)]
    found = moments(Demos(folder=str(tmp_path / "demos")))
    assert len(found) == sum(len(d.actions_MA) for d in played[0])
    for prompt, shown in found:
        whole, at = played[0][prompt.meta["episode"]], prompt.meta["step"]
        assert torch.equal(shown.actions_MA, whole.actions_MA[at:])
        assert (shown.images["wrist"][0].int() - whole.images["wrist"][at].int()).abs().float().mean() < 6


@pytest.mark.parametrize("kind", ["mp4", "mp4-v3"])
def test_a_frame_of_a_video_is_the_one_of_its_time(made, kind):
    """Found by its time in any order, against all frames decoded one after the other."""
    found = moments(Demos(folder=str(made[kind]), cameras={"eye": "observation.images.wrist"}))
    videos = sorted(made[kind].glob("videos/**/*wrist/**/*.mp4"))
    every = np.concatenate([frames(path) for path in videos])
    order = list(enumerate(found))
    random.Random(0).shuffle(order)
    for number, (prompt, _) in order:
        again = Demos(folder=str(made[kind]), cameras={"eye": "observation.images.wrist"}).demonstration(prompt)
        assert np.array_equal(again.images["eye"][0].numpy(), every[number])


@pytest.mark.parametrize("kind", ["png", "png-v3", "mp4-v3"])
def test_nothing_depends_on_how_much_is_kept(made, kind):
    plenty, none = (moments(Demos(folder=str(made[kind]), cache_mb=mb)) for mb in (64, 0))
    for (a, one), (b, other) in zip(plenty, none, strict=True):
        assert a == b and all(torch.equal(one.images[c], other.images[c]) for c in one.images)
        assert torch.equal(one.actions_MA, other.actions_MA)


def test_what_is_kept_is_bounded(made):
    task = Demos(folder=str(made["png"]), cache_mb=0)
    task.data._free = most = 40_000
    moments(task)
    assert task.data._cache and sum(size for size, _ in task.data._cache.values()) + task.data._free == most
    assert task.data._free >= 0


def test_statistics_are_those_of_all_steps(made, played):
    stats = json.loads((made["png"] / "meta" / "stats.json").read_text())
    actions = torch.cat([d.actions_MA for d in played[0]]).double()
    for name, wanted in [
        ("min", actions.amin(0)),
        ("max", actions.amax(0)),
        ("mean", actions.mean(0)),
        ("std", actions.std(0, unbiased=False)),
        *((f"q{round(q * 100):02d}", actions.quantile(q, 0)) for q in record.QUANTILES),
    ]:
        torch.testing.assert_close(torch.tensor(stats["action"][name], dtype=torch.float64), wanted)
    assert np.array(stats["observation.images.front"]["mean"]).shape == (3, 1, 1)
    rows = pq.read_table(made["png-v3"] / record.EPISODES).to_pylist()
    own = [{name: row[f"stats/action/{name}"] for name in ("count", "min")} for row in rows]
    assert sum(s["count"][0] for s in own) == len(actions)
    assert [min(s["min"][i] for s in own) for i in range(4)] == stats["action"]["min"]


def test_physical_actions_are_in_the_simulators_units(made, played):
    shown, action = played
    found = Demos(folder=str(made["physical"]), units="physical").demonstration
    for prompt in Demos(folder=str(made["png"])).prompts("demo", 0):
        step = found(prompt)
        wanted = shown[prompt.meta["episode"]].actions_MA[prompt.meta["step"]]
        assert step.physical_units
        torch.testing.assert_close(step.actions_MA[0, :3] / torch.tensor(action.units[:3]), wanted[:3])
        assert step.actions_MA[0, 3] == wanted[3]
    with pytest.raises(UserError, match=r"doesn't give its actions' units \(ActionSpec.units\): leave out --physical"):
        record.physical(shown[0], None)
    moved = record.physical(shown[0], replace(action, offsets=(1.0, 2.0, 3.0, 4.0))).actions_MA[0]
    wanted = shown[0].actions_MA[0] * torch.tensor([*action.units[:3], 1.0]) + torch.tensor([1.0, 2.0, 3.0, 0.0])
    torch.testing.assert_close(moved, wanted)


def test_the_simulator_s_options_may_have_the_names_of_this_task_s(made):
    options = {"folder": str(made["png"]), "simulator": "gym/env", "env_id": "Reach-v0"}
    task = Demos(**options, cameras={"pixels": "observation.images.front"}, simulator_options={"cameras": ["pixels"]})
    assert task.simulation.options == {"env_id": "Reach-v0", "cameras": ["pixels"]}
    with pytest.raises(UserError, match="simulator_options: env_id is also given beside it: leave one out"):
        Demos(**options, simulator_options={"env_id": "x"})


def command(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["record", "episodes", *arguments])
    return ended.value.code


def test_the_command_records_and_says_what_came_of_it(tmp_path, capsys):
    asked = ["robotics/reach", str(tmp_path / "out"), "-n", "2", "--set", "dims=4", "--set", "size=16"]
    assert command(*asked) == 0
    assert "2 episodes, 2 of them solved" in capsys.readouterr().out
    assert len(Demos(folder=str(tmp_path / "out")).data.episodes) == 2
    for change, message in [
        (asked, "is not empty: name a new folder"),
        (["classification/digits", str(tmp_path / "b")], "is answered in words"),
        ([*asked[:1], str(tmp_path / "c"), "-n", "0"], "0 is not in the range x>=1"),
        ([*asked[:1], str(tmp_path / "c"), "--fps", "-1"], "-1.0 is not in the range 0.01<=x<=10000"),
        ([*asked[:1], str(tmp_path / "c"), "--fps", "nan"], "--fps nan is no number of steps per second"),
        ([*asked[:1], str(tmp_path / "d"), "--set", "colour"], "--set 'colour' has no value: write --set key=value"),
    ]:
        assert command(*change) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert message in line


OPTIONS_OF = {"task": "pick", "dims": 4, "size": 32}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [("mp4-v3", {"simulator": "tabletop/table", **OPTIONS_OF}), pytest.param("png", {}, marks=pytest.mark.slow)],
)
def test_conformance(made, kind, options):
    (spec,) = [s for s in mmrl_tasks() if s.id == "robotics/demos"]
    report = check_task(spec, n=4, options={"folder": str(made[kind]), **options})
    assert report.ok, str(report)


def test_with_a_simulator_there_are_its_starts_too(made):
    task = Demos(folder=str(made["png"]), simulator="tabletop/table", starts=7, held_out=3, **OPTIONS_OF)
    assert task.splits == ("demo", "train", "test") and len(task.prompts("train", 0)) == 7
    assert task.demonstration(task.prompts("test", 0)[0]) is None
    alone = Demos(folder=str(made["png"]))
    assert alone.splits == ("demo",) and alone.simulation.simulator == ""
    with pytest.raises(UserError, match=r"there is no split 'test': choose one of demo"):
        alone.prompts("test", 0)
    with pytest.raises(UserError, match=r"the task has no simulator, only demonstrations"):
        plugins.registry().make_simulator(alone.simulation, 1, "cpu")


def test_people_are_shown_what_is_demonstrated_and_what_is_played(made, played):
    task = Demos(folder=str(made["png"]), simulator="tabletop/table", **OPTIONS_OF)
    demo, start = initial_observations(task, [task.prompts("demo", 0)[1], task.prompts("test", 0)[0]])
    assert demo.messages[0]["content"][-1]["text"] == played[0][0].instruction
    shown = [np.asarray(part["image"]) for part in demo.messages[0]["content"] if part["type"] == "image"]
    assert np.array_equal(shown[1], played[0][0].images["wrist"][1].numpy()) and len(shown) == 2
    assert len(start.messages[0]["content"]) == 2, "one camera is the simulator's default"


# -- what is refused, and what is broken ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": 3}, r"folder = 3 must be a text"),
        (
            {"folder": "/nowhere"},
            r"/nowhere/meta/info.json does not exist: folder must contain a data set in LeRobot's format \(convert RLDS first",
        ),
        ({"cameras": "front"}, r"cameras = 'front' must be a table, such as \{ front = "),
        (
            {"cameras": {"front": "observation.images.top"}},
            r"cameras.front = .* is not a key of the data set .* it has observation.images.front, obs",
        ),
        ({"cameras": {"front": "action"}}, r"cameras.front = 'action' is not a key"),
        (
            {"state": "observation.pose"},
            r"state = 'observation.pose' is not a key of the data set .*: it has observation.state, action",
        ),
        ({"action": "task_index"}, r"action = 'task_index' is not a key of the data set .*: it has observation.state, action"),
        ({"units": "metres"}, r"units = 'metres' is unknown: choose one of simulator, physical"),
        ({"cache_mb": -1}, r"cache_mb = -1 must be a whole number from 0"),
        ({"cameras": {}, "state": ""}, r"observations would be empty: set a camera or a state"),
        ({"size": 64}, r"size needs a simulator: set the option simulator, or leave it out"),
    ],
)
def test_options_that_cannot_be(made, options, message):
    with pytest.raises(UserError, match=message) as error:
        Demos(**{"folder": str(made["png"]), **options})
    assert "\n" not in str(error.value)


def table(folder: Path, episode: int = 1) -> Path:
    return folder / TABLE.format(episode_chunk=0, episode_index=episode)


def change(folder: Path, column: str, to, episode: int = 1) -> None:
    """Puts another column into the table of an episode. to: of its values."""
    path = table(folder, episode)
    old = pq.read_table(path)
    values = to(old.column(column).to_pylist())
    pq.write_table(old.set_column(old.column_names.index(column), column, pyarrow.array(values)), path)


def meta(folder: Path, name: str, edit) -> None:
    path = folder / "meta" / name
    path.write_text(edit(path.read_text()))


def info(**changes):
    return lambda folder: meta(folder, "info.json", lambda text: json.dumps({**json.loads(text), **changes}))


def without_a_text(folder: Path) -> None:
    """Episode 1 alone has such a task."""
    meta(folder, "tasks.jsonl", lambda text: text.rstrip() + '\n{"task_index": 99, "task": ""}\n')
    change(folder, "task_index", lambda rows: [99] * len(rows))


def nan(rows):
    return [*rows[:2], [*rows[2][:3], float("nan")], *rows[3:]]


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("png", lambda f: table(f).unlink(), r"episode_000001.parquet does not exist: download the whole data set"),
        (
            "png",
            lambda f: table(f).write_bytes(b"PAR1 no"),
            r"episode_000001.parquet is no Parquet table \(.*\): download it again",
        ),
        ("png", lambda f: change(f, "action", lambda r: [x[:3] for x in r]), r"action of frame 0 has 3 numbers, and .* says 4"),
        ("png", lambda f: change(f, "action", nan), r"action of frame 2 is \[.*nan\]: it must be finite numbers"),
        ("png", lambda f: change(f, "observation.state", nan), r"observation.state of frame 2 "),
        ("png", lambda f: change(f, "action", lambda r: [None, *r[1:]]), r"action of frame 0 has 1 numbers, and"),
        ("png", lambda f: change(f, "task_index", lambda r: [77] * len(r)), r"task_index 77 is not in meta/tasks"),
        ("png", without_a_text, r"its task, task_index 99, has no text in meta/tasks"),
        ("png", lambda f: change(f, "frame_index", lambda r: r[::-1]), r"episode 1 has frames out of order, and meta/episodes"),
        ("png", lambda f: change(f, "frame_index", lambda r: [None] * len(r)), r"frames out of order"),
        (
            "png",
            lambda f: pq.write_table(pq.read_table(table(f))[:2], table(f)),
            r"episode 1 has 2 frames, and meta/episodes says",
        ),
        (
            "png",
            lambda f: pq.write_table(pq.read_table(table(f)).drop("timestamp"), table(f)),
            r"has no column 'timestamp': it has",
        ),
        (
            "png",
            lambda f: change(f, "observation.images.wrist", lambda r: [{"bytes": b"no", "path": ""} for _ in r]),
            r"image .*episode_000001.parquet: observation.images.wrist of frame 0 of episode 1 is broken",
        ),
        (
            "png",
            lambda f: change(f, "observation.images.wrist", lambda r: [{"bytes": None, "path": None} for _ in r]),
            r"is \{'bytes': None",
        ),
        ("png", lambda f: change(f, "action", lambda r: [[2.0] * 4 for _ in r]), "an action of 2, .*policy.options.statistics"),
        (
            "mp4",
            lambda f: next(f.glob("videos/**/*front/episode_000001.mp4")).unlink(),
            r"000001.mp4 does not exist: .* its videos",
        ),
        (
            "mp4",
            lambda f: next(f.glob("videos/**/*front/episode_000001.mp4")).write_bytes(b"no"),
            r"000001.mp4 is broken or of an unknown kind \(.*\): replace it",
        ),
        (
            "mp4",
            lambda f: change(f, "timestamp", lambda r: [t + 0.05 for t in r]),
            r"000001.mp4 has no frame at 0.0500 s, for .* the nearest is at 0.0000 s; encode it again",
        ),
        ("mp4", lambda f: change(f, "timestamp", lambda r: [t + 60 for t in r]), r"has no frame at 60.0000 s"),
    ],
)
def test_a_broken_episode_is_named_and_the_others_can_be_used(made, tmp_path, kind, damage, message):
    folder = tmp_path / "broken"
    shutil.copytree(made[kind], folder)
    damage(folder)
    task = Demos(folder=str(folder))
    broken = set()
    for prompt in task.prompts("demo", 0):
        try:
            assert isinstance(task_demonstration(task, prompt), Demonstration)
        except UserError as error:
            broken.add(prompt.meta["episode"])
            said = str(error)
            assert "\n" not in said and len(said) < 500
            if prompt.meta["step"] == 0:
                assert re.search(message, said), said
    assert broken == {1}


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("png", info(codebase_version="v1.6"), r"codebase_version 'v1.6' can't be read, v2.0 to v3.0 can: convert it"),
        ("png", info(features=None), r"info.json has no features: it is not a data set in LeRobot's format"),
        ("png", info(data_path=None), r"info.json has no data_path"),
        ("png", lambda f: meta(f, "info.json", lambda text: text[:40]), r"info.json is no JSON \(.*\): download it again"),
        ("png", lambda f: (f / "meta" / "tasks.jsonl").unlink(), r"tasks.jsonl does not exist"),
        ("png", lambda f: meta(f, "tasks.jsonl", lambda t: '{"task_index": 0}'), r"no task_index or no task"),
        ("png", lambda f: meta(f, "episodes.jsonl", lambda t: ""), r"lists no episode: record some first"),
        ("png", lambda f: meta(f, "episodes.jsonl", lambda t: '{"episode_index": 0}'), r"has no episode_index or no length"),
        ("png", lambda f: meta(f, "episodes.jsonl", lambda t: t + "{"), r"episodes.jsonl line 6 is no JSON"),
        ("png-v3", lambda f: shutil.rmtree(f / "meta" / "episodes"), r"meta/episodes has no table: download the whole data set"),
        ("png-v3", info(data_path="data/{where}.parquet"), r"episode 0 has no 'where', which its path in meta/info.json needs"),
    ],
)
def test_a_data_set_without_its_outline_is_refused_at_once(made, tmp_path, kind, damage, message):
    folder = tmp_path / "broken"
    shutil.copytree(made[kind], folder)
    damage(folder)
    with pytest.raises(UserError, match=message) as error:
        Demos(folder=str(folder))
    assert "\n" not in str(error.value)


def test_pictures_of_another_size_are_told(made, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(made["png"], folder)
    meta(folder, "info.json", lambda text: text.replace("32", "48"))
    task = Demos(folder=str(folder))
    with pytest.raises(UserError, match=r"front of frame 0 of episode 0 has 32 x 32 pixels, and meta/info.json says 48 x 48"):
        task.demonstration(task.prompts("demo", 0)[0])
