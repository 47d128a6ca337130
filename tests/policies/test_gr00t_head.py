"""GR00T's action head: against LeRobot's, against plain loops, and what its files may hold."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import gelu, layer_norm, relu, silu

from mmrl.api.errors import UserError
from mmrl.policies.gr00t.config import HeadConfig, TransformerConfig, head_config
from mmrl.policies.gr00t.head import ActionHead, load_head

LEROBOT = os.environ.get("MMRL_LEROBOT_PYTHON", "")
SCRIPT = Path(__file__).parents[1] / "support" / "gr00t_of_lerobot.py"
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


def written(head, folder, extra=(), drop=()):
    config = {f: getattr(SMALL, f) for f in SMALL.__dataclass_fields__}
    parts = {
        name: {f: getattr(part, f) for f in part.__dataclass_fields__} for name, part in config.items() if name.endswith("cfg")
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "Gr00tN1d7", **config, **parts}))
    weights = {f"action_head.{k}": v for k, v in head.state_dict().items() if k not in drop} | dict(extra)
    save_file({**weights, "backbone.model.lm_head.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    return folder


def test_a_folder_is_read_by_the_published_names(head, shown, tmp_path):
    read = load_head(written(head, tmp_path / "m"))
    assert read.config == SMALL
    assert all(torch.equal(p, q) for p, q in zip(read.parameters(), head.parameters(), strict=True))
    assert {p.dtype for p in load_head(tmp_path / "m", torch.bfloat16).parameters()} == {torch.bfloat16}
    shards = load_file(tmp_path / "m" / "model.safetensors")
    (tmp_path / "m" / "model.safetensors").unlink()
    names = {key: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, key in enumerate(shards)}
    for file in set(names.values()):
        save_file({k: v for k, v in shards.items() if names[k] == file}, tmp_path / "m" / file)
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert all(torch.equal(p, q) for p, q in zip(load_head(tmp_path / "m").parameters(), head.parameters(), strict=True))


def test_weights_that_do_not_fit_are_refused(head, tmp_path):
    cure, bias = "take both from one checkpoint", "action_head.vlln.bias"
    for name, options, told in (
        ("a", {"drop": ["vlln.bias"]}, "action_head.vlln.bias is missing in its files and [16] by its config.json"),
        ("b", {"extra": {"action_head.x": torch.zeros(1)}}, "action_head.x is [1] in its files and unknown by its config.json"),
        ("c", {"extra": {bias: torch.zeros(3)}}, f"{bias} is [3] in its files and [16] by its config.json"),
    ):  # fmt: skip
        folder = written(head, tmp_path / name, **options)
        with pytest.raises(UserError) as caught:
            load_head(folder)
        assert str(caught.value) == f"{str(folder)!r}: {told}: {cure}"
    with pytest.raises(UserError, match=r"can't be read: .*config.json.*: give a folder with a GR00T N1\.7$"):
        load_head(tmp_path)


def test_another_layout_is_refused():
    assert head_config({}) == HeadConfig()
    assert head_config({}).diffusion_model_cfg.width == 1536 and head_config({}).vl_self_attention_cfg.width == 2048
    whole = {"num_layers": 16, "num_attention_heads": 32, "attention_head_dim": 48, "output_dim": 1024}
    for table, told in (
        ({"use_alternate_vl_dit": False}, "use_alternate_vl_dit = False, and only True can be read: take GR00T N1.7"),
        ({"diffusion_model_cfg": {**whole, "norm_type": "layer_norm"}}, "diffusion_model_cfg.norm_type = 'layer_norm', and only"),
        ({"diffusion_model_cfg": {"num_layers": 2}}, "is not that of GR00T N1.7: "),
        ({"input_embedding_dim": 1024}, "diffusion_model_cfg is 1536 wide, and input_embedding_dim = 1024: make them equal"),
    ):
        with pytest.raises(UserError) as caught:
            head_config(table)
        assert told in str(caught.value)


@pytest.mark.skipif(not LEROBOT, reason="MMRL_LEROBOT_PYTHON names no Python with lerobot 0.6.1 and its extra groot")
def test_lerobot_computes_the_same(tmp_path):
    folder = tmp_path / "lerobot"
    subprocess.run(
        [LEROBOT, SCRIPT, folder],
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.environ.get("MMRL_LEROBOT_PATH", "")},
    )
    head, computed = load_head(folder, torch.float64), load_file(folder / "computed.safetensors")
    with torch.no_grad():
        context = head.encode(
            computed["features"],
            torch.ones(4, 11, dtype=torch.bool),
            computed["images"],
            computed["state"][:, 0],
            computed["embodiment"],
        )
        velocity = head.velocity(context, computed["noise"], computed["times"])
        actions = head.denoise(context, computed["start"])
    for name, found in (("read", context.read_nPF), ("velocity", velocity), ("actions", actions)):
        torch.testing.assert_close(found, computed[name], rtol=1e-5, atol=1e-5)
