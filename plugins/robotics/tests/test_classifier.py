"""A reward from pictures of success and of failure: when it pays, and what it refuses."""

from __future__ import annotations

import math
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from mmrl_robotics.classifier import Sight, Succeeded, fitted
from PIL import Image

from mmrl import Case, Prompt, Status, UserError
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.registry import plugins
from mmrl.rollout.simulators.lockstep import make_lane
from mmrl.rollout.simulators.recorded import EpisodeJob


def picture(red: int) -> np.ndarray:
    """One that is red up to a height, blue above it."""
    shown = np.zeros((32, 32, 3), np.uint8)
    shown[32 - red :, :, 0], shown[: 32 - red, :, 2] = 250, 250
    return shown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of success, if at least half is red."""
    for side, heights in (("success", range(18, 32, 2)), ("failure", range(0, 14, 2))):
        (tmp_path / side).mkdir()
        for height in heights:
            Image.fromarray(picture(height)).save(tmp_path / side / f"{height}.png")
    (tmp_path / "failure" / "notes.txt").write_text("of Tuesday")
    return tmp_path


def case(*heights: int) -> Case:
    calls = len(heights) - 1
    track = TrajectoryData(
        instruction="fill it",
        images={"front": torch.from_numpy(np.stack([picture(height) for height in heights]))},
        state=None,
        choices=torch.zeros(calls, 1, 1),
        logprobs_TKC=torch.zeros(calls, 1, 1),
        valid_TK=torch.ones(calls, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(calls, 1),
    )
    return Case(completion="", rollout=Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track))


@pytest.mark.slow
def test_the_call_that_first_leads_to_success_is_paid(folder: Path) -> None:
    """Not one whose beginning shows it, nor a later one; what shows success is what the pictures of success do."""
    verifier = Succeeded(model="tiny", folder=str(folder), device="cpu")
    found = verifier([case(1, 5, 21, 27, 3, 29), case(1, 3, 5), case(29, 1)])
    assert [score.steps for score in found] == [(0.0, 1.0, 0.0, 0.0, 0.0), (0.0, 0.0), (0.0,)]
    assert [score.value for score in found] == [1.0, 0.0, 0.0]


@pytest.mark.slow
def test_a_probability_is_what_the_layers_say_and_the_threshold_is_of_it(folder: Path) -> None:
    verifier = Succeeded(model="tiny", folder=str(folder), device="cpu")
    features = verifier.model.encode([Image.fromarray(picture(16))])
    linear, norm, _, last = (verifier.classifier.layers[n] for n in range(4))
    x = linear.weight.detach().numpy() @ ((features[0] - verifier.classifier.mean_D) / verifier.classifier.std_D).numpy()
    x = x + linear.bias.detach().numpy()
    x = (x - x.mean()) / math.sqrt(x.var() + 1e-5) * norm.weight.detach().numpy() + norm.bias.detach().numpy()
    logit = (last.weight.detach().numpy() @ np.maximum(x, 0) + last.bias.detach().numpy()).item()
    chance = 1 / (1 + math.exp(-logit))
    assert verifier.probabilities(features).item() == pytest.approx(chance, abs=1e-5) and 0.001 < chance < 0.999
    for threshold, paid in ((chance + 5e-4, 0.0), (chance - 5e-4, 1.0)):
        verifier.threshold = threshold
        assert verifier([case(0, 16)])[0].value == paid


@pytest.mark.slow
def test_the_same_pictures_give_the_same_classifier_and_few_of_one_side_count_as_much(folder: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    success, failure = torch.randn(3, 4, generator=draw) + 1, torch.randn(200, 4, generator=draw) - 1
    one, two = fitted(success, failure), fitted(success, failure)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert (one(success) > 0).all() and (one(failure) < 0).float().mean() > 0.95


SIGHT = {"model": "tiny", "device": "cpu"}


def task(folder: Path, **options: object) -> Any:
    given = {"dims": 4, "size": 36, "max_steps": 6, "stages": {"seen_success": 1.0}, "terminate_on_success": False}
    return plugins.registry().make_task("robotics/reach", given | {"classifier": SIGHT | {"folder": str(folder)}} | options)


@pytest.mark.slow
def test_an_episode_ends_with_the_first_picture_of_success(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted pictures: environment n shows success after n + 2 steps, and on reset, which isn't looked at. What the environment
    calls success stays its own, and one whose episode is over isn't looked at."""
    own = task(folder)
    sees, heights = own.simulation.sees_success, []

    def planted(seen: Observation) -> torch.Tensor:
        first = len(heights)
        heights.append(len(seen))
        shown = np.stack([picture(29 if first + 1 >= n + 2 else 5) for n in planted.left])
        found = sees(Observation(images={"front": torch.from_numpy(shown)}, state=None, instructions=seen.instructions))
        planted.left = [n for n, done in zip(planted.left, found.tolist(), strict=True) if not done]
        return found

    planted.left = [0, 1, 2]
    lane = make_lane(replace(own.simulation, sees_success=planted), 3, "cpu")
    jobs = [EpisodeJob(prompt=Prompt(messages=[], id=str(n), seed=n), seed=n) for n in range(3)]
    lane.begin([*jobs])
    while envs := lane.active:
        idle = torch.zeros(len(envs), 1, 4)
        lane.play(ActionSample(actions_nKA=idle, choices=idle[:, 0], logprobs_nKC=torch.zeros(len(envs), 1, 1)), envs)
    lane.tracks()
    assert heights == [3, 3, 2, 1] and [job.status for job in jobs] == [Status.FINISHED] * 3
    for n, job in enumerate(jobs):
        assert job.outcome["steps"] == n + 2 and job.outcome["seen_success"] == job.outcome["return"] == 1
        assert job.outcome["success"] == job.outcome["success_at_end"] == 0, "the environment saw none"
        assert job.track.rewards_TK[:, 0].tolist() == [0.0] * (n + 1) + [1.0]
    lane.simulator.close()


@pytest.mark.slow
def test_it_sees_by_its_camera_and_other_processes_load_their_own(folder: Path) -> None:
    sees = task(folder).simulation.sees_success
    shown = torch.from_numpy(np.stack([picture(29), picture(3)]))
    seen = Observation(images={"front": shown, "wrist": shown.flip(0)}, state=None, instructions=["", ""])
    assert sees(seen).tolist() == [True, False]
    again = pickle.loads(pickle.dumps(sees))
    assert again._loaded is None and again(seen).tolist() == [True, False]
    assert Sight(SIGHT | {"folder": str(folder), "camera": "wrist"})(seen).tolist() == [False, True]
    with pytest.raises(UserError, match=r"classifier.camera = 'back' is not a camera of the simulator, which has front, wrist"):
        Sight(SIGHT | {"folder": str(folder), "camera": "back"})(seen)
    with pytest.raises(UserError, match="has no part 'seen_success' for the task's stages"):
        make_lane(replace(task(folder).simulation, sees_success=None), 1, "cpu")


@pytest.mark.slow
def test_lanes_that_ask_at_once_have_one_classifier(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that a single lane would have: nobody draws beside it."""
    alone, shared, third = (Sight(SIGHT | {"folder": str(folder)} | more) for more in ({"threshold": 0.7}, {}, {}))
    seen = Observation(images={"front": torch.from_numpy(picture(16)[None])}, state=None, instructions=[""])
    alone(seen)
    made: list[int] = []
    begin = Succeeded.__init__

    def counted(self: Succeeded, **options: Any) -> None:
        made.append(1)
        begin(self, **options)

    monkeypatch.setattr(Succeeded, "__init__", counted)
    both = Barrier(2)

    def ask() -> None:
        both.wait()
        shared(seen)

    with ThreadPoolExecutor(2) as pool:
        for asked in [pool.submit(ask) for _ in range(2)]:
            asked.result()
    third(seen)
    assert made == [1] and third._loaded is shared._loaded, "nor is one loaded for each task with the same option"
    assert alone._loaded is not None and shared._loaded is not None
    wanted, found = (sight._loaded.classifier.parameters() for sight in (alone, shared))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"folder": 3}, "classifier needs a folder, a text"),
        ({"model": None}, "classifier needs a model, a text"),
        ({"folder": "nowhere"}, "classifier: folder = 'nowhere': nowhere/success is no folder"),
        ({"threshold": 2}, "classifier: threshold = 2 must be a number between 0 and 1"),
        ({"treshold": 0.5}, "classifier.treshold is unknown: choose of model, folder, threshold"),
        ({"device": "tpu"}, "classifier: device = 'tpu' is unknown"),
    ],
)
def test_a_classifier_that_cannot_end_episodes_is_refused(folder: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as error:
        task(folder, classifier=SIGHT | {"folder": str(folder)} | options)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="classifier = 3 must be a table"):
        task(folder, classifier=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"folder": "nowhere"}, "folder = 'nowhere': nowhere/success is no folder: check the path, which is relative to"),
        ({"threshold": 1}, "threshold = 1 must be a number between 0 and 1"),
        ({"threshold": True}, "threshold = True must be a number"),
        ({"camera": "back"}, "camera = 'back' is not a camera of task 'pick'"),
        ({"device": "tpu"}, "device = 'tpu' is unknown"),
    ],
)
def test_options_that_cannot_be(folder: Path, options: dict[str, object], said: str) -> None:
    registry = plugins.registry()
    given = {"model": "tiny", "folder": str(folder)} | options
    with pytest.raises(UserError) as error:
        registry.check_verifier(registry.get("verifiers", "robotics/classifier"), given, {"pick": ("front",)})
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_pictures_that_are_missing_broken_or_alike_are_refused_in_one_line(folder: Path) -> None:
    good = (folder / "success" / "18.png").read_bytes()
    for n in range(7):
        (folder / "failure" / f"{2 * n}.png").write_bytes(good)
    for path in (folder / "success").iterdir():
        path.write_bytes(good)
    with pytest.raises(UserError, match=r"takes 0 of 7 of its pictures of success for one at threshold = 0\.75: lower it"):
        Succeeded(model="tiny", folder=str(folder), device="cpu")
    (folder / "success" / "18.png").write_bytes(good[:40])
    with pytest.raises(UserError, match=r"18\.png"):
        Succeeded(model="tiny", folder=str(folder), device="cpu")
    for path in (folder / "success").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"there is no picture in .*success: give some of success"):
        Succeeded(model="tiny", folder=str(folder), device="cpu")
