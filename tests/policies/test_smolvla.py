"""SmolVLA: velocities are those of plain loops over the weights, what is sampled is what is learned, a folder is the same
policy."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from transformers import SmolVLMConfig

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config import parts
from mmrl.config.sections import CriticConfig, LoraConfig, PartConfig, PolicyConfig
from mmrl.policies.acting.flow import PLACES
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.critic import Critic
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.smolvla.config import check_backbone, picture_tokens, read_config
from mmrl.policies.smolvla.model import SmolVLA
from mmrl.policies.smolvla.network import Network
from pi0_cases import CALLS, DRAW, SEEDS, moved, seen
from smolvla_cases import MODEL, slow_velocity, smolvla


def calls(shown, choices, chunk=2):
    some = torch.zeros(len(shown) * chunk)
    return ActionMicroBatch(
        observation=shown,
        choices=choices,
        slots=1,
        valid_SK=torch.ones(len(shown), chunk, dtype=torch.bool),
        ratio="action",
        sampler_logprobs_L=some,
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )


# -- the network ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_velocities_are_those_of_plain_loops(attention):
    """All moments of all rows in one pass, padded and behind one prefix, against each alone."""
    policy, shown = moved(smolvla(attention=attention)), seen()
    draw = torch.Generator().manual_seed(3)
    x, times = torch.randn(4, 2, 5, 32, generator=draw), torch.rand(4, 2, generator=draw)
    with torch.no_grad():
        scene = policy.look(shown)
        found = policy.velocity(scene, x, times)
    for n, m in ((0, 0), (1, 1), (3, 0)):
        wanted, state = slow_velocity(policy, shown, n, x[n, m], float(times[n, m]))
        torch.testing.assert_close(found[n, m], wanted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(scene.seen_nH[n], state, atol=1e-5, rtol=1e-4)
    assert found.std(1).max() > 1e-2


def test_a_demonstration_teaches_the_robots_numbers_alone():
    policy, shown = moved(smolvla()), seen()
    actions = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(5))
    choices, asked = policy.head.choices_of(actions), []
    assert choices.shape == (4, 1, 5, 32) and (choices[..., 3:] == 0).all()

    def remember(x, times):
        asked.append((x, times))
        return torch.zeros_like(x)

    policy.chains.score(remember, choices, 1.0)
    ((x, times),) = asked
    assert ((torch.arange(PLACES) / PLACES) ** (2 / 3) <= times).all() and (times < 1).all(), "one in each part of Beta(1.5, 1)"
    with torch.no_grad():
        velocity = policy.velocity(policy.look(shown), x, times)
    t = times[:, :, None, None]
    wanted = ((velocity - (x - choices) / t)[..., :3] ** 2).mean()  # x = t noise + (1 - t) action, so (x - action) / t
    found = policy.outputs(calls(shown, choices), 1.0)
    torch.testing.assert_close(found.logprobs_L.mean(), -wanted, atol=1e-4, rtol=1e-4)
    assert found.logprobs_L.requires_grad and (found.entropy_L == 0).all()


def test_the_published_sizes():
    """450 million weights with the language model's head, which is left out here, about 100 of them the expert's (Shukor et al.,
    section 4.1), over SmolVLM2-500M."""
    text = {"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 15, "head_dim": 64}
    eye = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    backbone = SmolVLMConfig(
        text_config={"model_type": "llama", "vocab_size": 49280, "num_key_value_heads": 5, "pad_token_id": 0, **text},
        vision_config={**eye, "image_size": 512, "patch_size": 16},
        scale_factor=4,
        pad_token_id=0,
    )
    config = read_config({})
    check_backbone(config, backbone)
    with torch.device("meta"):
        network = Network(config, backbone)
    sizes = {name: p.numel() / 1e6 for name, p in network.named_parameters()}
    assert 449 < sum(sizes.values()) + 49280 * 960 / 1e6 < 451 and picture_tokens(config, backbone) == 64
    assert 97 < sum(size for name, size in sizes.items() if "lm_expert" in name) < 100


# -- likelihoods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noisy", ["all", "one"])
def test_what_is_sampled_is_what_is_learned(noisy):
    policy, shown = moved(smolvla(noisy=noisy)), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.6)
    outputs = policy.outputs(calls(shown, found.choices), 0.6, states=True)
    torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=1e-4, rtol=1e-5)
    assert outputs.logprobs_L.requires_grad and found.actions_nKA.shape == (4, 2, 3) and found.logprobs_nKC.shape == (4, 2, 1)
    some = torch.tensor([2, 1])
    alone = policy.act(shown.rows(some), SEEDS[some], CALLS[some], 0.6)
    torch.testing.assert_close(alone.actions_nKA, found.actions_nKA[some], atol=1e-5, rtol=1e-5)
    assert not torch.equal(policy.act(shown, SEEDS, CALLS + 1, 0.6).actions_nKA, found.actions_nKA)


def test_a_likelihood_is_that_of_the_executed_numbers():
    """Step by step with plain loops, from the definition."""
    policy, shown = moved(smolvla(steps=2, noise_level=0.7)), seen(1)
    found = policy.act(shown, SEEDS[:1], CALLS[:1], 0.8)
    total = torch.zeros(2, dtype=torch.float64)
    for i in range(2):
        t, (x, following) = 1 - i / 2, found.choices[0, i : i + 2]
        v = slow_velocity(policy, shown, 0, x, t)[0]
        x, following, v = (a[:2, :3].double() for a in (x, following, v))
        sigma = 0.7 * math.sqrt(t / max(1 - t, 0.5)) * 0.8
        mean = x - (v + sigma**2 / (2 * t) * (x + (1 - t) * v)) / 2
        total += torch.distributions.Normal(mean, sigma * math.sqrt(0.5)).log_prob(following).sum(-1)
    torch.testing.assert_close(found.logprobs_nKC[0, :, 0].double(), total, atol=1e-4, rtol=1e-4)


def test_a_critic_reads_the_robots_state_and_no_noise():
    policy, shown = moved(smolvla()), seen()
    first = policy.choose(shown, DRAW, 1.0)[3]
    other = policy.choose(shown, CallRandomness(seeds_n=SEEDS + 9, calls_n=CALLS), 1.0)[3]
    assert torch.equal(first, other) and torch.equal(policy.states_of(shown), first) and first.shape == (4, policy.width)
    known = {"images": shown.images, "state": shown.state, "instructions": shown.instructions}
    for change in (
        {"images": {k: 255 - v for k, v in shown.images.items()}},
        {"state": shown.state + 1},
        {"instructions": ["do nothing at all"] * 4},
    ):
        assert (policy.states_of(Observation(**{**known, **change})) - first).abs().amax(1).min() > 1e-4, change


@pytest.mark.parametrize("detach", [True, False])
def test_a_critics_gradient_is_cut_where_it_says_so(detach):
    policy, shown = smolvla(), seen()
    critic = Critic(policy, CriticConfig(hidden_sizes=[4], detach=detach), 0)
    with torch.no_grad():
        critic.head[-1].weight.add_(1.0)
    found = policy.act(shown, SEEDS, CALLS, 1.0, critic)
    made = calls(shown, found.choices)
    values, *_ = critic.values(made, policy.outputs(made, 1.0, states=True).states_QH)
    torch.testing.assert_close(values, found.values_nU.expand(-1, 2).flatten(), atol=1e-5, rtol=1e-4)
    values.sum().backward()
    reached = sum(float(p.grad.abs().sum()) for _, p in policy.parameters() if p.grad is not None)
    assert (reached == 0) == detach and critic.head[0].weight.grad.abs().sum() > 0


# -- weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_is_the_same_policy(dtype, tmp_path):
    policy = moved(smolvla(dtype=dtype, cameras=["wrist"], noisy="one"))
    policy.save(tmp_path / "saved")
    options = {"cameras": ["wrist"], "noisy": "one", "dtype": dtype}
    one = policy.act(seen(), SEEDS, CALLS, 1.0)
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    for again in (smolvla(str(tmp_path / "moved"), **options), smolvla(source=tmp_path / "moved", **options)):
        two = again.act(seen(), SEEDS, CALLS, 1.0)
        assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)
    made = calls(seen(), one.choices)
    assert one.choices.dtype == one.logprobs_nKC.dtype == policy.outputs(made, 1.0).logprobs_L.dtype == torch.float32
    assert policy.model.action_out_proj.weight.dtype == torch.float32, "an action's numbers are never rounded to bfloat16"
    assert policy.model.vlm_with_expert["lm_expert"]["layers"][0].mlp.up_proj.weight.dtype == getattr(torch, dtype)
    with pytest.raises(UserError, match=r"holds a policy with dims = 3, and the run file says 4: set policy.options.dims = 3"):
        smolvla(str(tmp_path / "moved"), dims=4, **options)


def test_adapters_train_alone_and_are_saved(tmp_path):
    lora = LoraConfig(rank=2, target_modules=["head", "language"])
    policy = smolvla(lora=lora)
    names = [name for name, _ in policy.parameters()]
    assert all("lora_" in n for n in names) and any("lm_expert" in n for n in names) and any("text_model" in n for n in names)
    moved(policy).save(tmp_path / "saved")
    one = policy.act(seen(), SEEDS, CALLS, 1.0)
    for again in (smolvla(lora=lora, source=tmp_path / "saved"), smolvla(str(tmp_path / "saved"))):
        torch.testing.assert_close(again.act(seen(), SEEDS, CALLS, 1.0).choices, one.choices, atol=1e-4, rtol=1e-4)


def gradients(policy, made, on=False):
    policy.model.zero_grad()
    with gradient_checkpointing(policy.model, on):
        policy.outputs(made, 1.0).logprobs_L.sum().backward()
    return {name: p.grad.clone() for name, p in policy.parameters() if p.grad is not None}


def test_layers_are_computed_again_for_the_same_gradients():
    policy, shown = moved(smolvla()), seen()
    made = calls(shown, policy.act(shown, SEEDS, CALLS, 1.0).choices)
    once, again = gradients(policy, made), gradients(policy, made, on=True)
    assert once.keys() == again.keys() and any("vision_model" in name for name in once) and "state_proj.weight" in once
    for name, gradient in once.items():
        torch.testing.assert_close(again[name], gradient, atol=1e-5, rtol=1e-4)


def test_the_expert_is_a_part_of_its_own():
    """So that a stage freezes the vision-language model by the names of its parts, as LeRobot's training does by default."""
    policy, shown = smolvla(), seen()
    names = [name for name, _ in policy.parameters()]
    assert {parts.part_of(name) for name in names} == {"vision", "projector", "language", "head"}
    assert [n for n, _ in SmolVLA.skeleton(PolicyConfig(model=MODEL, kind="smolvla")).named_parameters()] == names
    frozen = [PartConfig(match=part, freeze=True) for part in ("vision", "projector", "language")]
    for name, p in policy.parameters():
        p.requires_grad_(parts.entry(frozen, name) is None)
    reached = gradients(policy, calls(shown, policy.act(shown, SEEDS, CALLS, 1.0).choices))
    assert reached.keys() == {name for name in names if parts.part_of(name) == "head"}
    assert "state_proj.weight" in reached and "action_in_proj.weight" in reached
