"""OpenVLA against its published code: arrays that the code of openvla/openvla computed, see tests/golden/openvla/README.md."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import openvla_parity as given
from mmrl.policies.openvla import components
from mmrl.policies.resizing import crop_like_tensorflow
from openvla_published import ARRAYS, GOLDEN, INSTRUCTION, chosen, in_parallel, oft, one_by_one, openvla, regressed, seen, two
from openvla_published import checkpoint as make_checkpoint
from openvla_published import tuned as make_tuned
from peer_pythons import Pairs, assert_same


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def tuned(checkpoint, tmp_path_factory):
    return make_tuned(checkpoint, tmp_path_factory.mktemp("tuned"))


@pytest.fixture(scope="module")
def policy(checkpoint):
    return openvla(checkpoint)


def assert_near(pairs: Pairs, least: float = 1.0) -> None:
    """Equal to 1e-5, or to 1e-5 of the largest number."""
    largest = {name: max(least, float(theirs.abs().max())) for name, (_, theirs) in pairs.items()}
    assert_same(pairs, **{name: (1e-5 * size, 1e-5) for name, size in largest.items()})


def test_prompt_pictures_logits_and_actions_are_the_published_ones(policy):
    shown = seen(given.picture(0))
    ids = policy.seeing.prompt(INSTRUCTION, policy.seeing.sizes(shown)).ids
    patches = (given.SIZE // given.PATCH) ** 2
    assert ids[[0, *range(1 + patches, len(ids) - 1)]].tolist() == ARRAYS["ids"][0].tolist() and ids[-1] == given.EMPTY
    assert policy.action_ids[chosen(policy, shown)[1].flatten()].tolist() == ARRAYS["tokens"][0].tolist()
    assert_near(one_by_one(policy))


def test_a_saved_folder_is_one_that_the_published_code_reads(policy, checkpoint, tmp_path):
    """Its names and shapes of weights, and its settings."""
    policy.save(tmp_path)
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path))
    assert {name: list(w.shape) for name, w in after.items()} == json.loads((GOLDEN / "weights.json").read_text())
    assert all(torch.equal(before[name], w) for name, w in after.items())
    theirs, ours = (json.loads((folder / "config.json").read_text()) for folder in (GOLDEN, tmp_path))
    for name in ("model_type", "vision_backbone_id", "llm_backbone_id", "arch_specifier", "image_sizes", "norm_stats"):
        assert ours[name] == theirs[name]
    for name in given.LLAMA:
        assert ours["text_config"][name] == theirs["text_config"][name]
    for name in ("input_sizes", "means", "stds", "interpolations", "image_resize_strategy"):
        theirs, ours = (json.loads((folder / "preprocessor_config.json").read_text()) for folder in (GOLDEN, tmp_path))
        assert ours[name] == theirs[name]


# -- OpenVLA-OFT ------------------------------------------------------------------------------------------------------------


def test_tokens_in_parallel_are_ofts(checkpoint, tuned):
    """The logits of all slots, from one picture, and from two and the robot's state."""
    one = oft(checkpoint, decoding="oft")
    assert (one.state, one.head_kind) == (0, "tokens")
    both = oft(tuned, head="tokens", cameras=["camera0", "camera1"])
    assert (both.state, both.decoding) == (given.STATE, "oft"), "as its files say"
    assert_near(in_parallel(one, seen(given.picture(0)), "oft_logits"), least=0)
    assert_near(in_parallel(both, two(), "oft_logits_two"), least=0)


def test_the_crop_is_ofts():
    """Nine tenths of the area, as TensorFlow cuts and scales it; a sum in another order may round one level off."""
    picture = torch.from_numpy(np.array(given.picture(0, 224, 224))).permute(2, 0, 1)[None]
    found = crop_like_tensorflow(picture, 0.9, 224)[0].permute(1, 2, 0)[1::4, 2::4].numpy().astype(int)
    away = np.abs(found - np.load(GOLDEN / "crop.npz")["cropped"].astype(int))
    assert found.shape == (56, 56, 3) and away.max() <= 1 and (away > 0).mean() < 2e-3


def test_the_regression_head_is_ofts(tuned, tmp_path):
    policy = oft(tuned, cameras=["camera0", "camera1"])
    assert (policy.state, policy.decoding, policy.head_kind) == (given.STATE, "oft", "l1")
    assert_near(regressed(policy))

    policy.save(tmp_path / "saved")
    for kind in ("action_head", "proprio_projector"):
        before, after = (components.read(next(folder.glob(f"{kind}--*"))) for folder in (tuned, tmp_path / "saved"))
        assert before.keys() == after.keys() and all(torch.equal(after[name], w) for name, w in before.items())
    kept = json.loads((tmp_path / "saved" / "dataset_statistics.json").read_text())[given.KEY]
    for part in ("action", "proprio"):
        assert kept[part].items() >= {k: v for k, v in given.statistics()[given.KEY][part].items() if k[0] == "q"}.items()
