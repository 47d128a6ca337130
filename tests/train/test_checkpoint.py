"""Checkpoints: which are kept, which is best, and that what is written comes back."""

import contextlib
import errno
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from mmrl.api.errors import UserError
from mmrl.policies.shard_files import write_shards
from mmrl.run_folder.writer import RunFolder
from mmrl.train import checkpoint
from mmrl.train.resume import find_checkpoint, newest_checkpoint, steps_and_figures


class Weights:
    """A policy whose checkpoint is one text file."""

    root = None

    def __init__(self, text="weights"):
        self.text = text

    def save(self, folder):
        folder.mkdir()
        (folder / "model.txt").write_text(self.text)


class Learner:
    """One with some state, whose weights are their means while it is asked for them."""

    def __init__(self, state):
        self.tensors, self.optimizer = state, self
        self.averaging = False

    @contextlib.contextmanager
    def averaged(self):
        self.averaging = True
        yield
        self.averaging = False

    def state(self):
        assert not self.averaging
        return self.tensors


STATE = {"optimizer/w/exp_avg": torch.tensor([1.0, -2.0]), "optimizer/w/step": torch.tensor(3.0), "reference/w": torch.ones(2)}
FILES = ["learner.safetensors", "policy", "state.json"]


def test_a_checkpoint_gives_back_state_and_the_learners_tensors(tmp_path):
    path = tmp_path / "step-000003"
    checkpoint.save(path, Weights(), Learner(STATE), {"step": 3, "figures": {"best": {"a/b": 0.5}}})
    assert sorted(p.name for p in path.iterdir()) == FILES
    assert (path / "policy" / "model.txt").read_text() == "weights"
    state, tensors = checkpoint.load(path)
    assert state == checkpoint.read_state(path) == {"step": 3, "figures": {"best": {"a/b": 0.5}}}
    assert {k: v.tolist() for k, v in tensors.items()} == {k: v.tolist() for k, v in STATE.items()}


def test_the_policy_is_saved_as_its_mean_and_the_learner_as_it_trains(tmp_path):
    learner = Learner(STATE)

    class Mean(Weights):
        def save(self, folder):
            self.text = "mean" if learner.averaging else "trained"
            super().save(folder)

    checkpoint.save(tmp_path / "step-000003", Mean(), learner, {})
    assert (tmp_path / "step-000003" / "policy" / "model.txt").read_text() == "mean"


def test_the_learner_is_saved_as_it_trains_where_its_tensors_are_the_weights(tmp_path):
    weights, mean = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 6.0])

    class Exchanging(Learner):
        @contextlib.contextmanager
        def averaged(self):
            with super().averaged():
                trained = weights.clone()
                weights.copy_(mean)
                yield
                weights.copy_(trained)

    checkpoint.save(tmp_path / "step-000003", Weights(), Exchanging({"optimizer/w/master": weights}), {})
    assert checkpoint.load(tmp_path / "step-000003")[1]["optimizer/w/master"].tolist() == [1.0, 2.0]


def test_the_same_step_again_renews_the_state_and_nothing_else(tmp_path):
    path = tmp_path / "step-000003"
    checkpoint.save(path, Weights("first"), Learner(STATE), {"best_step": None})
    checkpoint.save(path, Weights("second"), Learner({}), {"best_step": 3})
    state, tensors = checkpoint.load(path)
    assert state == {"best_step": 3} and set(tensors) == set(STATE) and (path / "policy" / "model.txt").read_text() == "first"
    assert sorted(p.name for p in path.iterdir()) == FILES


def test_a_full_disk_leaves_the_earlier_ones_and_nothing_half_made(tmp_path):
    checkpoint.save(tmp_path / "step-000001", Weights(), Learner(STATE), {})

    class Full(Weights):
        def save(self, folder):
            super().save(folder)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told = r"step-000002 could not be written: No space left on device: free some space, then continue .* from step-000001"
    with pytest.raises(UserError, match=told):
        checkpoint.save(tmp_path / "step-000002", Full(), Learner(STATE), {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_the_system_error_in_a_message_of_safetensors_is_understood(tmp_path):
    class Lame(Weights):
        def save(self, folder):
            raise RuntimeError("Error while serializing: I/O error: File too large (os error 27)")

    with pytest.raises(UserError, match="File too large: free some space"):
        checkpoint.save(tmp_path / "step-000002", Lame(), Learner(STATE), {})
    Lame.save = lambda *_: {}["a bug"]
    with pytest.raises(KeyError):  # what is not the system's fault keeps its traceback
        checkpoint.save(tmp_path / "step-000002", Lame(), Learner(STATE), {})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "step-000003"
    checkpoint.save(path, Weights(), Learner(STATE), {})
    (path / "state.json").write_text("{")
    with pytest.raises(UserError, match=r"step-000003 can't be read.*: there is no earlier one to resume from"):
        checkpoint.load(path)
    (tmp_path / "step-000002").mkdir()
    with pytest.raises(UserError, match=r"step-000003 can't be read.*: remove that folder to resume from an earlier one"):
        checkpoint.load(path)


def test_the_learner_of_another_checkpoint_and_a_part_of_it_are_refused(tmp_path):
    """A resume would go on with other numbers than the run, without a word."""
    for name in ("step-000002", "step-000003"):
        checkpoint.save(tmp_path / name, Weights(), Learner(STATE), {})
    path, whole = tmp_path / "step-000003", (tmp_path / "step-000003" / "learner.safetensors").read_bytes()
    marks = {"checkpoint": "step-000003", "tensors": "3"}
    for wrong in (
        lambda file: shutil.copy(tmp_path / "step-000002" / "learner.safetensors", file),
        lambda file: save_file({}, file),
        lambda file: save_file(STATE, file),
        lambda file: save_file({"optimizer/w/step": STATE["optimizer/w/step"]}, file, marks),
    ):
        wrong(path / "learner.safetensors")
        with pytest.raises(UserError, match=r"step-000003 can't be read: its learner.safetensors is not the one that was saved"):
            checkpoint.load(path)
    (path / "learner.safetensors").write_bytes(whole)
    assert checkpoint.load(path)[1].keys() == STATE.keys()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # which it is here
def test_a_shard_that_is_missing_is_missed(tmp_path):
    write_shards(STATE, tmp_path / "learner")
    (tmp_path / "state.json").write_text("{}")
    _, tensors = checkpoint.load(tmp_path)
    assert {name: tensors[name].tolist() for name in tensors} == {name: STATE[name].tolist() for name in STATE}
    for path in (tmp_path / "learner").glob("*.safetensors"):
        path.unlink()
        with pytest.raises(UserError, match=rf"can't be read: .*learner lacks {path.name}: there is no earlier one"):
            checkpoint.load(tmp_path)
    (tmp_path / "learner" / "shards.json").unlink()
    with pytest.raises(UserError, match=r"learner lacks all files"):
        checkpoint.load(tmp_path)


def test_what_a_killed_save_left_is_removed_and_nothing_else(tmp_path):
    for name in (".step-000004.tmp", "step-000002", "notes.tmp"):
        (tmp_path / name).mkdir()
    checkpoint.remove_unfinished(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.tmp", "step-000002"]


def test_a_resume_goes_on_from_the_newest(tmp_path):
    folder = RunFolder(tmp_path)
    assert newest_checkpoint(None) is None and newest_checkpoint(folder) is None
    for name in ("step-000002", "step-000010", ".step-000011.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert newest_checkpoint(folder) == folder.checkpoint_dir(10)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-000002", "step-000010"]


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (1, None, [50]),
        (2, None, [40, 50]),
        (1, 20, [20, 50]),
        (2, 20, [20, 40, 50]),
        (2, 40, [40, 50]),
        (1, 99, [50]),
        (5, None, [10, 20, 30, 40, 50]),
        (9, 10, [10, 20, 30, 40, 50]),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, keep, best, left):
    folder = RunFolder(tmp_path)
    for step in (10, 20, 30, 40, 50):
        folder.checkpoint_dir(step).mkdir(parents=True)
    checkpoint.prune(folder.checkpoints(), keep, None if best is None else folder.checkpoint_dir(best))
    assert folder.checkpoints() == [folder.checkpoint_dir(step) for step in left]


def test_an_old_checkpoint_that_can_not_be_removed_ends_no_run(tmp_path, monkeypatch):
    """As on a network file system, while another program reads it."""
    folder, remove = RunFolder(tmp_path), shutil.rmtree
    for step in (10, 20, 30):
        folder.checkpoint_dir(step).mkdir(parents=True)

    def removed(path):
        if path.name == "step-000010":
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", removed)
    (told,) = checkpoint.prune(folder.checkpoints(), 1, None)
    assert "step-000010 could not be removed: Directory not empty" in told
    assert [path.name for path in folder.checkpoints()] == ["step-000010", "step-000030"]
    monkeypatch.undo()
    assert checkpoint.prune(folder.checkpoints(), 1, None) == []
    assert [path.name for path in folder.checkpoints()] == ["step-000030"]


def test_best_last_or_a_step(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(UserError, match="no checkpoint yet"):
        find_checkpoint(folder, "best")
    for step, best in ((2, 2), (4, 4), (6, 4)):
        checkpoint.save(folder.checkpoint_dir(step), Weights(), Learner(STATE), {"step": step, "best_step": best})
    found = {which: find_checkpoint(folder, which).name for which in ("best", "last", "2", "6")}
    assert found == {"best": "step-000004", "last": "step-000006", "2": "step-000002", "6": "step-000006"}
    for which in ("5", "worst", "-1"):
        with pytest.raises(UserError, match=f"no checkpoint '{which}': give best, last or one of 2, 4, 6"):
            find_checkpoint(folder, which)
    (folder.checkpoint_dir(6) / "state.json").write_text(json.dumps({"step": 6, "best_step": None}))
    assert find_checkpoint(folder, "best").name == "step-000006", "nothing was evaluated"
    for state, what in (
        ("[]", "its state.json holds no JSON object"),
        ("{}", "its state says step 0"),
        ('{"step": 4}', "its state says step 4"),
        ('{"step": 6, "best_step": "x"}', "best_step of its state: Input should be a valid integer"),
        ('{"step": 6, "best_step": 1.5}', "best_step of its state"),
        ('{"step": 6, "best_step": -1}', "its state says that step -1 was the best"),
        ('{"step": 6, "best_step": 8}', "its state says that step 8 was the best"),
    ):
        (folder.checkpoint_dir(6) / "state.json").write_text(state)
        with pytest.raises(UserError, match=f"step-000006 can't be read: {what}"):
            find_checkpoint(folder, "best")


@pytest.mark.parametrize(
    "row",
    [
        {"step": None, "metrics": {}, "time": 1.0},
        {"step": 3, "time": 1.0},
        {
            "step": 3,
            "time": 1.0,
            "eval": {"task": "t", "split": "s", "metric": "m", "value": 1, "low": 0, "high": 1, "n": 3, "extra": 5},
        },
    ],
)
def test_a_row_that_is_of_no_step_ends_a_resume_in_one_line(tmp_path, row):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1, "time": 0.5, "metrics": {"loss": 1.0}}) + "\n" + json.dumps(row))
    with pytest.raises(UserError, match=r"metrics\.jsonl line 2 is no row of a step or of an evaluation|line 2 is not a row"):
        steps_and_figures(path)
