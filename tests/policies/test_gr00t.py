"""GR00T N1.7: its action head against plain loops, and what its files may hold."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import gelu, layer_norm, relu, silu

from mmrl.api.errors import UserError
from mmrl.policies.gr00t.backbone import COSMOS, Network, backbone_config
from mmrl.policies.gr00t.config import HeadConfig, TransformerConfig, head_config
from mmrl.policies.gr00t.head import ActionHead
from mmrl.policies.gr00t.network import load_network
from mmrl.policies.gr00t.pictures import framing, resize_by_area

SMALL = HeadConfig(
    backbone_embedding_dim=16,
    input_embedding_dim=24,
    hidden_size=20,
    max_state_dim=5,
    max_action_dim=6,
    action_horizon=7,
    max_num_embodiments=3,
    max_seq_len=32,
    diffusion_model_cfg=TransformerConfig(num_layers=6, num_attention_heads=3, attention_head_dim=8, output_dim=20),
    vl_self_attention_cfg=TransformerConfig(num_layers=2, num_attention_heads=2, attention_head_dim=8),
)


@pytest.fixture(scope="module")
def head():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = ActionHead(SMALL).eval()
        with torch.no_grad():
            for weight in made.parameters():
                weight.normal_(0, 0.3)
    return made


@pytest.fixture
def shown():
    """Four calls of 9 to 11 tokens."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.tensor([11, 9, 10, 11])
    return {
        "features_nPF": torch.randn(4, 11, 16, generator=draw),
        "real_nP": torch.arange(11) < lengths[:, None],
        "images_nP": (torch.arange(11) >= 2) & (torch.arange(11) < 6) & torch.ones(4, 1, dtype=torch.bool),
        "state_nS": torch.randn(4, 5, generator=draw),
        "embodiment_n": torch.tensor([0, 2, 1, 2]),
    }


def slow_velocity(weights, shown, row, x_CD, time):
    """One call, its padding cut off, written out from the weights' names: no module of mmrl."""
    real, kind = shown["real_nP"][row], int(shown["embodiment_n"][row])
    images = shown["images_nP"][row][real]

    def layer(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def own(name, x):
        return x @ weights[f"{name}.W"][kind] + weights[f"{name}.b"][kind]

    def attention(name, x, read, heads):
        q, k, v = layer(f"{name}.to_q", x), layer(f"{name}.to_k", read), layer(f"{name}.to_v", read)
        size, found = q.shape[1] // heads, []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            found.append((q[:, part] @ k[:, part].T / math.sqrt(size)).softmax(-1) @ v[:, part])
        return layer(f"{name}.to_out.0", torch.cat(found, 1))

    def feed(name, x):
        return layer(f"{name}.ff.net.2", gelu(layer(f"{name}.ff.net.0.proj", x), approximate="tanh"))

    def sines(count, steps):
        angles = [bucket * 10_000 ** (-i / steps) for i in range(count)]
        return [math.sin(a) for a in angles], [math.cos(a) for a in angles]

    bucket = int(time * 1000)
    read = shown["features_nPF"][row][real]
    read = layer_norm(read, (16,), weights["vlln.weight"], weights["vlln.bias"])
    for i in range(2):
        name = f"vl_self_attention.transformer_blocks.{i}"
        norms = [(weights[f"{name}.norm{k}.weight"], weights[f"{name}.norm{k}.bias"]) for k in (1, 3)]
        normed = layer_norm(read, (16,), *norms[0])
        read = read + attention(f"{name}.attn1", normed, normed, 2)
        read = read + feed(name, layer_norm(read, (16,), *norms[1]))
    first, second = sines(12, 12)
    times = torch.tensor(first + second).expand(7, -1)
    actions = own("action_encoder.W3", silu(own("action_encoder.W2", torch.cat([own("action_encoder.W1", x_CD), times], 1))))
    state = own("state_encoder.layer2", relu(own("state_encoder.layer1", shown["state_nS"][row][None])))
    x = torch.cat([state, actions + weights["position_embedding.weight"][:7]])
    first, second = sines(128, 127)
    embedded = layer("model.timestep_encoder.timestep_embedder.linear_1", torch.tensor(second + first))
    embedded = layer("model.timestep_encoder.timestep_embedder.linear_2", silu(embedded))
    for i in range(6):
        name = f"model.transformer_blocks.{i}"
        scale, shift = layer(f"{name}.norm1.linear", silu(embedded)).chunk(2)
        normed = layer_norm(x, (24,)) * (1 + scale) + shift
        seen = {0: read[~images], 2: read[images], 1: normed, 3: normed}[i % 4]
        x = x + attention(f"{name}.attn1", normed, seen, 3)
        x = x + feed(name, layer_norm(x, (24,)))
    shift, scale = layer("model.proj_out_1", silu(embedded)).chunk(2)
    out = layer("model.proj_out_2", layer_norm(x, (24,), eps=1e-6) * (1 + scale) + shift)
    return own("action_decoder.layer2", relu(own("action_decoder.layer1", out)))[1:]


def test_velocity_is_that_of_plain_loops_and_sees_no_padding(head, shown):
    weights = {name: weight.detach() for name, weight in head.state_dict().items()}
    noise = torch.randn(4, 7, 6, generator=torch.Generator().manual_seed(2))
    times = torch.tensor([0.0, 0.25, 0.6, 0.9995])
    with torch.no_grad():
        found = head.velocity(head.encode(**shown), noise, times)
    for row, time in enumerate(times.tolist()):
        torch.testing.assert_close(found[row], slow_velocity(weights, shown, row, noise[row], time), rtol=1e-4, atol=1e-4)
    assert found.std() > 0.1


def test_steps_follow_the_velocity(head, shown):
    noise = torch.randn(4, 7, 6, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        context = head.encode(**shown)
        x = noise
        for time in (0.0, 0.25, 0.5, 0.75):
            x = x + 0.25 * head.velocity(context, x, torch.full((4,), time))
        assert torch.equal(head.denoise(context, noise), x)


BACKBONE = {
    "model_type": "qwen3_vl",
    **{"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63},
    "text_config": {
        **{"model_type": "qwen3_vl_text", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 5, "vocab_size": 64},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True},
    },
    "vision_config": {
        **{"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 16, "patch_size": 4},
        **{"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    },
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """(a small network, the folder it was written to as NVIDIA names its weights)."""
    folder = tmp_path_factory.mktemp("gr00t")
    (folder / "backbone").mkdir()
    (folder / "backbone" / "config.json").write_text(json.dumps(BACKBONE))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(backbone_config(str(folder / "backbone")), SMALL, 3).eval()
        with torch.no_grad():
            for weight in network.parameters():
                weight.normal_(0, 0.3)
    table = dataclasses.asdict(SMALL) | {"model_type": "Gr00tN1d7", "model_name": str(folder / "backbone"), "select_layer": 3}
    (folder / "config.json").write_text(json.dumps(table))
    weights = {re.sub(r"^backbone\.", "backbone.model.model.", name): weight for name, weight in network.state_dict().items()}
    save_file({**weights, "backbone.model.lm_head.weight": torch.zeros(64, 16)}, folder / "model.safetensors")
    return network, folder


def same(one, other):
    ours, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(p, theirs[name]) for name, p in ours.items())


def looking():
    """Two calls that saw a picture of 4 x 6 patches, the second after two tokens of padding."""
    ids = torch.tensor([[5, 62, *[60] * 6, 63, 7, 8], [0, 0, 62, *[60] * 6, 63, 9]])
    draw = torch.Generator().manual_seed(4)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "pixel_values": torch.randn(48, 3 * 2 * 4 * 4, generator=draw),
        "image_grid_thw": torch.tensor([[1, 4, 6]] * 2),
        "mm_token_type_ids": (ids == 60).int(),
    }


def test_a_folder_is_read_by_the_published_names(sound, tmp_path):
    network, folder = sound
    read = load_network(folder)
    assert read.action_head.config == SMALL and same(read, network)
    with torch.no_grad():
        assert torch.equal(read.features(looking()), network.features(looking()))
    for name, weight in load_network(folder, torch.bfloat16).named_parameters():
        numbers = name.split(".")[1] in ("state_encoder", "action_encoder", "action_decoder")
        assert weight.dtype == (torch.float32 if numbers else torch.bfloat16), name
    shutil.copytree(folder, tmp_path / "m")
    shards = load_file(folder / "model.safetensors")
    (tmp_path / "m" / "model.safetensors").unlink()
    names = {key: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, key in enumerate(shards)}
    for file in set(names.values()):
        save_file({k: v for k, v in shards.items() if names[k] == file}, tmp_path / "m" / file)
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert same(load_network(tmp_path / "m"), network)


def test_features_are_those_before_the_norm_of_the_last_layer_that_is_used(sound):
    network, _ = sound
    with torch.no_grad():
        found = network.features(looking())
        after = network.backbone(**looking(), use_cache=False).last_hidden_state
        network.backbone.rope_deltas = None
        real_nP = looking()["attention_mask"].bool()  # padding sees itself here, and nothing there
        torch.testing.assert_close(network.backbone.language_model.norm(found)[real_nP], after[real_nP])
    assert found.shape == (2, 11, 16) and len(network.backbone.language_model.layers) == 3


def test_features_are_those_of_transformers_model_bit_for_bit(sound):
    """Two pictures of several sizes in each call, one of which has padding; two calls are alike but for their pictures."""
    from transformers import Qwen3VLModel

    network, _ = sound
    pictures = [[62, *[60] * 6, 63, 62, *[60] * 2, 63], [62, *[60] * 2, 63, 62, *[60] * 6, 63]]
    ids = torch.tensor([[5, *pictures[0], 7, 8], [0, 0, *pictures[1], 9], [5, *pictures[0], 7, 8], [5, *pictures[1], 7, 8]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "mm_token_type_ids": (ids == 60).int()}
    grids = [[1, 4, 6], [1, 4, 2]]
    inputs["image_grid_thw"] = torch.tensor([*grids, *reversed(grids), *grids, *reversed(grids)])
    inputs["pixel_values"] = torch.randn(128, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(7))
    plain = Qwen3VLModel._from_config(network.backbone.config, attn_implementation="sdpa").eval()
    plain.visual.config._attn_implementation = "sdpa"
    del plain.language_model.layers[3:]
    plain.load_state_dict(network.backbone.state_dict())
    found = []
    plain.language_model.norm.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    for rows, pixels in ((slice(None), slice(None)), (slice(2, 4), slice(64, 128))):  # the second ones without padding
        some = {k: v[rows] for k, v in inputs.items() if v.shape[0] == 4}
        some |= {"pixel_values": inputs["pixel_values"][pixels], "image_grid_thw": inputs["image_grid_thw"].view(4, 2, 3)[rows]}
        some["image_grid_thw"] = some["image_grid_thw"].flatten(0, 1)
        real = some["attention_mask"].bool()
        with torch.no_grad():
            plain(**some, use_cache=False)
            assert torch.equal(network.features(some)[real], found[-1][real])
    assert found[0].std() > 0.1 and not torch.equal(found[0][0], found[0][2])


def test_a_call_does_not_depend_on_the_padding_of_its_batch(sound):
    network, _ = sound
    both, state, kinds = looking(), torch.randn(2, 5, generator=torch.Generator().manual_seed(5)), torch.tensor([0, 2])
    alone = {k: v[1:, 2:] for k, v in both.items() if k not in ("pixel_values", "image_grid_thw")}
    alone |= {"pixel_values": both["pixel_values"][24:], "image_grid_thw": both["image_grid_thw"][1:]}
    noise = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        found = network.action_head.denoise(network.encode(both, state, kinds), noise)
        wanted = network.action_head.denoise(network.encode(alone, state[1:], kinds[1:]), noise[1:])
    torch.testing.assert_close(found[1:], wanted, rtol=1e-3, atol=1e-3)
    assert wanted.std() > 1


def test_weights_that_do_not_fit_are_refused(sound, tmp_path):
    _, folder = sound
    cure, bias = "take both from one checkpoint", "action_head.vlln.bias"
    weights = load_file(folder / "model.safetensors")
    for name, changed, told in (
        ("a", {k: v for k, v in weights.items() if k != bias}, f"{bias} is missing in its files and [16] by its config.json"),
        ("b", {**weights, "action_head.x": torch.zeros(1)}, "action_head.x is [1] in its files and unknown by its config.json"),
        ("c", {**weights, bias: torch.zeros(3)}, f"{bias} is [3] in its files and [16] by its config.json"),
    ):
        shutil.copytree(folder, tmp_path / name)
        save_file(changed, tmp_path / name / "model.safetensors")
        with pytest.raises(UserError) as caught:
            load_network(tmp_path / name)
        assert str(caught.value) == f"policy.model: {str(tmp_path / name)!r}: {told}: {cure}"
    with pytest.raises(UserError, match=r"can't be read: .*config.json.*: take a GR00T N1\.7 or N1\.6$"):
        load_network(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gr00t_n1_5"}')
    with pytest.raises(UserError, match=r"its config.json is of 'gr00t_n1_5', not of Gr00tN1d7 or Gr00tN1d6: take a GR00T"):
        load_network(tmp_path)


def test_the_published_sizes():
    """Of nvidia/GR00T-N1.7-3B, whose name counts its weights."""
    with torch.device("meta"):
        network = Network(backbone_config(COSMOS), head_config({}), 16)
    parts = {name: sum(p.numel() for p in part.parameters()) / 1e9 for name, part in network.named_children()}
    assert 2.5 < sum(parts.values()) < 3.5, parts


def test_another_layout_is_refused():
    assert head_config({}) == HeadConfig()
    assert head_config({}).diffusion_model_cfg.width == 1536 and head_config({}).vl_self_attention_cfg.width == 2048
    whole = {"num_layers": 16, "num_attention_heads": 32, "attention_head_dim": 48, "output_dim": 1024}
    for table, told in (
        ({"use_alternate_vl_dit": False}, "use_alternate_vl_dit = False, and only True can be read: take a GR00T N1.7"),
        ({"diffusion_model_cfg": {**whole, "norm_type": "layer_norm"}}, "diffusion_model_cfg.norm_type = 'layer_norm', and only"),
        ({"diffusion_model_cfg": {"num_layers": 2}}, "is not that of GR00T N1.7: "),
        ({"input_embedding_dim": 1024}, "diffusion_model_cfg is 1536 wide, and input_embedding_dim = 1024: make them equal"),
        ({"action_horizon": 1025}, "action_horizon = 1025 actions, and places for max_seq_len = 1024: take a GR00T N1.7"),
    ):
        with pytest.raises(UserError) as caught:
            head_config(table)
        assert told in str(caught.value)


def test_pictures_are_those_of_opencv():
    """The sum that LeRobot's test_groot_n1_7_oss_parity.py (huggingface/lerobot@7427f31) has of what Isaac-GR00T makes of this
    picture: scaled to 256 by area, 0.95 of each side, scaled back."""
    y, x = np.indices((480, 640), dtype=np.uint16)
    picture = np.stack(((x + 3 * y) % 256, (2 * x + y) % 256, (x + 5 * y) % 256), axis=-1).astype(np.uint8)
    settings = {"image_crop_size": [230, 230], "image_target_size": [256, 256], "shortest_image_edge": 256, "crop_fraction": 0.95}
    made = framing({**settings, "use_albumentations": True})(torch.from_numpy(picture).permute(2, 0, 1)[None])
    found = made[0].permute(1, 2, 0).contiguous().numpy()
    assert found.shape == (256, 340, 3)
    assert hashlib.sha256(found.tobytes()).hexdigest() == "c17e47af68a812aa79db3bb7b64b549ddf10148ac1b204a9686095018561ae9e"


def test_areas_are_means():
    """Of whole pixels, worked out by hand: half a number is rounded up where sides are halved, else to the even one."""
    row = torch.tensor([0, 1, 2, 4, 9, 9], dtype=torch.uint8)
    picture = row.expand(1, 3, 6, 6)
    assert resize_by_area(picture, 3, 3)[0, 0, 0].tolist() == [1, 3, 9]  # 0.5, 3, 9
    assert resize_by_area(picture, 6, 3)[0, 0, 0].tolist() == [0, 3, 9]
    assert resize_by_area(picture, 2, 2)[0, 0, 0].tolist() == [1, 7]  # 1, 22 / 3
    assert resize_by_area(picture, 6, 4)[0, 0, 0].tolist() == [0, 2, 6, 9]  # 1 / 3, 5 / 3, 17 / 3 and 9: of 1.5 pixels each


def test_frames_of_pictures():
    bars = framing({"image_target_size": [8, 8], "letter_box_transform": True})
    found = bars(torch.full((2, 3, 4, 8), 200, dtype=torch.uint8))
    assert (
        found.shape == (2, 3, 8, 8)
        and (found[:, :, :2] == 0).all()
        and (found[:, :, 2:6] == 200).all()
        and (found[:, :, 6:] == 0).all()
    )
    assert framing({}) == framing({"image_target_size": [256, 256], "image_crop_size": [230, 230]})
    assert framing({"image_target_size": [256, 256], "crop_fraction": 2.0}).share == 1
    assert framing({"image_target_size": [40, 48], "use_albumentations": True})(torch.zeros(1, 3, 9, 9, dtype=torch.uint8)).shape[
        2:
    ] == (40, 48)
    for settings, told in (
        ({"image_target_size": [256]}, r"image_target_size = \[256\] must be pixels"),
        ({"image_target_size": [256, 256], "shortest_image_edge": 0}, "shortest_image_edge = 0 must be pixels"),
        ({"image_target_size": [256, 256], "crop_fraction": -1}, "crop_fraction = -1 must be a share of a side"),
    ):
        with pytest.raises(UserError, match=told):
            framing(settings)
