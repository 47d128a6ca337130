"""GR00T's files: a checkpoint is read and written in the published layout, and what it lacks is told in one line before weights
are read."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gr00t_cases import SPEC, absolute, arm, ends, gr00t, looked, published, two_robots
from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.gr00t import tiny as gr00t_tiny
from mmrl.policies.gr00t.network import load_network
from mmrl.policies.gr00t.policy import Gr00t
from mmrl.policies.load import make_policy
from pi0_cases import CALLS, DRAW, SEEDS, moved, seen


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return two_robots(tmp_path_factory.mktemp("gr00t") / "model")


@pytest.fixture(scope="module")
def bare(checkpoints, tmp_path_factory):
    """The same without weights: whatever is refused is refused before they are looked for."""
    folder = tmp_path_factory.mktemp("bare") / "model"
    shutil.copytree(checkpoints[0], folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def test_a_saved_folder_has_the_published_layout_and_is_the_same_policy(checkpoints, tmp_path):
    policy = moved(arm(checkpoints[0], noisy="one"))
    policy.fits("t", None, SPEC)
    policy.save(tmp_path / "saved")
    one = policy.act(looked(3), SEEDS[:3], CALLS[:3], 1.0)
    name = str(tmp_path / "saved")
    for again in (
        make_policy(PolicyConfig(model=name, kind="gr00t")),
        arm(checkpoints[0], source=tmp_path / "saved", noisy="one"),
    ):
        again.fits("t", None, SPEC)
        two = again.act(looked(3), SEEDS[:3], CALLS[:3], 1.0)
        assert torch.equal(one.choices, two.choices) and torch.equal(one.actions_nKA, two.actions_nKA)
    theirs, ours = (load_file(Path(where) / "model.safetensors") for where in (checkpoints[0], name))
    assert theirs.keys() == ours.keys() and any(key.startswith("backbone.model.model.visual.") for key in ours)
    for file in ("processor_config.json", "statistics.json", "embodiment_id.json", "config.json"):
        was, now = (json.loads((Path(where) / file).read_text()) for where in (checkpoints[0], name))
        assert was.items() <= now.items() and (file == "embodiment_id.json" or was == now), file
    assert load_network(tmp_path / "saved").action_head.config == policy.plan.head
    with pytest.raises(UserError, match=r"holds a policy with embodiment = 'arm', and the run file says 'joints'"):
        gr00t(name, embodiment="joints", dims=13, state=13)


def test_a_users_statistics_are_those_of_an_embodiment_from_then_on(checkpoints, tmp_path):
    figures = {"action": ends(3, 1), "observation.state": ends(6, 2)}
    (tmp_path / "stats.json").write_text(json.dumps(figures))
    given = {"embodiment": "new_embodiment", "statistics": str(tmp_path / "stats.json")}
    policy = gr00t(checkpoints[0], **given)
    assert (policy.embodiment.number, policy.embodiment.ahead, policy.state) == (10, 5, 6)
    low, high = torch.tensor(figures["action"]["q01"]), torch.tensor(figures["action"]["q99"])  # as the checkpoint's other robots
    own, state = torch.rand(2, 2, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1, torch.zeros(2, 6)
    torch.testing.assert_close(policy.embodiment.physical(own, state), (own + 1) / 2 * (high - low) + low)
    policy.save(tmp_path / "saved")
    again = gr00t(str(tmp_path / "saved"), embodiment="new_embodiment")
    assert again.embodiment.plain() == policy.embodiment.plain() and again.files.known == ["arm", "joints", "new_embodiment"]
    assert gr00t(checkpoints[0], source=tmp_path / "saved", **given).embodiment.plain() == policy.embodiment.plain()
    assert (
        policy.choice_terms()["statistics"]
        != gr00t(checkpoints[0], **given | {"statistics": "none"}).choice_terms()["statistics"]
    )


def test_without_statistics_numbers_are_the_simulators(checkpoints, tmp_path):
    policy = gr00t(checkpoints[0], embodiment="arm", statistics="none")
    assert not policy.embodiment.scaled and policy.state == 6
    found = policy.act(seen(), SEEDS, CALLS, 1.0)
    torch.testing.assert_close(found.actions_nKA, policy.choose(seen(), DRAW, 1.0)[0].clamp(-1, 1))
    policy.save(tmp_path / "saved")
    again = gr00t(str(tmp_path / "saved"), embodiment="arm")
    assert torch.equal(again.act(seen(), SEEDS, CALLS, 1.0).actions_nKA, found.actions_nKA), "and stay so"


def test_the_only_embodiment_needs_no_name(tmp_path):
    policy = gr00t(published(tmp_path / "m", {"arm": absolute()}, numbers={"arm": 7}), dims=4, state=None)
    assert (policy.embodiment.name, policy.embodiment.number, policy.state, policy.ahead) == ("arm", 7, 8, 4)


KNOWN = "arm, joints"
REFUSED = {
    "no-embodiment": ({"embodiment": ""}, f"has statistics of {KNOWN}: set policy.options.embodiment to one of {KNOWN}"),
    "unknown": (
        {"embodiment": "gr1"},
        r"policy\.options\.embodiment = 'gr1' is not in .*: it has simpler_env_google, .*arm, joints",
    ),
    "no-statistics": (
        {"embodiment": "libero_sim"},
        f"has statistics of {KNOWN}, and none of policy.options.embodiment = 'libero_sim': choose one that it has, or set "
        r"policy\.options\.statistics to a file with those of your data, or to 'none'",
    ),
    "dims": ({"dims": 7}, r"dims = 7, and actions of the embodiment 'arm' have 4 numbers \(x 1, turn 2, gripper 1\): make them"),
    "state": ({"state": 0}, r"state = 0, and states of the embodiment 'arm' have 8 numbers \(x 1, arm 5, gripper 2\): make them"),
    "chunk": ({"chunk": 5}, r"chunk = 5 is too many for this GR00T: 4 actions are predicted"),
    "cameras": (
        {"cameras": ["top"]},
        r"cameras = top, and the embodiment 'arm' looks through image, wrist_image: name one for each",
    ),
    "noise": ({"noise_level": 0.0}, r"noise_level = 0\.0 must be a number above 0"),
    "noisy": ({"noisy": "some"}, r"noisy = 'some' must be one of 'all', 'one', 'learned'"),
    "statistics": ({"statistics": {"a": 1}}, r"policy\.options\.statistics = .* must be a text"),
    "no-file": ({"statistics_kind": "min-max"}, r"statistics_kind = 'min-max' says what statistics mean, and .* names none"),
    "convention": ({"gripper": "wide"}, r"policy\.options\.gripper = 'wide' must be one of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_weights_are_read(bare, case):
    options, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as told:
        arm(str(bare), **options)
    assert "\n" not in str(told.value)
    if case in ("no-embodiment", "unknown", "no-statistics"):
        config = PolicyConfig(model=str(bare), kind="gr00t", options={"embodiment": "arm", "dims": 4, **options})
        with pytest.raises(UserError, match=message):
            Gr00t.check(config)


def damaged(folder, change, tmp_path):
    shutil.copytree(folder, tmp_path / "m")
    tables = {file: json.loads((tmp_path / "m" / f"{file}.json").read_text()) for file in ("processor_config", "statistics")}
    tables["embodiment_id"] = json.loads((tmp_path / "m" / "embodiment_id.json").read_text())
    change(tables, tables["processor_config"]["processor_kwargs"]["modality_configs"]["joints"], tables["statistics"]["joints"])
    for file, table in tables.items():
        if table is None:
            (tmp_path / "m" / f"{file}.json").unlink()
        else:
            (tmp_path / "m" / f"{file}.json").write_text(json.dumps(table))
    return str(tmp_path / "m")


def setting(*path, value):
    def change(tables, config, statistics):
        *way, last = path
        where = {"config": config, "statistics": statistics, "files": tables}[way[0]]
        for step in way[1:]:
            where = where[step]
        where[last] = copy.deepcopy(value)

    return change


DAMAGED = {
    "no-file": (
        setting("files", "statistics", value=None),
        r"has no statistics\.json, which says how its numbers are normalised",
    ),
    "no-settings": (setting("files", "processor_config", value=None), r"has no processor_config\.json"),
    "no-kwargs": (setting("files", "processor_config", value={}), r"has no processor_kwargs with modality_configs: take all"),
    "number": (
        setting("files", "embodiment_id", "joints", value="4"),
        r"embodiment_id\.json: joints = '4' must be a whole number",
    ),
    "too-many": (setting("files", "embodiment_id", "joints", value=40), r"joints = 40, and config\.json has 32: take all files"),
    "no-group": (
        setting("statistics", "relative_action", value={"eef_9d": ends(9, 1)}),
        r"embodiment 'joints': statistics\.json has no min and max of relative_action\.arm: there are eef_9d: take all files",
    ),
    "no-end": (
        setting("statistics", "state", "gripper", value={"min": [0]}),
        r"has no q01 and q99 of state\.gripper: it has min:",
    ),
    "not-finite": (
        setting("statistics", "state", "gripper", "q01", value=[float("nan")]),
        r"state\.gripper has a number that is not",
    ),
    "other-width": (
        setting("statistics", "state", "joints", value=ends(4, 1)),
        r"arm has 3 numbers, 3 in relative_action, and its ",
    ),
    "few-steps": (
        setting("statistics", "relative_action", "arm", value=ends(3, 1, 4)),
        r"has ends for 4 steps, and 5 actions are",
    ),
    "far-ahead": (setting("config", "action", "delta_indices", value=[*range(9)]), r"it foresees 9 actions, and config\.json 5"),
    "no-source": (
        setting("config", "action", "action_configs", 2, "state_key", value="leg"),
        r"its action arm is relative to leg, and its state has eef_9d, gripper, joints: take all files",
    ),
    "other-form": (
        setting("config", "action", "action_configs", 0, "format", value="XYZ_ROTVEC"),
        r"its action eef_9d is relative as eef, xyz_rotvec, which can't be read",
    ),
    "means": (
        lambda tables, config, statistics: [
            setting("config", "state", "mean_std_embedding_keys", value=["joints"])(tables, config, statistics),
            setting("statistics", "state", "joints", value={"min": [0] * 3, "max": [1] * 3})(tables, config, statistics),
        ],
        r"has no mean and std of state\.joints: it has min, max: take all files",
    ),
    "pictures": (
        setting("files", "processor_config", "processor_kwargs", "image_target_size", value=[0, 64]),
        r"processor_config\.json: image_target_size = \[0, 64\] must be pixels",
    ),
    "words": (setting("config", "action", "modality_keys", value=3), r"processor_config\.json or statistics\.json is damaged"),
    "no-names": (setting("config", "video", "modality_keys", value=["image", []]), r"is damaged .*\[\]\] must be names of"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_named_before_weights_are_read(bare, case, tmp_path):
    change, message = DAMAGED[case]
    with pytest.raises(UserError, match=message) as told:
        gr00t(damaged(bare, change, tmp_path), embodiment="joints", dims=13, state=13)
    assert "\n" not in str(told.value)


def test_folders_that_are_no_gr00t(bare, tmp_path):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "pi0"}')
    for name, message in (("nothing", "has no config.json"), ("other", "its config.json is of 'pi0', not of Gr00tN1d7")):
        for refuse in (lambda name: Gr00t.check(PolicyConfig(model=name, kind="gr00t")), gr00t):
            with pytest.raises(UserError, match=message):
                refuse(str(tmp_path / name))
    for name in ("/nowhere/at/all", "a/b/c"):
        with pytest.raises(UserError, match="is not a folder: give a folder or hub name of a GR00T"):
            Gr00t.check(PolicyConfig(model=name, kind="gr00t"))
    Gr00t.check(PolicyConfig(model="nvidia/GR00T-N1.7-3B", kind="gr00t"))
    with pytest.raises(UserError, match="'tiny:pi0' is no GR00T: write tiny:gr00t"):
        Gr00t.check(PolicyConfig(model="tiny:pi0", kind="gr00t"))
    assert gr00t_tiny.full_name("tiny:gr00t", 7) == "tiny:gr00t:hidden=64,layers=2,chunk=16,seed=7"
    shutil.copytree(bare, tmp_path / "m", ignore=shutil.ignore_patterns("backbone"))
    table = json.loads((tmp_path / "m" / "config.json").read_text()) | {"model_name": str(bare / "backbone")}
    (tmp_path / "m" / "config.json").write_text(json.dumps(table))
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        UserError, match=r"no processor of a Qwen3-VL in .*: set policy\.options\.processor to a folder or hub name"
    ):
        arm(str(tmp_path / "m"), processor=str(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"can't be read: .*safetensors"):  # the processor is there, and the weights are not
        arm(str(tmp_path / "m"))
