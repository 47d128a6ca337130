"""Recorded episodes with rewards: what is written is what is read, and a stage learns from them as from the expert that was
recorded."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as pq
import pytest
import torch
from mmrl_robotics import record
from mmrl_robotics.demos import Demos
from safetensors.torch import load_file

import runs
from mmrl import UserError
from mmrl.api.services import expert_episodes
from mmrl.api.simulators.types import Demonstration, Observation, Simulation
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Status
from mmrl.config.load import parse_config
from mmrl.policies.load import make_policy
from mmrl.train.sampling.offline import recorded
from mmrl.train.sampling.recorded_scale import as_seen, paid_otherwise, paid_range

TABLE = {"dims": 4, "size": 40, "templates": 1, "max_steps": 10}
PAID = {"stages": {"grasped": 0.1, "success": 1.0}}
COUNT = 4
STAGE = {"kind": "off-policy", "steps": 2, "updates": 2, "critics": 2, "batch_size": 16, "hidden": [16], "learning_rate": 1e-3}
STAGE |= {"iql": {}, "offline_steps": 2, "offline_updates": 3, "offline_episodes": COUNT}
SQUASHED = {"kind": "squashed", "model": "mlp", "options": {"dims": 4, "state": 8, "hidden": [16]}}


@pytest.fixture(scope="module")
def played() -> list[Demonstration]:
    episodes = expert_episodes("robotics/pick", TABLE | PAID, COUNT, environments=2)
    shown = [demonstration for demonstration, _ in episodes]
    episodes.close()
    return shown


@pytest.fixture(scope="module")
def folder(played: list[Demonstration], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "pick"
    record.write(path, played, fps=5.0)
    return path


def config(runs_dir: Path, task: dict[str, Any], policy: Any = SQUASHED, **stage: Any) -> Any:
    return parse_config(
        {
            "name": "recorded",
            "runs_dir": str(runs_dir),
            "policy": policy,
            "tasks": [task],
            "stages": [STAGE | stage],
            "simulate": {"num_envs": 4},
            "evaluate": {"num_prompts": 0},
            "record": {"trackers": []},
            "train": {"threads": 1},
        }
    )


def demos(folder: Path, **options: Any) -> dict[str, Any]:
    given = {"folder": str(folder), "simulator": "tabletop/table", "paid": "next.reward", "terminated": "next.done"}
    return {"id": "robotics/demos", "options": {**given, **TABLE, **options}}


def test_what_was_paid_is_written_and_read(folder: Path, played: list[Demonstration]) -> None:
    found = list(Demos(folder=str(folder), paid="next.reward", terminated="next.done").recorded_episodes(99))
    assert len(found) == COUNT and any(float(one.rewards_T.sum()) > 1 for one in played if one.rewards_T is not None)
    for one, other in zip(found, played, strict=True):
        assert one.rewards_T is not None and other.rewards_T is not None and torch.equal(one.rewards_T, other.rewards_T)
        assert one.terminated is other.terminated is True and torch.equal(one.actions_MA, other.actions_MA)
        assert one.state is not None and other.state is not None and torch.equal(one.state, other.state)
        assert all(torch.equal(one.images[camera], other.images[camera]) for camera in other.images)
    kinds = json.loads((folder / "meta" / "info.json").read_text())["features"]
    assert (kinds["next.reward"]["dtype"], kinds["next.done"]["dtype"]) == ("float32", "bool")


def test_success_pays_each_episode_s_last_action(folder: Path) -> None:
    for shown in Demos(folder=str(folder), paid="success").recorded_episodes(2):
        assert shown.rewards_T is not None and shown.terminated
        assert shown.rewards_T.tolist() == [0.0] * (len(shown.actions_MA) - 1) + [1.0]


def test_episodes_that_nobody_paid_have_no_rewards(tmp_path: Path) -> None:
    episodes = expert_episodes("robotics/pick", TABLE | {"reward": "none"}, 1)
    (shown, _) = next(iter(episodes))
    episodes.close()
    assert shown.rewards_T is None
    record.write(tmp_path / "none", [shown], fps=5.0)
    assert "next.reward" not in json.loads((tmp_path / "none" / "meta" / "info.json").read_text())["features"]


@pytest.mark.parametrize("way", [{}, {"iql": None, "improve": {"candidates": 4, "keep": 2, "steps": 1}}], ids=["iql", "pa-rl"])
def test_a_stage_learns_from_them_as_from_the_expert(tmp_path: Path, folder: Path, way: dict[str, Any]) -> None:
    """Of the same episodes, in the same order: all weights are equal."""
    of_expert = {"id": "robotics/pick", "options": TABLE | PAID}
    found = []
    for name, task, offline in (("expert", of_expert, "expert"), ("recorded", demos(folder), "recorded")):
        path = runs.run(config(tmp_path / name, task, offline=offline, **way)).path
        found.append(load_file(sorted((path / "checkpoints").glob("step-*"))[-1] / "learner.safetensors"))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_policy_that_sees_learns_from_their_pictures(tmp_path: Path, folder: Path) -> None:
    policy = {"kind": "robotics/small", "model": "cnn", "options": {"dims": 4, "hidden": [8], "size": 40}}
    way = {"iql": None, "improve": {"candidates": 4, "keep": 2, "steps": 1, "expectile": 0.7, "batch_size": 8}}
    told = "4 of 4 recorded episodes were paid sums such as 1.1, and an episode of the task is paid 0 to 1 in all"
    for steps in ({"offline_steps": 2}, {"offline_steps": 1, "steps": 2, "prompts_per_step": 2}):
        where, watcher = tmp_path / str(steps["offline_steps"]), runs.Silent()
        path = runs.run(config(where, demos(folder), policy, offline="recorded", **way, **steps), progress=watcher).path
        assert all(row["metrics"]["off_policy/offline"] > COUNT for row in runs.rows(path) if "metrics" in row)
        assert sum(told in note for note in watcher.notes) == ("steps" in steps), "where nothing is played, nothing else is paid"


def test_the_last_action_of_an_episode_that_was_cut_off_is_left_out(folder: Path, played: list[Demonstration]) -> None:
    policy, task = (
        make_policy(config(folder, demos(folder), offline="recorded").policy),
        Demos(folder=str(folder), paid="next.reward"),
    )
    whole, ended = recorded("t", task, played[0], policy, 0)  # type: ignore[arg-type]
    cut, how = recorded("t", task, replace(played[0], terminated=False), policy, 0)  # type: ignore[arg-type]
    count = len(played[0].actions_MA)
    assert (len(whole.choices), ended) == (count, Status.FINISHED) and (len(cut.choices), how.is_truncated) == (count - 1, True)
    assert cut.state is not None and played[0].state is not None and torch.equal(cut.state, played[0].state)
    assert whole.state is not None and torch.equal(whole.state[-1], whole.state[-2]), "what followed is unknown"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no reward": (
        {"paid": "", "terminated": ""},
        r"option paid: what each action of .* was paid must be said: set paid to its key, such as next\.reward",
    ),
    "another key": ({"paid": "next.success"}, "paid = 'next.success' is not a key of the data set .*: it has .*next.reward"),
    "an end of nothing": ({"paid": "success"}, "terminated = 'next.done' goes with rewards of the data set"),
    "metres": (
        {"units": "physical"},
        r'option units: a memory holds actions in \[-1, 1\], .*: use "simulator" if .*, or write it again with',
    ),
    "another camera": (
        {"cameras": {"top": "observation.images.front"}},
        r"recorded episode 0 \(from 0\) has pictures of top, and not of the simulator's camera 'front': name .* option cameras",
    ),
    "a row of numbers": ({"paid": "action"}, "action of frame 0 has 4 numbers, and meta/info.json says 1"),
    "fewer numbers": (
        {"dims": 7},
        r"recorded episode 0 \(from 0\) has actions of 4 numbers, and policy\.options\.dims = 7: make them equal",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_data_that_can_not_be_learned_from_are_refused(tmp_path: Path, folder: Path, why: str) -> None:
    options, told = REFUSED[why]
    policy = SQUASHED | {"options": SQUASHED["options"] | ({"dims": 7} if "dims" in options else {})}  # type: ignore[operator]
    with pytest.raises(UserError, match=told) as caught:
        runs.run(config(tmp_path, demos(folder, **options), policy, offline="recorded"))
    assert "\n" not in str(caught.value)


def test_pictures_of_other_sizes_are_told_and_those_of_other_cameras_left_out(tmp_path: Path, folder: Path) -> None:
    watcher = runs.Silent()
    cameras = {"front": "observation.images.front", "top": "observation.images.front"}
    runs.run(config(tmp_path, demos(folder, size=48, cameras=cameras), offline="recorded"), progress=watcher)
    told = "the pictures of camera 'front' are of 40 by 40 pixels in its data set, and of 48 by 48 in its simulator"
    assert sum(told in note for note in watcher.notes) == 1
    assert told in (tmp_path / "recorded" / "errors.jsonl").read_text()
    shown = next(iter(Demos(folder=str(folder), paid="success", cameras=cameras).recorded_episodes(1)))
    here = Observation(images={"front": torch.zeros(1, 40, 40, 3)}, state=None, instructions=[""])
    assert [*as_seen(shown, here, "").images] == ["front"] and [*as_seen(shown, None, "").images] == ["front", "top"]
    blind = replace(shown, images={})
    assert as_seen(blind, here, "") is blind, "a policy that needs pictures says so itself"


@pytest.mark.parametrize(
    ("rule", "paid"),
    [
        ({"stages": {"near": 0.5, "success": 2.0, "dropped": -1.0}}, (-1.5, 4.5)),
        ({"stages": {"near": 0.5, "dropped": -1.0}, "potential_based": False}, (-10.5, 7.0)),
        ({"reward": "none"}, (-0.5, 2.0)),
        ({"reward": "own"}, (-math.inf, math.inf)),
    ],
)
def test_what_an_episode_is_paid_at_most(rule: dict[str, Any], paid: tuple[float, float]) -> None:
    """By stages, of parts from 0 to 1, and by verifiers of given ranges."""
    spec = VerifierSpec(id="a/b", target="a:b")
    verifiers = [(spec, 1.0), (replace(spec, low=-1.0, high=2.0), 0.5), (spec, 0.0)]
    assert paid_range(Simulation(simulator="a/b", **rule), verifiers, 10) == paid


def test_only_sums_outside_of_what_is_paid_are_told() -> None:
    assert paid_otherwise([-0.0005, 1.0005, 0.5], 0.0, 1.0) == "" == paid_otherwise([5.0], 0.0, 0.0)
    assert paid_otherwise([0.5, 3.0, -2.0], 0.0, 1.0).startswith("2 of 3 recorded episodes were paid sums such as 3, and")


def test_a_state_of_another_length_is_said_to_be_the_data_set_s(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=r"'robotics/demos': what its data set shows .*: policy\.options\.state = 8, and .* of 4"):
        runs.run(config(tmp_path, demos(folder, state="action"), offline="recorded"))


def test_an_episode_of_which_nothing_is_left_is_named(folder: Path, played: list[Demonstration]) -> None:
    task, policy = (
        Demos(folder=str(folder), paid="next.reward"),
        make_policy(config(folder, demos(folder), offline="recorded").policy),
    )
    short = replace(
        played[0],
        actions_MA=played[0].actions_MA[:1],
        rewards_T=torch.zeros(1),
        images={camera: shown[:1] for camera, shown in played[0].images.items()},
        state=None if played[0].state is None else played[0].state[:1],
        terminated=False,
    )
    with pytest.raises(UserError, match=r"recorded episode 7 \(from 0\) is a single action, .*: remove it, or say in the data"):
        recorded("t", task, short, policy, 7)  # type: ignore[arg-type]


def test_a_task_to_which_no_episode_falls_is_told_how_many_are_needed(tmp_path: Path, folder: Path) -> None:
    tasks = [demos(folder), demos(folder) | {"name": "second"}]
    given = config(tmp_path, tasks[0], offline="recorded").model_dump(exclude_unset=True)
    stage = given["stages"][0] | {"offline_episodes": 1}
    with pytest.raises(UserError, match="'second' gives none of offline_episodes = 1 for 2 tasks: raise that"):
        runs.run(parse_config(given | {"tasks": tasks, "stages": [stage]}))


def test_what_the_simulator_pays_is_chosen_apart_from_what_the_data_say(folder: Path) -> None:
    task = Demos(**demos(folder, reward="own")["options"])
    assert task.simulation is not None and (task.simulation.reward, task.paid) == ("own", "next.reward")


def test_a_task_without_data_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'stages\.0\.offline = "recorded": task .* has no recorded episodes: use robotics/demos'):
        runs.run(config(tmp_path, {"id": "robotics/pick", "options": TABLE | PAID}, offline="recorded"))


def test_a_reward_that_is_not_finite_is_named(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "broken")
    path = tmp_path / "broken" / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    rows = table.column("next.reward").to_pylist()
    rows[3] = [float("nan")] if isinstance(rows[3], list) else float("nan")
    at = table.column_names.index("next.reward")
    pq.write_table(table.set_column(at, table.schema.field(at), pyarrow.array(rows, table.schema.field(at).type)), path)
    with pytest.raises(UserError, match=r"next\.reward of frame 3 is .*nan.*: it must be finite numbers"):
        runs.run(config(tmp_path, demos(tmp_path / "broken"), offline="recorded"))
