"""A GR00T that LeRobot saved after fine-tuning: read as NVIDIA's is, and written as LeRobot's. `test_gr00t_lerobot` compares with
LeRobot itself."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from gr00t_cases import arm, gr00t, looked, tuned, two_robots
from mmrl.api.errors import UserError
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.gr00t.policy import Gr00t
from mmrl.policies.load import make_policy
from pi0_cases import CALLS, SEEDS, moved

FILES = ("config.json", "policy_preprocessor.json", "policy_postprocessor.json")
ENDS = {
    f"{feature}.{end}": torch.full((size,), value)
    for feature, size in (("observation.state", 8), ("action", 4))
    for end, value in (("min", -3.0), ("max", 5.0))
}
"""Statistics of a data set."""
DRAW = CallRandomness(seeds_n=SEEDS[:3], calls_n=CALLS[:3])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return two_robots(tmp_path_factory.mktemp("gr00t") / "model")[0]


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    return tuned(tmp_path_factory.mktemp("tuned") / "model", base)


def test_it_is_the_policy_that_nvidias_files_describe(base, folder):
    policy, published, shown = gr00t(str(folder), dims=4, state=None, chunk=2), arm(base), looked(3)
    assert policy.embodiment.plain() == published.embodiment.plain()
    assert (policy.embodiment.number, policy.embodiment.cameras, policy.state) == (3, ("image", "wrist_image"), 8)
    one, two = (p.choose(shown, DRAW, 1.0) for p in (policy, published))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert torch.equal(policy.embodiment.physical(one[0], shown.state), published.embodiment.physical(two[0], shown.state))


def test_it_is_saved_as_lerobot_does_and_needs_its_base_no_more(base, folder, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    own = shutil.copytree(folder, tmp_path / "own")
    table = json.loads((own / "config.json").read_text()) | {"base_model_path": str(tmp_path / "base")}
    (own / "config.json").write_text(json.dumps(table))
    policy = moved(gr00t(str(own), dims=4, state=None))
    policy.save(tmp_path / "saved")
    shutil.rmtree(tmp_path / "base")
    theirs, ours = (load_file(where / "model.safetensors") for where in (own, tmp_path / "saved"))
    embeddings = "_groot_model.backbone.model.{}.weight".format
    assert theirs.keys() - ours.keys() == {embeddings("lm_head")}
    assert ours.keys() - theirs.keys() == {embeddings("model.language_model.embed_tokens")}, "which LeRobot ties"
    assert all((own / name).read_bytes() == (tmp_path / "saved" / name).read_bytes() for name in FILES)
    again, shown = make_policy(PolicyConfig(model=str(tmp_path / "saved"), kind="gr00t")), looked(3)
    assert torch.equal(policy.choose(shown, DRAW, 1.0)[1], again.choose(shown, DRAW, 1.0)[1])
    with pytest.raises(UserError, match=r"tuned from, base_model_path of its config\.json: .*base' is not a folder: give"):
        gr00t(str(own), dims=4, state=None)


def test_statistics_of_the_data_set_are_for_all_numbers(base, tmp_path):
    policy = gr00t(str(tuned(tmp_path / "model", base, ENDS, "new_embodiment")), dims=4, state=None)
    assert (policy.embodiment.number, policy.embodiment.cameras) == (0, ("image", "wrist_image")), "as LeRobot: by the alphabet"
    shown = looked(2)
    torch.testing.assert_close(policy._state(shown)[:, :8], ((shown.state + 3) / 4 - 1).clamp(-1, 1))
    own = torch.rand(2, 2, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    torch.testing.assert_close(policy.embodiment.physical(own, shown.state), (own + 1) * 4 - 3)


def test_a_users_statistics_and_adapters_are_saved_in_nvidias_layout(folder, tmp_path):
    (tmp_path / "stats.json").write_text(json.dumps({"action": {"min": [0.0] * 4, "max": [2.0] * 4}}))
    given = {"embodiment": "new_embodiment", "statistics": str(tmp_path / "stats.json"), "statistics_kind": "min-max", "dims": 4}
    policy = gr00t(str(folder), **given, state=0)
    adapted = gr00t(str(folder), lora=LoraConfig(rank=2), dims=4, state=None)
    for name, one in (("own", policy), ("adapted", adapted)):
        one.save(tmp_path / name)
        assert not (tmp_path / name / FILES[1]).exists() and (tmp_path / name / "processor_config.json").is_file()
        again = make_policy(PolicyConfig(model=str(tmp_path / name), kind="gr00t"))
        assert again.embodiment.plain() == one.embodiment.plain()
    both = gr00t(str(folder), lora=LoraConfig(rank=2), **given, state=0)
    for name, one, kept in (("adapted", adapted, "policy_preprocessor.json"), ("both", both, "processor_config.json")):
        one.save(tmp_path / name)
        make_policy(PolicyConfig(model=str(tmp_path / name), kind="gr00t")).save(tmp_path / "whole" / name)
        assert (tmp_path / "whole" / name / kept).is_file()
        again = make_policy(PolicyConfig(model=str(tmp_path / "whole" / name), kind="gr00t"))
        assert again.embodiment.scaled and again.embodiment.plain() == one.embodiment.plain()


def step(file, number, **values):
    def change(folder):
        table = json.loads((folder / file).read_text())
        one = table["steps"][number]
        one |= {key: value for key, value in values.items() if key in one and key != "config"}
        one["config"] |= values.get("config", {})
        (folder / file).write_text(json.dumps(table))

    return change


def without(*keys):
    def change(folder):
        save_file({key: x for key, x in ENDS.items() if key not in keys}, folder / "policy_pack.safetensors")

    return change


def field(**values):
    def change(folder):
        (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | values))

    return change


PACK = FILES[1], 1
BAD = {
    "no-processors": (lambda folder: (folder / FILES[1]).unlink(), r"it has no policy_preprocessor\.json, which says how"),
    "no-statistics": (
        lambda folder: (folder / "policy_pack.safetensors").unlink(),
        r"its processors have no statistics of its data",
    ),
    "no-ends": (
        without("action.min", "action.max"),
        r"policy_pack\.safetensors has no action\.min and action\.max: copy all files",
    ),
    "n1.5": (
        step(*PACK, registry_name="groot_pack_inputs_v3"),
        r"policy_preprocessor\.json has the step 'groot_pack_inputs_v3', which can't be done here: choose a GR00T N1\.7",
    ),
    "no-ranges": (step(*PACK, config={"normalize_min_max": False}), r"doesn't normalise its numbers \(normalize_min_max\)"),
    "damaged": (
        step(*PACK, config={"embodiment_mapping": 3}),
        r"is not as LeRobot writes it \(AttributeError: .*: copy the folder",
    ),
    "no-base": (field(base_model_path=None), r"its config\.json has no base_model_path, the model that it was tuned from"),
    "lost-base": (field(base_model_path="/lost"), r"base_model_path of its config\.json: '/lost' is not a folder: give a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_told_before_weights_are_read(case, base, tmp_path):
    change, message = BAD[case]
    folder = tuned(tmp_path / "model", base, ENDS, "new_embodiment")
    change(folder)
    with pytest.raises(UserError, match=message) as told:
        Gr00t.check(PolicyConfig(model=str(folder), kind="gr00t", options={"dims": 4}))
    assert "\n" not in str(told.value) and told.value.key == "policy.model" and str(folder) in told.value.what
