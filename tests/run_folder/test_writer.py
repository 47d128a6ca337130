"""The run folder: what is written, what is refused, what a kill or a full disk leaves behind."""

from __future__ import annotations

import copy
import enum
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrl import UserError, user_message
from mmrl.api.episodes import Conversation
from mmrl.api.types import Prompt, Score, Status, Turn
from mmrl.config.load import parse_config, to_dict
from mmrl.run_folder import files
from mmrl.run_folder.reader import check_removable, read_jsonl, read_run, step_of
from mmrl.run_folder.rollouts import rollout_row
from mmrl.run_folder.writer import ENDED, RunFolder
from runs import figure

CONFIG = {"name": "demo", "seed": 3, "policy": {"model": "tiny", "max_pixels": None}, "stages": [{"kind": "rl", "steps": 5}]}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "demo", CONFIG, seed=3)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def row(text: str, image: object, **more: object) -> dict[str, object]:
    return {
        "task": "t/a",
        "prompt_id": "p",
        "group": 0,
        "messages": [user_message(text, image)],
        "answer": "7",
        "completion": "7",
        "tokens": 1,
        "status": "finished",
        "advantage": 0.5,
        "score": {"value": 1.0, "parts": {}, "detail": "", "status": "ok"},
        **more,
    }


# -- making one ---------------------------------------------------------------------------------------------------------


def test_create_writes_config_and_manifest(run: RunFolder) -> None:
    assert tomllib.loads((run.path / "config.toml").read_text()) == {
        "name": "demo",
        "seed": 3,
        "policy": {"model": "tiny"},
        "stages": [{"kind": "rl", "steps": 5}],
    }
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert set(manifest) == {"mmrl", "python", "packages", "plugins", "git", "machine", "seed", "started"}
    assert manifest["seed"] == 3
    assert manifest["python"] == ".".join(map(str, sys.version_info[:3]))
    assert manifest["packages"]["pluggy"] == __import__("pluggy").__version__
    assert set(manifest["git"]) == {"commit", "dirty"}
    assert set(manifest["machine"]) == {"system", "cpu", "cores", "memory_mb", "gpus"}
    assert manifest["machine"]["cores"] >= 1
    assert manifest["machine"]["memory_mb"] > 100
    assert [p.name for p in run.path.parent.iterdir()] == ["demo"]  # nothing aside is left


def test_manifest_names_the_commit_and_whether_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmrl.run_folder.manifest import git

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git() == {"commit": None, "dirty": None}
    (tmp_path / "a").write_text("1")
    for command in ("init -q", "add a", "-c user.name=n -c user.email=e commit -qm m"):
        subprocess.run(["git", *command.split()], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / "run.toml").write_text("")  # untracked files are no change
    assert git() == {"commit": head, "dirty": False}
    (tmp_path / "a").write_text("2")
    assert git() == {"commit": head, "dirty": True}


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert (RunFolder.create(tmp_path / "empty", {}, 0).path / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ("config.toml", "already has a run: choose another name, --resume it, or remove it with --overwrite"),
        ("metrics.jsonl", "already has a run: choose another name, --resume it, or remove it with --overwrite"),
        ("thesis.tex", "is not empty (it contains thesis.tex): choose another name"),
    ],
)
def test_a_used_folder_is_refused_and_untouched(tmp_path: Path, held: str, words: str) -> None:
    (tmp_path / held).write_text("precious")
    with pytest.raises(UserError) as caught:
        RunFolder.create(tmp_path, CONFIG, 0)
    assert str(tmp_path) in str(caught.value)
    assert words in str(caught.value)
    assert tree(tmp_path) == {held: b"precious"}


def test_a_race_for_the_same_name_is_lost_politely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmrl.run_folder.manifest

    def slow(seed: int) -> dict[str, int]:  # meanwhile another process makes it
        (tmp_path / "demo").mkdir()
        (tmp_path / "demo" / "config.toml").write_text("theirs = 1")
        return {"seed": seed}

    monkeypatch.setattr(mmrl.run_folder.manifest, "manifest", slow)
    with pytest.raises(UserError, match="already has a run"):
        RunFolder.create(tmp_path / "demo", CONFIG, 0)
    assert tree(tmp_path) == {"demo/config.toml": b"theirs = 1"}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run"), tmp_path / ("x" * 300)):
        with pytest.raises(UserError, match=r"cannot (make|use)") as caught:
            RunFolder.create(path, CONFIG, 0)
        assert str(path) in str(caught.value)
    assert list(tree(tmp_path)) == ["file"]


def test_a_failure_while_making_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmrl.run_folder.manifest

    monkeypatch.setattr(mmrl.run_folder.manifest, "manifest", lambda seed: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        RunFolder.create(tmp_path / "run", CONFIG, 0)
    assert list(tmp_path.iterdir()) == []


# -- opening one --------------------------------------------------------------------------------------------------------


def test_changes_name_what_differs(run: RunFolder) -> None:
    opened = RunFolder.open(run.path, CONFIG)
    assert opened.changes(CONFIG) == {}
    other = {**CONFIG, "policy": {"model": "big", "max_pixels": 9}, "stages": [{"kind": "rl", "steps": 6}], "x": 1}
    assert list(opened.changes(other)) == ["policy.max_pixels", "policy.model", "stages.0.steps", "x"]
    assert opened.changes(other)["policy.max_pixels"] == (None, 9)
    assert list(opened.changes({**CONFIG, "stages": []})) == ["stages"]
    with pytest.raises(UserError, match=r"seed = 3, now 4; set them back, .* policy\.model = \".*/checkpoints/STEP/policy"):
        RunFolder.open(run.path, {**CONFIG, "seed": 4})
    scaled = RunFolder.create(run.path.parent / "scaled", {**CONFIG, "compute": {"learners": 1, "staleness": 0}}, 3)
    RunFolder.open(scaled.path, {**CONFIG, "compute": {"learners": 2, "staleness": 0}})
    with pytest.raises(UserError, match=r"other settings: compute.staleness = 0, now 1; set them back"):
        RunFolder.open(scaled.path, {**CONFIG, "compute": {"learners": 2, "staleness": 1}})


def test_a_run_of_an_older_version_goes_on_with_the_defaults_of_newer_keys(tmp_path: Path) -> None:
    data = {"name": "r", "policy": {"model": "m"}, "tasks": [{"id": "a/b"}], "stages": [{"kind": "rl", "steps": 2}]}
    config = to_dict(parse_config(data))
    older = copy.deepcopy(config)
    del older["stages"][0]["state_similarity"], older["smoke_shows"], older["evaluate"]["steering"]
    run = RunFolder.create(tmp_path / "r", older, 0)
    assert RunFolder.open(run.path, config).changes(config) == {}
    config["stages"][0]["state_similarity"] = 0.5
    with pytest.raises(UserError, match=r"other settings: stages.0.state_similarity = 1.0, now 0.5; set them back"):
        RunFolder.open(run.path, config)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("")])
def test_what_is_no_run_is_not_opened(tmp_path: Path, make: object) -> None:
    make(tmp_path / "no")  # type: ignore[operator]
    for read in (RunFolder.open, read_run):
        with pytest.raises(UserError, match=r"is not a (run )?folder"):
            read(tmp_path / "no")


def test_config_keeps_what_toml_can_hold(tmp_path: Path) -> None:
    class Kind(enum.StrEnum):
        A = "a"

    config = {"limit": math.inf, "kind": Kind.A, "path": Path("a/b"), "list": (1, None, 2), "n": np.int64(4), "none": None}
    run = RunFolder.create(tmp_path / "r", config, 0)
    assert run.config == {"limit": math.inf, "kind": "a", "path": "a/b", "list": [1, 2], "n": 4}
    assert run.changes(config) == {}


# -- rows ---------------------------------------------------------------------------------------------------------------


def test_rows_are_plain_json(run: RunFolder) -> None:
    run.metrics(1, "rl", {"loss": math.nan, "kl": -math.inf, "n": np.float32(0.5), "r/m": np.float64(0.25), "on": np.bool_(True)})
    run.evaluation(1, "rl", figure("t/a", 0.75, extra={"hm": math.nan}))
    run.error(1, "judge", "bad \ud800 byte \u2028")
    first, second = (run.path / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(first, parse_constant=pytest.fail)["metrics"]
    assert metrics == {"loss": None, "kl": None, "n": 0.5, "r/m": 0.25, "on": True}
    second = json.loads(second)
    assert {key: second[key] for key in ("step", "stage")} == {"step": 1, "stage": "rl"}
    assert second["eval"] == {
        "task": "t/a",
        "split": "test",
        "metric": "accuracy",
        "value": 0.75,
        "low": 0.625,
        "high": 0.875,
        "n": 10,
        "extra": {"hm": None},
    }
    assert (run.path / "errors.jsonl").read_bytes() == b'{"step":1,"where":"judge","what":"bad \\ud800 byte \\u2028"}\n'


def test_plain_keeps_shape_and_never_fails() -> None:
    import torch

    given = {1: {2}, "t": torch.tensor([1.0, math.nan]), "b": b"x", "p": Path("q"), "deep": [(np.array([[1, 2]]),)]}
    assert files.to_json_value(given) == {"1": [2], "t": [1.0, None], "b": "b'x'", "p": "q", "deep": [[[[1, 2]]]]}


def test_read_run_gives_back_what_was_written(run: RunFolder) -> None:
    run.evaluation(0, "rl", figure("t/a", 0.5))
    run.metrics(1, "rl", {"loss": 1.5})
    run.rollouts(1, [row("hi", Image.new("RGB", (4, 4)))])
    run.error(1, "w", "e")
    run.evaluation(0, "rl", figure("t/a", 0.6))  # again, after a kill
    data = read_run(run.path)
    assert data.summary is None  # still going
    assert [(r["step"], r["metrics"]) for r in data.steps] == [(1, {"loss": 1.5})]
    assert [(r["step"], r["eval"]["value"]) for r in data.evals] == [(0, 0.6)]
    assert data.errors == [{"step": 1, "where": "w", "what": "e"}]
    assert [p.name for p in data.rollout_files] == ["step-000001.jsonl"]
    assert data.config["name"] == "demo"
    run.summary({"status": "finished", "last": {"t/a": {"value": math.nan}}})
    assert read_run(run.path).summary == {"status": "finished", "last": {"t/a": {"value": None}}}


def test_a_torn_last_line_is_left_out_and_damage_elsewhere_is_named(run: RunFolder) -> None:
    run.metrics(1, "rl", {"loss": 1.0})
    run.metrics(2, "rl", {"loss": 2.0})
    path = run.path / "metrics.jsonl"
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[1])):  # killed after any byte of the last line
        path.write_bytes(whole[:-cut])
        assert [r["step"] for r in read_run(run.path).steps] == ([1, 2] if cut == 1 else [1])
    path.write_bytes(whole[:-5] + b"\n" + whole)
    with pytest.raises(UserError, match=r"metrics\.jsonl line 2 is not JSON"):
        read_run(run.path)


# -- pictures -----------------------------------------------------------------------------------------------------------


def test_each_picture_is_stored_once_and_small(run: RunFolder, tmp_path: Path) -> None:
    red, also_red = Image.new("RGB", (6, 4), "red"), Image.new("RGB", (6, 4), "red")
    red.save(tmp_path / "red.png")
    wide = np.zeros((1000, 2000, 3), np.uint8)
    run.rollouts(7, [row("a", red), row("b", also_red), row("c", tmp_path / "red.png"), row("d", wide), row("e", wide)])
    rows = read_jsonl(run.path / "rollouts" / "step-000007.jsonl")
    paths = [r["messages"][0]["content"][0]["path"] for r in rows]
    assert len(set(paths[:3])) == len(set(paths[3:])) == 1
    assert len(list((run.path / "rollouts" / "media").iterdir())) == 2
    with Image.open(run.path / "rollouts" / paths[0]) as small, Image.open(run.path / "rollouts" / paths[3]) as large:
        assert small.getpixel((5, 3)) == (255, 0, 0)
        assert large.size == (512, 256)
    content = [{"type": "image", "path": paths[0]}, {"type": "text", "text": "b"}]
    assert rows[1] == {**row("b", None), "step": 7, "messages": [{"role": "user", "content": content}]}
    assert paths[0] == f"media/{hashlib.sha256(b'(6, 4)' + red.tobytes()).hexdigest()[:16]}.png"


def test_what_is_drawn_for_people_is_kept_larger(run: RunFolder) -> None:
    """All screens of an episode would be unreadable in 512 pixels; without a limit a long one would be too large to keep."""
    for step, (size, kept) in enumerate((((1340, 1223), (1340, 1223)), ((6400, 3200), (1600, 800))), 1):
        run.rollouts(step, [{**row("a", Image.new("RGB", (900, 900))), "drawing": Image.new("RGB", size)}])
        (found,) = read_jsonl(run.path / "rollouts" / f"step-{step:06d}.jsonl")
        with Image.open(run.path / "rollouts" / found["drawing"]) as drawn:
            assert drawn.size == kept
        with Image.open(run.path / "rollouts" / found["messages"][0]["content"][0]["path"]) as seen:
            assert seen.size == (512, 512)


@pytest.mark.parametrize(
    ("mode", "color", "seen"),
    [
        ("RGBA", (9, 9, 9, 0), (255, 255, 255)),
        ("CMYK", (0, 0, 0, 0), (255, 255, 255)),
        ("P", 0, (0, 0, 0)),
        ("L", 7, (7, 7, 7)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_any_mode_is_seen_as_people_see_it(run: RunFolder, mode: str, color: object, seen: object) -> None:
    run.rollouts(1, [row("a", Image.new(mode, (3, 3), color))])
    with Image.open(next((run.path / "rollouts" / "media").iterdir())) as stored:
        assert stored.getpixel((1, 1)) == seen


def test_text_content_and_empty_rows(run: RunFolder) -> None:
    run.rollouts(1, [{"messages": [{"role": "system", "content": "be brief"}]}])
    assert read_jsonl(run.path / "rollouts" / "step-000001.jsonl") == [
        {"step": 1, "messages": [{"role": "system", "content": [{"type": "text", "text": "be brief"}]}]}
    ]
    run.rollouts(2, [])
    assert read_jsonl(run.path / "rollouts" / "step-000002.jsonl") == []


@pytest.mark.parametrize(
    ("logprobs", "off_policy", "source"),
    [
        ((-0.1, -0.5), False, "policy"),
        ((-0.1, math.nan), False, "policy"),  # it went on behind words that a rule gave it
        ((math.nan, math.nan), False, "gold"),
        ((-0.1, -0.5), True, "hint"),
        ((math.nan, math.nan), True, "gold"),
    ],
)
def test_a_rollout_says_who_wrote_it(logprobs: tuple[float, float], off_policy: bool, source: str) -> None:
    turns = tuple(Turn(observed_ids=(1,), token_ids=(2,), logprobs=(p,), text="7") for p in logprobs)
    prompt = Prompt(id="p", messages=[user_message("which?")], answer="7")
    rollout = Conversation(prompt=prompt, group=0, turns=turns, status=Status.FINISHED, off_policy=off_policy)
    assert rollout_row(rollout, Score(1.0), 0.5)["source"] == source


# -- resume -------------------------------------------------------------------------------------------------------------


def test_rewind_then_the_rest_equals_a_run_without_a_break(tmp_path: Path) -> None:
    def go(run: RunFolder, steps: range) -> None:
        for step in steps:
            run.metrics(step, "rl", {"loss": step / 7})
            run.evaluation(step, "rl", figure("t/a", step / 10))
            run.error(step, "w", str(step))
            run.rollouts(step, [row(str(step), Image.new("L", (2, 2), step))])

    def content(run: RunFolder) -> dict[str, object]:
        held: dict[str, object] = {name: data for name, data in tree(run.path).items() if name != "manifest.json"}
        held["metrics.jsonl"] = [{k: v for k, v in r.items() if k != "time"} for r in read_jsonl(run.path / "metrics.jsonl")]
        return held

    straight, broken = (RunFolder.create(tmp_path / name, CONFIG, 3) for name in ("straight", "broken"))
    go(straight, range(1, 7))
    go(broken, range(1, 4))
    broken.error(3, ENDED, "the disk was full, and the run goes on from the checkpoint of this step")
    go(broken, range(4, 6))
    broken.summary({"status": "failed"})
    with open(broken.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step":6,"sta')
    broken = RunFolder.open(broken.path)
    broken.rewind(3)
    assert [r["step"] for r in read_run(broken.path).steps] == [1, 2, 3]
    assert [step_of(p) for p in read_run(broken.path).rollout_files] == [1, 2, 3]
    assert read_run(broken.path).summary is None
    go(broken, range(4, 7))
    assert content(broken) == content(straight)


def test_an_evaluation_after_the_last_checkpoint_is_made_again(run: RunFolder) -> None:
    for step in (1, 2):
        run.metrics(step, "rl", {"loss": 0.5})
        run.evaluation(step, "rl", figure("t/a", 0.5))
        run.error(step, "evaluation of t/a", "late")
        run.error(step, "w", "kept")
        run.items(step, [{"id": "p"}])
    run.rewind(2, evaluated=False)
    rows = read_jsonl(run.path / "metrics.jsonl")
    assert [(r["step"], "eval" in r) for r in rows] == [(1, False), (1, True), (2, False)]
    errors = [(r["step"], r["where"]) for r in read_jsonl(run.path / "errors.jsonl")]
    assert errors == [(1, "evaluation of t/a"), (1, "w"), (2, "w")]
    assert [step_of(path) for path in (run.path / "evaluations").iterdir()] == [1]


def test_the_clock_goes_on_from_the_last_kept_row(run: RunFolder) -> None:
    (run.path / "metrics.jsonl").write_bytes(
        b"".join(files.line({"step": s, "stage": "rl", "time": 100.0 * s, "metrics": {}}) for s in (1, 2, 3))
    )
    opened = RunFolder.open(run.path)
    opened.metrics(4, "rl", {})
    assert 300 <= read_run(run.path).steps[-1]["time"] < 301
    opened.rewind(2)
    opened.metrics(3, "rl", {})
    assert 200 <= read_run(run.path).steps[-1]["time"] < 201


def test_checkpoints_are_listed_in_order(run: RunFolder) -> None:
    for step in (1_000_000, 200_000, 3):
        run.checkpoint_dir(step).mkdir()
    (run.path / "checkpoints" / ".step-000099.tmp").mkdir()  # one that was being written
    (run.path / "checkpoints" / "step-000005").write_text("not a folder")
    assert [p.name for p in run.checkpoints()] == ["step-000003", "step-200000", "step-1000000"]
    assert [step_of(p) for p in run.checkpoints()] == [3, 200_000, 1_000_000]
    assert run.checkpoint_dir(20) == run.path / "checkpoints" / "step-000020"


# -- the disk -----------------------------------------------------------------------------------------------------------


FULL = """
import os, resource, signal, sys
from mmrl import UserError
from mmrl.run_folder.writer import ENDED, RunFolder
run = RunFolder.open(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a limit on file sizes fails like a full disk: after a part was written
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
from PIL import Image
big = {"x" * 2000: 1.0}
for write in (lambda: run.metrics(2, "rl", big), lambda: run.error(2, "w", "x" * 2000), lambda: run.summary(big),
              lambda: run.report("x" * 2000), lambda: run.rewind(1),
              lambda: run.rollouts(1, [{"messages": [], "completion": "x" * 2000}])):
    try:
        write()
        print("no error")
    except UserError as error:
        print(error)
"""


def test_a_full_disk_is_named_and_loses_nothing(run: RunFolder) -> None:
    run.metrics(1, "rl", {"y" * 500: 1.0})
    run.metrics(2, "rl", {"y" * 700: 1.0})
    run.summary({"status": "finished"})
    run.rollouts(1, [{"messages": [], "completion": "old"}])
    run.error(1, "w", "small")
    before = tree(run.path)
    command = [sys.executable, "-c", FULL, str(run.path), "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    names = ["metrics.jsonl", "errors.jsonl", "summary.json", "report.html", "metrics.jsonl", "rollouts/step-000001.jsonl"]
    assert [line.replace("No space left on device", "File too large") for line in done.stdout.splitlines()] == [
        f"cannot write {run.path / name}: File too large; free some space, then repeat the command, a run with --resume"
        for name in names
    ]
    assert tree(run.path) == before  # no torn line, no leftovers


def test_no_space_left_is_named(run: RunFolder) -> None:
    (run.path / "errors.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"cannot write .*errors\.jsonl: No space left on device; free some space"):
        run.error(1, "w", "e")


def test_killed_while_writing_leaves_a_readable_run(run: RunFolder) -> None:
    code = """
    import sys
    from mmrl.run_folder.writer import RunFolder
    run = RunFolder.open(sys.argv[1])
    print("ready", flush=True)
    step = 0
    while True:
        step += 1
        run.metrics(step, "rl", {"x" * 3000: 1.0})
        run.summary({"step": step})
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(run.path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    while not (run.path / "summary.json").exists():
        pass
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=30)
    child.stdout.close()
    data = read_run(run.path)
    assert [r["step"] for r in data.steps] == list(range(1, len(data.steps) + 1))
    assert data.summary is not None
    assert len(data.steps) - data.summary["step"] in (0, 1)


def test_two_processes_may_write_the_report_at_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.replace

    def meanwhile(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", rename)
        run.report("of the other process")
        assert (run.path / "report.html").read_text() == "of the other process"
        rename(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    assert run.report("of this one").read_text() == "of this one"
    assert not list(run.path.glob(".*.tmp"))


def test_what_a_kill_left_behind_may_be_overwritten(run: RunFolder) -> None:
    (run.path / ".summary.json.tmp").write_text("{")
    (run.path / ".report.html.0123456789abcdef.tmp").write_text("<!doctype ht")
    check_removable(run.path)
    (run.path / ".thesis.txt.tmp").write_text("years of work")
    with pytest.raises(UserError, match=r"with \.thesis\.txt\.tmp, which no run wrote"):
        check_removable(run.path)


def test_recording_imports_nothing_heavy() -> None:
    code = (
        "import sys, mmrl.run_folder.writer, mmrl.run_folder.files, mmrl.run_folder.manifest, mmrl.ui.report.report;"
        "import mmrl.ui.cli.report;"
        "print([m for m in ('torch', 'numpy', 'PIL', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
