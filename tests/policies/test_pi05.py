"""pi0.5: its velocities against plain loops over the weights, its text, and what it saves. What it shares with pi0 is tested
there, and that LeRobot computes the same in `test_pi0_of_lerobot`."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import gelu, silu

from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import LoraConfig
from mmrl.policies.acting.saved_policy import saved_options
from mmrl.policies.pi0.pi05 import state_words
from pi0_cases import CALLS, SEEDS, moved, pi0, seen


def rotated(x_TNE, places_T):
    """Rotary embedding (Su et al., RoFormer) with base 10,000; the halves of a head are the two coordinates."""
    half = x_TNE.shape[-1] // 2
    angles = places_T[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = (f(angles).float()[:, None] for f in (torch.cos, torch.sin))
    a, b = x_TNE[..., :half], x_TNE[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def slow_velocity(policy, shown, row, x_CD, time):
    """One call and one time, without padding, mask or cache: pictures and text see each other, actions see everything."""
    weights = dict(policy.model.named_parameters())
    heads = policy.model.config.dit_config.num_attention_heads

    def layer(name, x):
        found = x @ weights[name + ".weight"].T
        return found + weights[name + ".bias"] if name + ".bias" in weights else found

    def norm(name, x, condition):
        normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        if condition is None:
            return normed * (1 + weights[name + ".weight"]), torch.ones(1)
        scale, shift, gate = layer(name + ".dense", condition).chunk(3)
        return normed * (1 + scale) + shift, gate

    ids = torch.tensor([policy._rows(shown, len(shown.images))[row]])
    pixels = policy._pictures(shown)[row : row + 1]
    read = policy.model.model.embed_prefix(ids, pixels, torch.ones(pixels.shape[:2], dtype=torch.bool))[0]
    width = weights["embed_action_time.time_mlp_in.weight"].shape[0]
    periods = [0.004 * 1000 ** (i / (width // 2 - 1)) for i in range(width // 2)]
    waves = [f(2 * math.pi * float(time) / period) for f in (math.sin, math.cos) for period in periods]
    outer = "embed_action_time."
    condition = silu(layer(outer + "time_mlp_out", silu(layer(outer + "time_mlp_in", torch.tensor(waves)))))
    streams = [read, layer(outer + "action_in_proj", x_CD)]
    parts = [("model.vlm.language_model.", None), ("model.dit.", condition)]
    sizes = [len(read), len(x_CD)]
    places = torch.arange(sum(sizes), dtype=torch.float64).split(sizes)
    depth = policy.model.config.dit_config.num_hidden_layers
    for i in range(depth):
        queries, keys, values, gates = [], [], [], []
        for (prefix, given), x, place in zip(parts, streams, places, strict=True):
            own = f"{prefix}layers.{i}."
            normed, gate = norm(own + "input_layernorm", x, given)
            queries.append(rotated(layer(own + "self_attn.q_proj", normed).unflatten(-1, (heads, -1)), place))
            keys.append(rotated(layer(own + "self_attn.k_proj", normed)[:, None], place))
            values.append(layer(own + "self_attn.v_proj", normed))
            gates.append(gate)
        following = []
        for which, ((prefix, given), x) in enumerate(zip(parts, streams, strict=True)):
            own = f"{prefix}layers.{i}."
            key, value = (torch.cat(some[: which + 1]) for some in (keys, values))
            scores = torch.einsum("tne,sne->nts", queries[which], key.expand(-1, heads, -1)) / key.shape[-1] ** 0.5
            mixed = torch.einsum("nts,se->tne", scores.softmax(-1), value).flatten(1)
            x = x + gates[which] * layer(own + "self_attn.o_proj", mixed)
            normed, gate = norm(own + "post_attention_layernorm", x, given)
            inner = gelu(layer(own + "mlp.gate_proj", normed), approximate="tanh") * layer(own + "mlp.up_proj", normed)
            following.append(x + gate * layer(own + "mlp.down_proj", inner))
        streams = following
    return layer("action_out_proj", norm("model.dit.norm", streams[1], condition)[0])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_velocities_are_those_of_plain_loops(attention):
    """All moments of all rows in one pass, padded and behind one prefix, against each alone."""
    policy, shown = moved(pi0(kind="pi05", attention=attention)), seen()
    noise = torch.Generator().manual_seed(3)
    x, times = torch.randn(4, 3, 5, 32, generator=noise), torch.rand(4, 3, generator=noise)
    with torch.no_grad():
        found = policy.velocity(policy.look(shown), x, times)
        for n in range(4):
            for m in range(3):
                wanted = slow_velocity(policy, shown, n, x[n, m], times[n, m])
                torch.testing.assert_close(found[n, m], wanted, atol=2e-6, rtol=1e-4)
    assert found.std(1).max() > 1e-2
    later = policy.velocity(policy.look(shown), x, times * 0.9)
    assert (later - found).abs().amax((1, 2, 3)).min() > 1e-3, "time counts"


def test_the_state_is_words_of_the_text():
    policy = pi0(kind="pi05", prompt="do {instruction}")
    shown = Observation(
        images=seen(1).images, state=torch.tensor([[0.0, -1.0, 1.0, -3.0, 0.999, 0.00785]]), instructions=["pick_up the\ncube "]
    )
    ids = policy._rows(shown, 2)[0]
    assert ids[:32] == [policy.model.config.vlm_config.image_token_id] * 32 and ids[32] == policy.tokenizer.bos_token_id
    wanted = "Task: do pick up the cube, State: 128 0 255 -1 255 129;\nAction: "
    assert policy.tokenizer.decode(ids[33:]) == wanted
    assert pi0(kind="pi05", text_tokens=9)._rows(shown, 2)[0] == pi0(kind="pi05")._rows(shown, 2)[0][: 32 + 9]
    bare = pi0(kind="pi05", state=0)._rows(shown, 2)[0]
    assert policy.tokenizer.decode(bare[33:]) == "pick up the cube\n", "as openpi without discrete states"


def test_a_state_becomes_words_as_published():
    """numpy's digitize over 256 bins of [-1, 1], as openpi and LeRobot call it."""
    import numpy as np

    numbers = torch.cat([torch.linspace(-1.2, 1.2, 997), torch.linspace(-1, 1, 257)])[None]
    wanted = np.digitize(numbers[0].numpy(), bins=np.linspace(-1, 1, 256 + 1)[:-1]) - 1
    assert state_words(numbers) == [" ".join(map(str, wanted))]


def test_the_longest_call_is_that_of_the_longest_words():
    policy = pi0(kind="pi05")
    state = torch.tensor([[-1.0] * 6, [0.9, -0.11, 0.513, 0.3, -0.77, 0.21], [-1.0] * 6])
    images = {name: image[:3] for name, image in seen().images.items()}
    track = TrajectoryData(
        instruction="push it",
        images=images,
        state=state,
        choices=torch.zeros(2, 5, 5, 32),
        logprobs_TKC=torch.zeros(2, 2, 1),
        valid_TK=torch.ones(2, 2, dtype=torch.bool),
        rewards_TK=torch.zeros(2, 2),
    )
    rows = policy._rows(Observation(images=images, state=state, instructions=["push it"] * 3), 2)
    assert len(rows[1]) > len(rows[0]) == len(rows[2])
    assert policy.tokens_per_call([track]) == len(rows[1]) + 4 * 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_is_the_same_policy(dtype, tmp_path):
    policy = moved(pi0(kind="pi05", dtype=dtype, cameras=["wrist"], noisy="one"))
    policy.save(tmp_path / "saved")
    options = {name: value for name, value in saved_options(tmp_path / "saved").items() if name != "kind"}
    one = policy.act(seen(), SEEDS, CALLS, 1.0)
    saved = str(tmp_path / "saved")
    for again in (
        pi0(saved, kind="pi05", dtype=dtype, **options),
        pi0(kind="pi05", dtype=dtype, source=tmp_path / "saved", **options),
    ):
        two = again.act(seen(), SEEDS, CALLS, 1.0)
        assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)
        for layer in ("action_out_proj", "model.dit.norm.dense", "model.dit.layers.0.input_layernorm.dense"):
            assert again.model.get_parameter(layer + ".weight").dtype == torch.float32, layer
        assert again.model.model.dit.layers[0].mlp.up_proj.weight.dtype == getattr(torch, dtype)


def test_adapters_of_the_norms_are_trained(tmp_path):
    policy = pi0(kind="pi05", lora=LoraConfig(rank=2, target_modules=["head"]))
    assert any("input_layernorm.dense.lora_A" in name for name, _ in policy.parameters())
