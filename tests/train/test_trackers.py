"""Trackers: what TensorBoard reads back, what the others are called with, and what happens when one fails or is missing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from tensorboard.summary.writer import event_file_writer
from tensorboard.summary.writer.event_file_writer import AtomicCounter

from mmrl.api.errors import PluginError, UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import RunConfig
from mmrl.run_folder.reader import read_jsonl
from mmrl.run_folder.writer import RunFolder
from mmrl.train.trackers import Trackers, check_trackers
from mmrl.train.trackers.tables import rollout_rows
from tracked import RUN, rows

PEERS = Path(__file__).parents[2] / ".peers" / "trackers" / "bin" / "python"


def config(*trackers: str) -> RunConfig:
    return parse_config({**RUN, "record": {"trackers": list(trackers), "project": "mine"}})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run folder. TensorBoard numbers the writers of a process and reads their files by name, so that of two runs in the same
    second the tenth would come before the ninth; a run has a process of its own."""
    monkeypatch.setattr(event_file_writer, "_global_uid", AtomicCounter(0))
    path = tmp_path / "runs" / "digits"
    path.mkdir(parents=True)
    return RunFolder(path)


def session(folder: RunFolder, step: int, *rows: tuple[int, dict[str, float]], id: str, status: str = "finished") -> list[str]:
    """One life of a run with one tracker; returns the notes."""
    notes: list[str] = []
    trackers = Trackers(config(id), folder, notes.append)
    trackers.start(step)
    for at, metrics in rows:
        trackers.log(at, metrics)
    trackers.finish(status)
    return notes


# -- TensorBoard, for real ------------------------------------------------------------------------------------------------


def curves(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) of each point, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_back_what_was_logged(folder: RunFolder) -> None:
    rows = [(1, {"loss": 0.5, "reward/mean": -0.25}), (2, {"loss": 0.125, "entropy": math.nan, "kl": math.inf})]
    assert session(folder, 0, *rows, id="tensorboard") == []
    assert curves(folder) == {"loss": [(1, 0.5), (2, 0.125)], "reward/mean": [(1, -0.25)]}, "and nothing that is not finite"
    assert not (folder.path / "errors.jsonl").exists()


def test_an_evaluation_has_its_interval_and_extras(folder: RunFolder) -> None:
    trackers = Trackers(config("tensorboard"), folder, print)
    trackers.start(0)
    figure = {"task": "zoo/animal", "metric": "accuracy", "value": 0.5, "low": 0.25, "high": 0.75, "extra": {"blank": 0.125}}
    trackers.evaluation(0, SimpleNamespace(**figure))  # type: ignore[arg-type]
    trackers.finish("finished")
    name = "eval/zoo/animal"
    expected = {"accuracy": 0.5, "accuracy/low": 0.25, "accuracy/high": 0.75, "blank": 0.125}
    assert curves(folder) == {f"{name}/{key}": [(0, value)] for key, value in expected.items()}


def test_a_resumed_curve_goes_on_where_the_checkpoint_was(folder: RunFolder) -> None:
    session(
        folder,
        0,
        (1, {"loss": 1.0}),
        (2, {"loss": 2.0}),
        (2, {"eval": 5.0}),
        (3, {"loss": 3.0}),
        (4, {"loss": 4.0}),
        id="tensorboard",
    )
    session(folder, 2, (3, {"loss": 3.5}), id="tensorboard")
    assert curves(folder) == {"loss": [(1, 1.0), (2, 2.0), (3, 3.5)], "eval": [(2, 5.0)]}, "3 and 4 were not in the checkpoint"


def test_a_run_that_begins_again_leaves_no_old_points(folder: RunFolder) -> None:
    session(folder, 0, (0, {"eval": 1.0}), (1, {"loss": 1.0}), id="tensorboard")
    session(folder, 0, (0, {"eval": 2.0}), (1, {"loss": 2.0}), id="tensorboard")
    assert curves(folder) == {"eval": [(0, 2.0)], "loss": [(1, 2.0)]}


# -- the others, with modules that record what they are called with ------------------------------------------------------


class Calls(list[tuple[str, dict[str, Any]]]):
    """Every call of a fake module, in order."""

    def of(self, name: str, **result: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.append((name, {**dict(enumerate(args)), **kwargs}))
            return SimpleNamespace(**result)

        return call

    def named(self, name: str) -> list[dict[str, Any]]:
        return [arguments for called, arguments in self if called == name]


def fake(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    module = ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


def test_wandb_goes_on_in_the_run_whose_id_the_folder_holds(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    run = {name: calls.of(name) for name in ("log", "define_metric", "finish")}
    fake(monkeypatch, "wandb", init=calls.of("init", **run))
    assert session(folder, 0, (1, {"loss": 0.5}), id="wandb", status="stopped") == []
    assert session(folder, 1, (2, {"loss": 0.25}), id="wandb") == []
    first, again = calls.named("init")
    assert first["project"] == "mine" and first["name"] == "digits" and first["resume"] == "allow"
    assert first["dir"] == str(folder.path) and first["config"]["tasks"][0]["id"] == "zoo/animal"
    assert first["id"] == again["id"] == (folder.path / "wandb" / "run-id").read_text() and len(first["id"]) == 32
    assert calls.named("log") == [{0: {"loss": 0.5, "step": 1}}, {0: {"loss": 0.25, "step": 2}}]
    assert {0: "*", "step_metric": "step"} in calls.named("define_metric"), "the axis is the run's own step"
    assert calls.named("finish") == [{"exit_code": 1}, {"exit_code": 0}]
    session(folder, 0, id="wandb")
    assert calls.named("init")[2]["id"] != first["id"], "a run that begins again is another one"


def test_trackio_goes_on_in_the_run_of_that_name(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    fake(monkeypatch, "trackio", init=calls.of("init", log=calls.of("log"), finish=calls.of("finish")))
    session(folder, 0, (1, {"loss": 0.5}), id="trackio")
    session(folder, 1, (2, {"loss": 0.25}), id="trackio")
    assert [(c["project"], c["name"], c["resume"]) for c in calls.named("init")] == [
        ("mine", "digits", "never"),
        ("mine", "digits", "allow"),
    ]
    assert calls.named("log") == [{0: {"loss": 0.5}, "step": 1}, {0: {"loss": 0.25}, "step": 2}]
    assert len(calls.named("finish")) == 2


def test_mlflow_gets_names_that_it_allows_and_settings_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    names = ("set_experiment", "log_params", "log_metrics", "end_run")
    started = calls.of("start_run", info=SimpleNamespace(run_id="abc"))
    fake(monkeypatch, "mlflow", start_run=started, **{name: calls.of(name) for name in names})
    assert session(folder, 0, (1, {"reward/zoo/exact@peer": 0.5}), id="mlflow", status="failed") == []
    assert session(folder, 1, (2, {"task/big cats!/reward": 0.25}), id="mlflow", status="stopped") == []
    session(folder, 2, id="mlflow")
    assert calls.named("set_experiment") == [{0: "mine"}] * 3
    assert calls.named("start_run") == [{"run_name": "digits"}, {"run_id": "abc"}, {"run_id": "abc"}]
    assert calls.named("log_metrics") == [
        {0: {"reward/zoo/exact_peer": 0.5}, "step": 1},
        {0: {"task/big cats_/reward": 0.25}, "step": 2},
    ]
    assert calls.named("end_run") == [{0: "FAILED"}, {0: "KILLED"}, {0: "FINISHED"}]
    ((params,),) = [c.values() for c in calls.named("log_params")]
    assert params["tasks.0.id"] == "zoo/animal" and params["stages.0.steps"] == 4 and params["record.trackers"] == ["mlflow"]
    assert not any(isinstance(value, dict) for value in params.values())


# -- tables of completions -----------------------------------------------------------------------------------------------


def test_the_rows_of_a_table_have_equal_keys_and_the_pictures_paths(folder: RunFolder) -> None:
    (folder.path / "rollouts" / "media").mkdir(parents=True)
    folder.rollouts(3, [*rows(), {**rows()[0], "drawing": Image.new("RGB", (9, 9)), "task": "zoo/draws"}])
    found = rollout_rows(folder.path, 3)
    assert len({tuple(row) for row in found}) == 1, "equal keys in equal order"
    assert [sum(row[name] is not None for name in ("image", "image 2")) for row in found] == [1, 2, 0, 2]
    assert all(path.is_file() and path.is_relative_to(folder.path) for row in found if (path := row["image"]))
    assert found[3]["image"] == folder.path / "rollouts" / json.loads(line_of(folder, 3, 3))["drawing"], (
        "what is drawn comes first"
    )
    assert [row["prompt"] for row in found[:3]] == ["user: [image] Which?", "user: [image] [image] Which?", "user: Which?"]
    assert [row["answer"] for row in found[:3]] == ["cat", "[1, 2]", "dog"]
    assert [(row["reward"], row["zoo/exact"]) for row in found[:3]] == [(1.0, 1.0), (0.0, 0.0), (None, None)]
    many = {**rows()[0], "messages": [{"role": "user", "content": [{"type": "image", "image": Image.new("RGB", (2, 2))}] * 9}]}
    folder.rollouts(4, [many])
    assert len([name for name in rollout_rows(folder.path, 4)[0] if name.startswith("image")]) == 4


def line_of(folder: RunFolder, step: int, number: int) -> str:
    return (folder.path / "rollouts" / f"step-{step:06d}.jsonl").read_text().splitlines()[number]


def test_a_tracker_without_tables_is_not_asked_and_one_that_fails_is_told(flaky, folder: RunFolder, monkeypatch) -> None:
    import mmrl_flaky

    (folder.path / "rollouts" / "media").mkdir(parents=True)
    folder.rollouts(1, rows())
    notes: list[str] = []
    trackers = Trackers(config("flaky/log", "tensorboard"), folder, notes.append)
    trackers.start(0)
    trackers.rollouts(1)
    assert notes == []
    monkeypatch.setattr(mmrl_flaky.Flaky, "rollouts", lambda self, step, rows: 1 / (len(rows) - 3), raising=False)
    trackers.rollouts(1)
    assert notes == [
        "tracker flaky/log: rollouts raised ZeroDivisionError: division by zero; the run goes on, and metrics.jsonl "
        "holds every figure"
    ]
    [row] = read_jsonl(folder.path / "errors.jsonl")
    assert row["where"] == "tracker flaky/log"


@pytest.mark.slow
@pytest.mark.parametrize("id", ["wandb", "trackio", "mlflow"])
def test_the_tracker_itself_reads_the_table_back(id: str, tmp_path: Path) -> None:
    """In an environment of its own, without a network."""
    if not PEERS.exists():
        pytest.skip(f"the trackers are not installed in {PEERS.parents[1]}: make peers")
    program = Path(__file__).parents[1] / "support" / "tracked.py"
    done = subprocess.run([PEERS, program, id, tmp_path], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    [told] = [line for line in done.stdout.splitlines() if line.startswith('{"tables"')]
    first, second = json.loads(told)["tables"]
    assert first == second and len(first) == 3
    blank = [255, 255, 255] if id == "mlflow" else None
    assert [row["image"] for row in first] == [[255, 0, 0], [0, 255, 0], blank]
    assert [row["image 2"] for row in first] == [blank, [0, 0, 255], blank]
    assert [(row["completion"], row["answer"]) for row in first] == [("a cat", "cat"), ("<b>3</b> | x", "[1, 2]"), ("", "dog")]
    assert [row["advantage"] for row in first] == [0.5, -0.5, None] and [row["zoo/exact"] for row in first] == [1.0, 0.0, None]


# -- one that fails -------------------------------------------------------------------------------------------------------

FLAKY = """
    from mmrl import TrackerSpec, hookimpl

    seen = []

    @hookimpl
    def mmrl_trackers():
        return [
            TrackerSpec(id="flaky/log", target="mmrl_flaky:Flaky", options={"fails": (2, 4, 5, 6)}),
            TrackerSpec(id="flaky/start", target="mmrl_flaky:Flaky", options={"begins": False}),
            TrackerSpec(id="flaky/pictures", target="mmrl_flaky:Pictures", options={"fails": (4, 5, 6)}),
            TrackerSpec(id="flaky/half", target="mmrl_flaky:Half"),
            TrackerSpec(id="flaky/broken", target="mmrl_flaky:Broken"),
            TrackerSpec(id="flaky/needy", target="mmrl_flaky:Flaky", requires=("no_such_module.part",)),
        ]

    class Flaky:
        def __init__(self, fails=(), begins=True):
            self.fails, self.begins = fails, begins

        def start(self, *, name, folder, config, project, step):
            if not self.begins:
                raise SystemExit("not logged in\\nsee the page")

        def log(self, step, metrics):
            if step in self.fails:
                raise OSError(f"no network at {step}")
            seen.append(step)

        def finish(self, status):
            seen.append(status)
            raise RuntimeError("late")

    class Pictures(Flaky):
        def rollouts(self, step, rows):
            seen.append("rollouts")
            raise OSError("no network for pictures")

    class Half:
        def start(self, **_): ...
        def finish(self, status): ...

    class Broken:
        def __init__(self):
            raise RuntimeError("planted")
"""


@pytest.fixture
def flaky(site) -> list[Any]:
    """What the trackers of a plugin have seen."""
    site("mmrl-flaky", {"mmrl_flaky.py": FLAKY}, {"flaky": "mmrl_flaky"})
    import mmrl_flaky

    return mmrl_flaky.seen


def test_a_tracker_that_fails_is_told_once_and_left_out_after_three_in_a_row(flaky, folder: RunFolder) -> None:
    notes = session(folder, 0, *((step, {"loss": 1.0}) for step in range(1, 9)), id="flaky/log", status="stopped")
    assert flaky == [1, 3], "2 was one failure, 4 to 6 three in a row: no 7, no 8, no finish"
    assert notes == [
        "tracker flaky/log: log raised OSError: no network at 2; the run goes on, and metrics.jsonl holds every figure"
    ]
    rows = read_jsonl(folder.path / "errors.jsonl")
    assert [(row["step"], row["where"]) for row in rows] == [(step, "tracker flaky/log") for step in (2, 4, 5, 6, 6)]
    assert rows[1]["what"] == "log raised OSError: no network at 4"
    assert rows[4]["what"] == "failed 3 times in a row: it gets no more metrics of this run"


def test_rollouts_that_fail_too_do_not_keep_a_tracker_that_fails(flaky, folder: RunFolder) -> None:
    """The failures in a row are 2 after the first step and 4 after the second: 3 is passed between two calls of `log`."""
    trackers = Trackers(config("flaky/pictures"), folder, lambda note: None)
    trackers.start(0)
    for step in (4, 5, 6):
        trackers.rollouts(step)
        trackers.log(step, {"loss": 1.0})
    assert flaky == ["rollouts", "rollouts"]
    assert read_jsonl(folder.path / "errors.jsonl")[-1]["what"] == "failed 3 times in a row: it gets no more metrics of this run"


def test_a_tracker_that_can_not_begin_gets_nothing_and_the_others_go_on(flaky, folder: RunFolder) -> None:
    notes: list[str] = []
    trackers = Trackers(config("flaky/start", "tensorboard"), folder, notes.append)
    trackers.start(3)
    trackers.log(4, {"loss": 0.5})
    trackers.finish("finished")
    assert flaky == [] and curves(folder) == {"loss": [(4, 0.5)]}
    assert len(notes) == 1 and "flaky/start: start raised SystemExit: not logged in see the page; the run goes on" in notes[0]
    assert [row["step"] for row in read_jsonl(folder.path / "errors.jsonl")] == [3]


def test_a_failure_at_the_end_is_told_and_ctrl_c_is_no_failure(flaky, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session(folder, 0, (1, {}), id="flaky/log")[0].startswith("tracker flaky/log: finish raised RuntimeError: late;")
    assert flaky == [1, "finished"]
    import mmrl_flaky

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mmrl_flaky.Flaky, "log", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session(folder, 0, (1, {}), id="flaky/log")


# -- one that can't be used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "module", "extra"),
    [
        ("wandb", "wandb", "wandb"),
        ("trackio", "trackio", "trackio"),
        ("mlflow", "mlflow", "mlflow"),
        ("tensorboard", "tensorboard", "train"),
    ],
)
def test_what_is_not_installed_is_refused_with_the_extra(
    id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PluginError) as refused:
        check_trackers(config(id).record)
    assert str(refused.value) == (
        f'tracker {id!r} failed to import: no module named {module!r}: pip install "multimodal-rl[{extra}]", '
        "or remove it from record.trackers"
    )


def test_what_is_unknown_or_no_tracker_is_refused(flaky) -> None:
    check_trackers(config().record)
    check_trackers(config("tensorboard", "flaky/log").record)
    for id, message in {
        "tensorbord": "no tracker 'tensorbord'. Did you mean 'tensorboard'?",
        "flaky/half": "tracker 'flaky/half': its target 'mmrl_flaky:Half' has no method log; see mmrl.Tracker",
        "flaky/broken": "tracker 'flaky/broken' with options {} raised RuntimeError: planted",
        "flaky/needy": "tracker 'flaky/needy' failed to import: no module named 'no_such_module.part': "
        "install its package, or remove it from record.trackers",
    }.items():
        with pytest.raises(UserError) as refused:
            check_trackers(config("tensorboard", id).record)
        assert str(refused.value) == message


def test_requires_must_be_a_tuple(site) -> None:
    from mmrl.registry.plugins import registry

    source = """
        from mmrl import TrackerSpec, hookimpl

        @hookimpl
        def mmrl_trackers():
            return [TrackerSpec(id="odd/one", target="odd:One", requires="wandb")]
    """
    site("mmrl-odd", {"mmrl_odd.py": source}, {"odd": "mmrl_odd"})
    (odd,) = [p for p in registry().plugins if p.name == "odd"]
    assert odd.error == (
        "breaks the plugin contract: requires of 'odd/one' must be a tuple of modules such as ('wandb',), not 'wandb'"
    )


def test_checking_and_listing_import_nothing_heavy(mmrl) -> None:
    program = f"""
import sys
from mmrl.config.load import parse_config
from mmrl.train.trackers import check_trackers
check_trackers(parse_config({RUN!r}).record)
import mmrl.train.trackers.wandb, mmrl.train.trackers.trackio, mmrl.train.trackers.mlflow
print(sorted({{"tensorboard", "torch", "numpy", "wandb", "trackio", "mlflow"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[]\n", done.stderr
    listed = json.loads(mmrl("list", "trackers", "--json", MMRL_PLUGINS="").stdout)
    assert [(row["kind"], row["id"], row["requires"]) for row in listed] == [
        ("tracker", name, [name]) for name in ("mlflow", "tensorboard", "trackio", "wandb")
    ]
