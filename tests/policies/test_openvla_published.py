"""OpenVLA against its published code: arrays that the code of openvla/openvla computed, see tests/golden/openvla/README.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.vla import VLA
from mmrl.policies.openvla import components
from mmrl.policies.resizing import crop_like_tensorflow
from tests.support import openvla_parity as given

GOLDEN = Path(__file__).parents[1] / "golden" / "openvla"
ARRAYS = np.load(GOLDEN / "arrays.npz")
INSTRUCTION = "Pick up the red cube"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder that the published code saved, with its config.json; only the sizes of the small towers are added."""
    folder = tmp_path_factory.mktemp("published")
    shapes = json.loads((GOLDEN / "weights.json").read_text())
    weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for name, tensor in weights.items():
        given.fill(name, tensor)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((GOLDEN / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "towers": given.TOWERS}))
    (folder / "preprocessor_config.json").write_text((GOLDEN / "preprocessor_config.json").read_text())
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<PAD>"}
    PreTrainedTokenizerFast(tokenizer_object=given.tokenizer(), **special).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def policy(checkpoint):
    return VLA(PolicyConfig(model=str(checkpoint), kind="vla"), seed=1, dims=given.DIMS, gripper="open-high")


def seen(*pictures, state=None):
    images = {f"camera{i}": torch.from_numpy(np.array(picture))[None] for i, picture in enumerate(pictures)}
    return Observation(images=images, state=state, instructions=[INSTRUCTION])


def near(found, name):
    """Equal to 1e-5, or to 1e-5 of the largest number."""
    wanted = ARRAYS[name]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))


@torch.no_grad()
def test_prompt_pictures_logits_and_actions_are_the_published_ones(policy):
    shown = seen(given.picture(0))
    pictures = policy.seeing.pictures(shown)
    ids = policy.seeing.prompt(INSTRUCTION, policy.seeing.sizes(shown)).ids
    patches = (given.SIZE // given.PATCH) ** 2
    assert ids[[0, *range(1 + patches, len(ids) - 1)]].tolist() == ARRAYS["ids"][0].tolist() and ids[-1] == given.EMPTY
    pixels = policy.seeing.media(pictures)["pixel_values"]
    near(pixels[..., ::5, ::5], "pixels")
    logits = policy.vlm.model(ids[None], pixel_values=pixels).logits
    near(logits[..., torch.from_numpy(given.COLUMNS)], "logits")
    seeds = torch.zeros(1, dtype=torch.long)
    actions, bins, _, _ = policy.choose(shown, CallRandomness(seeds_n=seeds, calls_n=seeds), 0.0)
    assert policy.action_ids[bins.flatten()].tolist() == ARRAYS["tokens"][0].tolist()
    near(policy.statistics.action.unnormalize(actions)[0, 0], "action")


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


@pytest.fixture(scope="module")
def tuned(checkpoint, tmp_path_factory):
    """The folder that OpenVLA-OFT saves after fine-tuning, whose names begin with `module.` after distributed training."""
    folder = tmp_path_factory.mktemp("tuned")
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    (folder / "dataset_statistics.json").write_text(json.dumps(given.statistics()))
    for kind, shapes in json.loads((GOLDEN / "components.json").read_text()).items():
        weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
        for name, weight in weights.items():
            given.fill(f"{kind}.{name}", weight)
        torch.save({f"module.{name}": w for name, w in weights.items()}, folder / f"{kind}--150000_checkpoint.pt")
    return folder


def oft(folder, **options):
    options = {"dims": given.DIMS, "chunk": given.CHUNK, "gripper": "open-high", **options}
    return VLA(PolicyConfig(model=str(folder), kind="vla"), seed=1, **options)


def two():
    return seen(given.picture(0), given.picture(1), state=torch.from_numpy(given.state())[None].float())


@torch.no_grad()
def test_tokens_in_parallel_are_ofts(checkpoint, tuned):
    """The logits of all slots, from one picture, and from two and the robot's state."""
    one = oft(checkpoint, decoding="oft")
    assert (one.state, one.head_kind) == (0, "tokens")
    both = oft(tuned, head="tokens", cameras=["camera0", "camera1"])
    assert (both.state, both.decoding) == (given.STATE, "oft"), "as its files say"
    kept = np.flatnonzero(np.isin(given.COLUMNS, one.action_ids.numpy()))
    bins = given.WORDS - 1 - given.COLUMNS[kept]
    for policy, shown, name in ((one, seen(given.picture(0)), "oft_logits"), (both, two(), "oft_logits_two")):
        logits = policy.features(shown)[0].reshape(-1, 256)
        wanted = ARRAYS[name][0][:, kept]
        np.testing.assert_allclose(logits[:, bins], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_the_crop_is_ofts():
    """Nine tenths of the area, as TensorFlow cuts and scales it; a sum in another order may round one level off."""
    picture = torch.from_numpy(np.array(given.picture(0, 224, 224))).permute(2, 0, 1)[None]
    found = crop_like_tensorflow(picture, 0.9, 224)[0].permute(1, 2, 0)[1::4, 2::4].numpy().astype(int)
    away = np.abs(found - np.load(GOLDEN / "crop.npz")["cropped"].astype(int))
    assert found.shape == (56, 56, 3) and away.max() <= 1 and (away > 0).mean() < 2e-3


@torch.no_grad()
def test_the_regression_head_is_ofts(tuned, tmp_path):
    policy = oft(tuned, cameras=["camera0", "camera1"])
    assert (policy.state, policy.decoding, policy.head_kind) == (given.STATE, "oft", "l1")
    features, _ = policy.features(two())
    near(features.view(1, given.DIMS * given.CHUNK, -1), "l1_states")
    near(policy.head.model(features), "l1_normal")
    seeds = torch.zeros(1, dtype=torch.long)
    middle = policy.choose(two(), CallRandomness(seeds_n=seeds, calls_n=seeds), 0.0)[0]
    near(policy.statistics.action.unnormalize(middle)[0], "l1_actions")

    policy.save(tmp_path / "saved")
    for kind in ("action_head", "proprio_projector"):
        before, after = (components.read(next(folder.glob(f"{kind}--*"))) for folder in (tuned, tmp_path / "saved"))
        assert before.keys() == after.keys() and all(torch.equal(after[name], w) for name, w in before.items())
    kept = json.loads((tmp_path / "saved" / "dataset_statistics.json").read_text())[given.KEY]
    for part in ("action", "proprio"):
        assert kept[part].items() >= {k: v for k, v in given.statistics()[given.KEY][part].items() if k[0] == "q"}.items()
