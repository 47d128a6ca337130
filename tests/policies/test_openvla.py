"""Checkpoints in OpenVLA's layout: the towers of timm, the wiring, the files, what is sampled and learned, what is refused."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn.functional import conv2d, gelu, layer_norm

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import CriticConfig, LoraConfig, PolicyConfig
from mmrl.policies.acting.vla import VLA
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.critic import Critic
from mmrl.policies.openvla.model import OpenVLA, OpenVLAConfig
from mmrl.policies.openvla.reading import Pictures
from mmrl.policies.vlm import tiny

TINY = "tiny:openvla:hidden=32,layers=2"
SEEDS, CALLS = torch.arange(50, 56), torch.arange(6)
TEXTS = ["Pick up the red cube", "push it", "pick up the red cube", "stack the ball on the yellow box", "push it", "x"]
STATS = {
    "q01": [-0.03, -0.04, -0.05, -0.1, -0.1, -0.2, 0.0],
    "q99": [0.03, 0.05, 0.04, 0.1, 0.12, 0.2, 1.0],
    "mask": [True] * 6 + [False],
}


@pytest.fixture(scope="module")
def model():
    """Weights far from their simple beginning, so that nothing is hidden by a scale of 1 or a bias of 0."""
    found, _ = tiny.build("openvla", hidden=32, layers=2, seed=3)
    with torch.no_grad():
        for name, p in found.state_dict().items():
            p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))))
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a tiny checkpoint that has statistics of one data set."""
    folder = tmp_path_factory.mktemp("openvla")
    whole, processor = tiny.build("openvla", hidden=32, layers=2, seed=5)
    whole.config.norm_stats = {"bridge_orig": {"action": STATS, "proprio": {}}}
    whole.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def changed(checkpoint, folder, **sections):
    """A copy of the checkpoint with other keys in its config.json."""
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, **sections}))
    return str(folder)


def seen(size=64, n=6, seed=0):
    images = torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Observation(images={"front": images}, state=None, instructions=TEXTS[:n])


def vla(model=TINY, lora=None, **options):
    return VLA(PolicyConfig(model=str(model), kind="vla", lora=lora), seed=1, **{"dims": 3, **options})


def calls(shown, found):
    length = found.logprobs_nKC.numel()
    some = torch.zeros(length)
    return ActionMicroBatch(
        observation=shown,
        choices=found.choices,
        slots=found.logprobs_nKC.shape[-1],
        valid_SK=torch.ones(found.choices.shape[:2], dtype=torch.bool),
        ratio="token",
        sampler_logprobs_L=found.logprobs_nKC.flatten(),
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )


# -- the model --------------------------------------------------------------------------------------------------------------


def slow_tower(weights, prefix, pixels, heads, depth):
    """timm's `get_intermediate_layers(n={depth - 2})`, one picture and one head at a time."""
    w = {name.removeprefix(prefix + "."): p for name, p in weights.items() if name.startswith(prefix + ".")}
    rows = []
    for picture in pixels:
        x = conv2d(picture[None], w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=14)[0]
        x = x.flatten(1).T + w["pos_embed"][0]
        first = [w[name][0] for name in ("cls_token", "reg_token") if name in w]
        x = torch.cat([*first, x])
        for i in range(depth - 1):
            b = {name.removeprefix(f"blocks.{i}."): p for name, p in w.items() if name.startswith(f"blocks.{i}.")}
            y = layer_norm(x, x.shape[1:], b["norm1.weight"], b["norm1.bias"], 1e-6)
            q, k, v = (y @ b["attn.qkv.weight"].T + b["attn.qkv.bias"]).chunk(3, 1)
            width = x.shape[1] // heads
            parts = []
            for h in range(heads):
                own = slice(h * width, (h + 1) * width)
                parts.append((q[:, own] @ k[:, own].T / math.sqrt(width)).softmax(1) @ v[:, own])
            y = torch.cat(parts, 1) @ b["attn.proj.weight"].T + b["attn.proj.bias"]
            x = x + y * b.get("ls1.scale_factor", 1.0)
            y = layer_norm(x, x.shape[1:], b["norm2.weight"], b["norm2.bias"], 1e-6)
            y = gelu(y @ b["mlp.fc1.weight"].T + b["mlp.fc1.bias"]) @ b["mlp.fc2.weight"].T + b["mlp.fc2.bias"]
            x = x + y * b.get("ls2.scale_factor", 1.0)
        rows.append(x[sum(len(p) for p in first) :])
    return torch.stack(rows)


def slow_patches(model, pixels):
    weights = model.state_dict()
    towers = [
        slow_tower(weights, "vision_backbone.featurizer", pixels[:, :3], 4, 3),
        slow_tower(weights, "vision_backbone.fused_featurizer", pixels[:, 3:], 4, 3),
    ]
    x = torch.cat(towers, 2)
    for n in (1, 2, 3):
        x = x @ weights[f"projector.fc{n}.weight"].T + weights[f"projector.fc{n}.bias"]
        x = gelu(x) if n < 3 else x
    return towers, x


@torch.no_grad()
def test_the_towers_are_timms(model):
    pixels = torch.randn(3, 6, 56, 56, generator=torch.Generator().manual_seed(0))
    towers, wanted = slow_patches(model, pixels)
    torch.testing.assert_close(model.vision_backbone(pixels), torch.cat(towers, 2), atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(model.projector(model.vision_backbone(pixels)), wanted, atol=2e-3, rtol=2e-4)


@torch.no_grad()
def test_the_first_tower_is_transformers_dinov2_with_registers(model):
    """Written by others, too: the last hidden states but one."""
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    tower = model.vision_backbone.featurizer
    other = Dinov2WithRegistersModel(
        Dinov2WithRegistersConfig(
            hidden_size=32, num_hidden_layers=3, num_attention_heads=4, mlp_ratio=2, image_size=56, patch_size=14
        )
    ).eval()
    w, mapped = dict(tower.state_dict()), {}
    mapped["embeddings.cls_token"], mapped["embeddings.register_tokens"] = w["cls_token"], w["reg_token"]
    mapped["embeddings.position_embeddings"] = torch.cat([torch.zeros(1, 1, 32), w["pos_embed"]], 1)
    mapped["embeddings.mask_token"] = torch.zeros(1, 32)
    names = {"patch_embed.proj": "embeddings.patch_embeddings.projection", "norm": "layernorm"}
    for mine, theirs in names.items():
        mapped |= {f"{theirs}.{x}": w[f"{mine}.{x}"] for x in ("weight", "bias")}
    theirs = {name for name, _ in other.named_parameters()}
    for i in range(3):
        there, here = f"encoder.layer.{i}", f"blocks.{i}"
        for x in ("weight", "bias"):
            for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                mapped[f"{there}.{part}.{x}"] = w[f"{here}.{part}.{x}"]
            for one, ways in zip(
                w[f"{here}.attn.qkv.{x}"].chunk(3),
                (("q_proj", "attention.query"), ("k_proj", "attention.key"), ("v_proj", "attention.value")),
                strict=True,
            ):
                mapped[next(n for way in ways if (n := f"{there}.attention.{way}.{x}") in theirs)] = one
            out = next(n for way in ("o_proj", "output.dense") if (n := f"{there}.attention.{way}.{x}") in theirs)
            mapped[out] = w[f"{here}.attn.proj.{x}"]
        mapped[f"{there}.layer_scale1.lambda1"] = w[f"{here}.ls1.scale_factor"]
        mapped[f"{there}.layer_scale2.lambda1"] = w[f"{here}.ls2.scale_factor"]
    other.load_state_dict(mapped)
    pixels = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    # its class token has a place of its own, which timm's hasn't: none here
    wanted = other(pixels, output_hidden_states=True).hidden_states[-2][:, 5:]
    torch.testing.assert_close(tower(pixels), wanted, atol=2e-4, rtol=2e-4)


@torch.no_grad()
def test_patches_stand_behind_the_first_token(model):
    """Against transformers' own Llama, fed with embeddings that are put together by hand."""
    pixels = torch.randn(2, 6, 56, 56, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(3, 300, (2, 9), generator=torch.Generator().manual_seed(1))
    llama = model.language_model
    words = llama.model.embed_tokens(ids)
    patches = slow_patches(model, pixels)[1]
    wanted = llama(inputs_embeds=torch.cat([words[:, :1], patches, words[:, 1:]], 1)).logits
    image = torch.full((2, 16), model.config.image_id)
    found = model(torch.cat([ids[:, :1], image, ids[:, 1:]], 1), pixel_values=pixels).logits
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=1e-3)


def test_weights_are_those_of_the_published_model():
    """Names, shapes, and their number: finetune.py of OpenVLA prints "trainable params: 110,828,288 || all params:
    7,652,065,472" for adapters of rank 32 on every linear layer, which peft counts the patch convolutions and the head among."""
    text = {"model_type": "llama", "pad_token_id": 32000, "vocab_size": 32064}
    with torch.device("meta"):
        whole = OpenVLA._from_config(OpenVLAConfig(text_config=text, pad_token_id=32000))
    shapes = {name: list(p.shape) for name, p in whole.state_dict().items()}
    assert sum(math.prod(shape) for shape in shapes.values()) == 7_652_065_472 - 110_828_288
    layers = [m for m in whole.modules() if isinstance(m, torch.nn.Linear)]
    adapters = sum(32 * (m.in_features + m.out_features) for m in layers) + 32 * (2 * 3 * 14 * 14 + 1024 + 1152)
    assert adapters == 110_828_288
    vision = "vision_backbone.featurizer."
    assert shapes[vision + "blocks.23.ls2.scale_factor"] == [1024] and shapes[vision + "reg_token"] == [1, 4, 1024]
    assert shapes[vision + "pos_embed"] == [1, 256, 1024], "none for the class token"
    fused = "vision_backbone.fused_featurizer."
    assert shapes[fused + "attn_pool.kv.weight"] == [2304, 1152] and fused + "cls_token" not in shapes
    assert shapes[fused + "blocks.26.mlp.fc1.weight"] == [4304, 1152]
    assert shapes["projector.fc1.weight"] == [8704, 2176] and shapes["projector.fc3.bias"] == [4096]
    assert shapes["language_model.model.layers.31.mlp.up_proj.weight"] == [11008, 4096]
    assert shapes["language_model.lm_head.weight"] == [32064, 4096]


def test_actions_are_the_last_ids_of_the_vocabulary():
    """31744 to 31999 of 32064 rows; the lowest number has the highest id."""
    policy = vla()
    vocabulary = len(policy.vlm.tokenizer) - 1
    assert policy.vlm.model.get_output_embeddings().weight.shape[0] == vocabulary + 64
    assert policy.action_ids.tolist() == [vocabulary - 1 - b for b in range(256)]
    config = OpenVLAConfig(text_config={"vocab_size": 32064})
    assert config.text_config.vocab_size - config.pad_to_multiple_of == 32000


# -- files ------------------------------------------------------------------------------------------------------------------


def test_a_saved_folder_has_openvlas_names_and_is_the_same_model(checkpoint, tmp_path):
    policy = vla(checkpoint, dims=7, gripper="open-high")
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    policy.save(tmp_path / "saved")
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "saved"))
    assert before.keys() == after.keys() and {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    tower = {"pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias", "norm.weight", "norm.bias"}
    block = {"norm1.weight", "attn.qkv.weight", "attn.proj.bias", "mlp.fc1.weight", "mlp.fc2.bias"}
    for name in ("featurizer", "fused_featurizer"):
        wanted = tower | {f"blocks.{i}.{x}" for i in range(3) for x in block}
        wanted |= {"cls_token", "reg_token", "blocks.2.ls1.scale_factor"} if name == "featurizer" else {"attn_pool.latent"}
        assert {f"vision_backbone.{name}.{x}" for x in wanted} <= after.keys()
    assert {"projector.fc3.weight", "language_model.model.norm.weight", "language_model.lm_head.weight"} <= after.keys()
    idle = [k for k in before if "featurizer.blocks.2." in k or "attn_pool" in k or "featurizer.norm." in k]
    assert idle and all(torch.equal(before[k], after[k]) for k in idle), "nothing depends on them: they stay"
    moved = [k for k in before if k not in idle]
    assert moved and not any(torch.equal(before[k], after[k]) for k in moved)
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (checkpoint, tmp_path / "saved"))
    assert new["model_type"] == "openvla" and new["norm_stats"] == old["norm_stats"] and new["towers"] == old["towers"]
    text = {k: v for k, v in old["text_config"].items() if k != "dtype"}  # transformers 5.24 writes that of the weights here too
    assert text.items() <= new["text_config"].items() and new["text_config"]["vocab_size"] < 900

    options = json.loads((tmp_path / "saved" / "acting.json").read_text())
    kept = {k: v for k, v in options.items() if k not in ("kind", "model")}
    again = vla(tmp_path / "saved", **kept)
    resumed = VLA(PolicyConfig(model=str(checkpoint), kind="vla"), seed=9, source=tmp_path / "saved", dims=7, gripper="open-high")
    for other in (again, resumed):
        mine, theirs = policy.model.state_dict(), other.model.state_dict()
        assert mine.keys() == theirs.keys() and all(torch.equal(p, theirs[name]) for name, p in mine.items())
        assert other.statistics == policy.statistics and other._kept() == policy._kept()


def test_what_does_not_fit_is_named(checkpoint, tmp_path):
    weights = load_file(checkpoint / "model.safetensors")
    key = "vision_backbone.featurizer.blocks.0.attn.qkv.weight"
    for change, message in (
        ({k: v for k, v in weights.items() if k != key}, f"lacks {key}: take a checkpoint with OpenVLA's own head"),
        (
            {**weights, "action_head.fc1.weight": torch.zeros(2)},
            r"has action_head.fc1.weight, which OpenVLA's layout doesn't have",
        ),
        ({**weights, key: torch.zeros(3, 4)}, rf"{key} is \[3, 4\] in its files, and \[96, 32\] by its config.json"),
    ):
        folder = changed(checkpoint, tmp_path / "other")
        save_file(change, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match=message) as error:
            vla(folder, dims=7)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "sections, message",
    [
        (
            {"timm_model_ids": ["vit_base", "vit_so400m_patch14_siglip_224"]},
            "its vision tower 'vit_base' can't be read: known are",
        ),
        ({"text_config": {"model_type": "phi"}}, "its language model is phi, and only llama can be read"),
        ({"image_sizes": [28, 28]}, "makes 2 pictures of 56 pixels, and its config.json has towers for|pos_embed is"),
        ({"norm_stats": None}, r"comes without statistics of its data .*: set policy.options.statistics to a file, or to 'none'"),
        (
            {"norm_stats": {"a": {"action": STATS}, "b": {"action": STATS}}},
            "has the statistics of 2 data sets: set policy.options.statistics_key to one of a, b",
        ),
    ],
    ids=["tower", "language", "sizes", "no-statistics", "two-data-sets"],
)
def test_checkpoints_that_cannot_be_used(sections, message, checkpoint, tmp_path):
    with pytest.raises(UserError, match=message):
        vla(changed(checkpoint, tmp_path / "other", **sections), dims=7)


def test_statistics_come_with_the_checkpoint(checkpoint, tmp_path):
    assert vla(checkpoint, dims=7, gripper="open-high").statistics.key == "bridge_orig"
    with pytest.raises(UserError, match=r"statistics_key = 'fractal' is not in .*config.json: it has bridge_orig"):
        vla(checkpoint, dims=7, statistics_key="fractal")
    with pytest.raises(UserError, match=r"are of actions of 7 numbers, and policy.options.dims = 3"):
        vla(checkpoint)
    assert vla(checkpoint, statistics="none").statistics is None
    folder = changed(checkpoint, tmp_path / "tuned")
    (tmp_path / "tuned" / "dataset_statistics.json").write_text(json.dumps({"mine": {"action": STATS}}))
    assert vla(folder, dims=7, gripper="open-high").statistics.key == "mine"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"image_resize_strategy": "letterbox"}, "image_resize_strategy = 'letterbox' is not supported: use resize-naive"),
        ({"interpolations": ["bicubic", "bilinear"]}, "interpolation 'bilinear' is not supported"),
        ({"input_sizes": [[3, 56, 56], [3, 28, 28]]}, "is not supported: use squares of one size"),
        ({"input_sizes": [[3, 28, 28]] * 2}, "makes 2 pictures of 28 pixels, and its config.json has towers for"),
    ],
)
def test_pictures_that_cannot_be_made(change, message, checkpoint, tmp_path):
    folder = changed(checkpoint, tmp_path / "other")
    file = tmp_path / "other" / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        vla(folder, statistics="none")


# -- reading ----------------------------------------------------------------------------------------------------------------


def test_the_prompt_is_openvlas():
    policy = vla()
    ids = policy.seeing.prompt("Pick up the red cube", ((56, 56),)).ids.tolist()
    tokenizer, image = policy.vlm.tokenizer, policy.vlm.model.config.image_id
    assert ids[:17] == [tokenizer.bos_token_id] + [image] * 16, "16 patches of 56 pixels behind the first token"
    asked = "In: What action should the robot take to pick up the red cube?\nOut:"
    assert ids[17:] == [*tokenizer.encode(asked)[1:], tokenizer.convert_tokens_to_ids("▁")]
    settled = {"decoding": "one-by-one", "bins": 256, "binning": "openvla", "crop": 1.0, "size": 56, "lower_case": True}
    assert settled.items() <= policy.settings().items()
    assert vla(bins=32, crop=0.9, lower_case=False, decoding="parallel").settings()["bins"] == 32


def test_pictures_are_pillows():
    settings = vla().vlm.processor.image_processor.settings
    picture = Image.fromarray(seen(size=100).images["front"][0].numpy())
    found = Pictures(settings)([picture])["pixel_values"][0]
    scaled = torch.from_numpy(np.array(picture.resize((56, 56), Image.Resampling.BICUBIC))).permute(2, 0, 1) / 255
    for i, one in enumerate(settings["tvf_normalize_params"]):
        wanted = (scaled - torch.tensor(one["mean"])[:, None, None]) / torch.tensor(one["std"])[:, None, None]
        torch.testing.assert_close(found[3 * i : 3 * i + 3], wanted, atol=1e-5, rtol=1e-5)
    tensor = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    assert torch.equal(Pictures(settings)([tensor])["pixel_values"][0], found)


# -- acting -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"decoding": "parallel", "chunk": 2}, {"chunk": 2, "bins": 32}, {"head": "normal", "chunk": 2}],
    ids=["one-by-one", "parallel", "chunks", "normal"],
)
def test_what_is_sampled_is_what_is_learned(options):
    policy, shown = vla(**options), seen()
    for temperature in (1.0, 0.7):
        found = policy.act(shown, SEEDS, CALLS, temperature)
        outputs = policy.outputs(calls(shown, found), temperature)
        torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=3e-5, rtol=1e-4)
        assert outputs.logprobs_L.requires_grad
    some = torch.tensor([3, 1])
    alone = policy.act(shown.rows(some), SEEDS[some], CALLS[some], 1.0)
    whole = policy.act(shown, SEEDS, CALLS, 1.0)
    torch.testing.assert_close(alone.actions_nKA, whole.actions_nKA[some], atol=1e-5, rtol=1e-5)
    dark = Observation(images={"front": shown.images["front"] // 2}, state=None, instructions=shown.instructions)
    features = (policy.features(dark)[0] - policy.features(shown)[0]) if policy.decoding == "parallel" else None
    other = policy.act(dark, SEEDS, CALLS, 0.0).logprobs_nKC - policy.act(shown, SEEDS, CALLS, 0.0).logprobs_nKC
    assert (other if features is None else features).abs().amax(tuple(range(1, 3))).min() > 1e-3, "each row sees its picture"


def test_one_by_one_is_the_models_own_next_token():
    """Against whole forward passes without a cache, padding or a mask, the logits cut to the bins."""
    policy, shown = vla(chunk=2), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.8)
    for n in range(6):
        prompt = policy.seeing.prompt(TEXTS[n], ((56, 56),)).ids
        pixels = policy.seeing.media(policy.seeing.pictures(shown.rows(torch.tensor([n]))))["pixel_values"]
        tokens = policy.action_ids[found.choices[n].flatten()]
        logits = policy.vlm.model(torch.cat([prompt, tokens])[None], pixel_values=pixels).logits[0, len(prompt) - 1 : -1]
        wanted = (logits[:, policy.action_ids] / 0.8).log_softmax(-1).gather(1, found.choices[n].flatten()[:, None])[:, 0]
        torch.testing.assert_close(found.logprobs_nKC[n].flatten(), wanted, atol=3e-5, rtol=1e-4)


def test_bfloat16_scores_what_it_samples():
    policy = VLA(PolicyConfig(model=TINY, kind="vla", dtype="bfloat16"), seed=1, dims=3, decoding="parallel")
    shown = seen()
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    outputs = policy.outputs(calls(shown, found), 1.0)
    assert found.logprobs_nKC.dtype == outputs.logprobs_L.dtype == torch.float32
    torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=1e-6, rtol=0)


def test_every_trained_weight_has_a_gradient():
    policy, shown = vla(), seen()
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    policy.outputs(calls(shown, found), 1.0).logprobs_L.sum().backward()
    still = [name for name, p in policy.parameters() if p.grad is None or not p.grad.any()]
    assert still == [], "what nothing depends on is no parameter"


def test_adapters_a_critic_and_a_clone(tmp_path):
    policy = vla(lora=LoraConfig(rank=2, target_modules=["vision", "projector", "language"]))
    names = [name for name, _ in policy.parameters()]
    assert any("featurizer.blocks.0.attn.qkv.lora_A" in n for n in names)
    assert not any("featurizer.blocks.2." in n or "attn_pool" in n for n in names)
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(0.05)
    policy.save(tmp_path / "saved")
    config = PolicyConfig(model=TINY, kind="vla", lora=LoraConfig(rank=2, target_modules=["vision", "projector", "language"]))
    again = VLA(config, seed=1, source=tmp_path / "saved", dims=3)
    one, two = (p.act(seen(), SEEDS, CALLS, 1.0).logprobs_nKC for p in (again, policy))
    torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    critic = Critic(policy, CriticConfig(hidden_sizes=[4]), 0)
    with torch.no_grad():
        for p in critic.head.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    found = policy.act(seen(), SEEDS, CALLS, 1.0, critic)
    torch.testing.assert_close(policy.values(seen(), SEEDS, CALLS, critic), found.values_nU, atol=2e-5, rtol=1e-4)
    assert found.values_nU.std() > 0
    other = policy.clone(frozen=True)
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(0.3)
    assert torch.equal(other.act(seen(), SEEDS, CALLS, 1.0).logprobs_nKC, found.logprobs_nKC)
