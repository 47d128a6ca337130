"""ACT: what is sampled is what is learned, a demonstration's loss is the VAE's, an evaluation may average what was foreseen."""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from act_cases import CALLS, PICTURES, SEEDS, STATES, act, seen
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import Demonstration, Observation
from mmrl.api.types import Prompt, Status
from mmrl.config.sections import PolicyConfig
from mmrl.policies.act.config import read_config
from mmrl.policies.act.ensemble import Ensemble
from mmrl.policies.act.model import ACT
from mmrl.policies.act.network import Network
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.load import make_policy
from mmrl.rollout.simulators.demonstrations import to_trajectory

STATISTICS = {
    "kind": "mean-std",
    "action": {"mean": [-2.0, -1.0, 0.0], "std": [2.0, 3.0, 1.0]},
    "state": {"mean": [1.0] * 3, "std": [0.5] * 3},
}
TIMES = {"token": 2, "action": 2, "chunk": 1}


def calls(policy, shown, choices, ratio="token"):
    some = torch.zeros(len(choices) * TIMES[ratio])
    return ActionMicroBatch(
        observation=shown,
        choices=choices,
        slots=1,
        valid_SK=torch.ones(len(choices), policy.chunk, dtype=torch.bool),
        ratio=ratio,
        sampler_logprobs_L=some,
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )


def demonstrated(n=4, seed=3):
    """Choices to imitate, of which the second call has two real actions."""
    choices = torch.randn(n, 5, 4, generator=torch.Generator().manual_seed(seed))
    choices[..., -1] = 1
    choices[1, 2:, -1] = 0
    return choices


# -- likelihoods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [STATES, pytest.param(PICTURES, marks=pytest.mark.slow)])
def test_what_is_sampled_is_what_is_learned(model):
    policy, shown = act(model, spread=0.3), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.6)
    assert found.actions_nKA.shape == (4, 2, 3) and found.choices.shape == (4, 2, 3) and found.tokens_n is None
    middle = policy.foresee(shown)[0][:, :2]
    each = Normal(middle, 0.3 * 0.6).log_prob(found.choices).sum(-1)
    torch.testing.assert_close(found.logprobs_nKC[..., 0], each, atol=1e-5, rtol=1e-5)
    for ratio in ("token", "action", "chunk"):
        again = policy.outputs(calls(policy, shown, found.choices, ratio), 0.6, states=True, entropy_gradient=True)
        wanted = each.sum(1) if ratio == "chunk" else each.flatten()
        torch.testing.assert_close(again.logprobs_L, wanted, atol=1e-5, rtol=1e-5)
        entropy = Normal(0.0, 0.18).entropy() * 3 * (2 if ratio == "chunk" else 1)
        torch.testing.assert_close(again.entropy_L, entropy.expand_as(again.entropy_L), atol=1e-5, rtol=1e-5)
    assert torch.equal(again.states_QH, policy.states_of(shown)) and again.states_QH.shape == (4, policy.width)
    some = torch.tensor([2, 1])
    alone = policy.act(shown.rows(some), SEEDS[some], CALLS[some], 0.6)
    torch.testing.assert_close(alone.actions_nKA, found.actions_nKA[some], atol=1e-5, rtol=1e-5)
    assert not torch.equal(policy.act(shown, SEEDS, CALLS + 1, 0.6).actions_nKA, found.actions_nKA)
    torch.testing.assert_close(policy.act(shown, SEEDS, CALLS, 0.0).actions_nKA, middle.clamp(-1, 1))
    again.logprobs_L.sum().backward()
    assert policy.head.log_spread.grad.abs().min() > 0
    assert all(weight.grad is None for name, weight in policy.model.named_parameters() if "vae" in name), "imitation's alone"


def test_a_standard_deviation_may_be_fixed(tmp_path):
    policy = act(spread=0.2, learn_spread=False)
    assert "head.log_spread" not in {name for name, weight in policy.parameters() if weight.requires_grad}
    learned = act()
    with torch.no_grad():
        learned.head.log_spread.add_(1.0)
    learned.save(tmp_path)
    kept = act(source=tmp_path, spread=0.7)
    assert torch.equal(kept.head.log_spread, learned.head.log_spread), "what was learned goes on"
    assert act(source=tmp_path, spread=0.7, learn_spread=False).head.log_spread.exp().tolist() == pytest.approx([0.7] * 3)


def test_a_critic_reads_all_that_is_seen():
    policy, shown = act(PICTURES, cameras=["front"]), seen(1)
    first = policy.states_of(shown)
    for change in (
        {"images": shown.images | {"front": 255 - shown.images["front"]}},
        {"state": torch.cat([shown.state[:, :-1], shown.state[:, -1:] + 1], 1)},
    ):
        assert (policy.states_of(replace(shown, **change)) - first).abs().amax(1).min() > 1e-4, list(change)
    assert torch.equal(policy.states_of(replace(shown, images=shown.images | {"wrist": 255 - shown.images["wrist"]})), first)
    assert not any("bn" in name for name, _ in policy.parameters()), "batch normalisation is fixed"


def test_a_dilated_resnet_has_more_places():
    def places(**fields):
        picture, action = {"type": "VISUAL", "shape": [3, 64, 96]}, {"type": "ACTION", "shape": [1]}
        table = {"vision_backbone": "resnet50", "input_features": {"a": picture}, "output_features": {"action": action}}
        config = read_config(table | {"chunk_size": 1, "n_action_steps": 1, **fields})
        with torch.device("meta"):
            shown = torch.zeros(1, 3, 64, 96)
            found = Network(config).backbone(shown).shape[2:]
        assert config.tokens(vae=True) - 3 - 1 - 3 == found.numel()
        return tuple(found)

    assert places() == (2, 3) and places(replace_final_stride_with_dilation=1) == (4, 6)


# -- demonstrations -------------------------------------------------------------------------------------------------------


def test_a_demonstration_is_learned_by_the_loss_of_the_vae():
    policy, shown, choices = act(kl_weight=3.0, dropout=0.0), seen(64), demonstrated(64)
    network, (robot, environment, pictures) = policy.model["act"], policy.look(shown)
    found = policy.outputs(calls(policy, shown, choices), 1.0).logprobs_L.view(64, 2)
    actions, real = choices[..., :3], choices[..., 3].bool()
    mean, log_variance = network.told(robot, actions, real)
    latents = Normal(mean, (log_variance / 2).exp())
    noises = []
    plain = policy.model["act"].foresee

    def remember(*inputs):
        noises.append(((inputs[3] - latents.loc) / latents.scale).detach())
        return plain(*inputs)

    network.foresee = remember
    policy.imitated(shown, choices)
    network.foresee = plain
    noise = noises[0]
    assert noise.std() == pytest.approx(1.0, abs=0.15) and noise.mean().abs() < 0.2 and noise.unique().numel() == 256
    predicted = network.action_head(network.foresee(robot, environment, pictures, latents.loc + latents.scale * noise))
    divergence = kl_divergence(latents, Normal(torch.zeros_like(mean), 1.0)).sum(1)
    for i, count in enumerate([5, 2, 5, 5]):
        error = sum((predicted[i, k] - actions[i, k]).abs().mean().item() for k in range(count)) / count
        assert found[i].tolist() == pytest.approx([-(error + 3.0 * divergence[i].item())] * 2, abs=1e-4)


def test_what_is_beyond_an_episodes_end_teaches_nothing():
    policy, shown, choices = act(dropout=0.0), seen(), demonstrated()
    one = policy.model["act"].told(policy.look(shown)[0], choices[..., :3], choices[..., 3].bool())[0]
    choices[1, 2:, :3] += 5
    two = policy.model["act"].told(policy.look(shown)[0], choices[..., :3], choices[..., 3].bool())[0]
    torch.testing.assert_close(one, two)
    with torch.no_grad():  # so that the latent is the same, whatever noise the changed actions have
        policy.model["act"].encoder_latent_input_proj.weight.zero_()
    errors = policy.imitated(shown, choices)[0]
    choices[1, 2:, :3] -= 5
    torch.testing.assert_close(policy.imitated(shown, choices)[0], errors)


def test_latents_differ_from_step_to_step_and_not_by_what_else_is_in_the_batch():
    policy, shown, choices = act(dropout=0.0), seen(), demonstrated()
    errors = policy.imitated(shown, choices)[0]
    assert torch.equal(policy.imitated(shown, choices)[0], errors)
    some = torch.tensor([3, 1])
    torch.testing.assert_close(policy.imitated(shown.rows(some), choices[some])[0], errors[some], atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        policy.model["act"].action_head.bias.add_(1e-5)
    assert (policy.imitated(shown, choices)[0] - errors).abs().min() > 1e-3


def test_dropout_is_of_imitation_alone():
    policy, shown, choices = act(), seen(), demonstrated()
    assert policy.dropout == 0.1
    with torch.no_grad():
        plain = policy.imitated(shown, choices)[0]
    state = torch.get_rng_state()
    dropped = policy.imitated(shown, choices)[0]
    assert (dropped - plain).abs().min() > 1e-4 and torch.equal(policy.imitated(shown, choices)[0], dropped)
    assert torch.equal(torch.get_rng_state(), state) and not any(module.training for module in policy.model.modules())
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    scored = policy.outputs(calls(policy, shown, found.choices), 1.0).logprobs_L
    torch.testing.assert_close(scored, found.logprobs_nKC.flatten(), atol=1e-5, rtol=1e-5)


def test_the_end_of_a_demonstration_is_marked():
    policy = act()
    actions = torch.arange(6.0)[:, None].expand(-1, 3) / 10
    shown = Demonstration(instruction="x", images={}, state=torch.randn(6, 6), actions_MA=actions)
    track = to_trajectory(shown, Prompt(id="a", messages=[]), policy)
    assert track.choices.shape == (6, 5, 4) and track.tokens_T is None and track.logprobs_TKC.shape == (6, 2, 1)
    assert (track.choices[2, :, 0] * 10).round().tolist() == [2, 3, 4, 5, 5]
    assert track.choices[:, :, 3].sum(1).tolist() == [5, 5, 4, 3, 2, 1] and track.choices[2, :, 3].tolist() == [1, 1, 1, 1, 0]
    played = replace(track, expert_actions_TA=torch.ones(6, 3), choices=torch.zeros(6, 2, 3))
    corrected = policy.following(Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=played)).data
    assert corrected.choices[:, :, 3].tolist() == [[1, 0, 0, 0, 0]] * 6, "an expert says one action in each state"
    assert (corrected.choices[..., :3] == 1).all()


# -- temporal ensembling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coefficient", [0.3, -0.2])
def test_an_action_is_the_mean_of_what_was_foreseen_for_its_step(coefficient):
    """By the definition, with lists; two episodes, of which the second begins later, in either order."""
    draw, mean, known = torch.Generator().manual_seed(1), Ensemble(coefficient, 4), {7: [], 9: []}
    for step in range(9):
        seeds, steps = ([7], [step]) if step < 2 else ([9, 7], [step - 2, step])
        predicted = torch.randn(len(seeds), 4, 2, generator=draw)
        found = mean(torch.tensor(seeds), torch.tensor(steps), predicted)
        for seed, one, got in zip(seeds, predicted, found, strict=True):
            known[seed].append(one)
            now = len(known[seed]) - 1
            foreseen = [known[seed][call][now - call] for call in range(max(0, now - 3), now + 1)]
            weights = torch.exp(-coefficient * torch.arange(len(foreseen)))
            wanted = (torch.stack(foreseen) * weights[:, None]).sum(0) / weights.sum()
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)
    first = torch.randn(1, 4, 2, generator=draw)
    assert torch.equal(mean(torch.tensor([9]), torch.tensor([0]), first)[0], first[0, 0]), "an episode that begins again"
    assert torch.equal(mean(torch.tensor([9]), torch.tensor([5]), first)[0], first[0, 0]), "a call that doesn't follow"


def test_an_evaluation_averages_and_learning_does_not():
    policy, shown = act(ensemble=0.01, chunk=1), seen()
    (one, two), nothing = (policy.foresee(s)[0] for s in (shown, seen(seed=5))), torch.zeros_like(CALLS)
    assert torch.equal(policy.act(shown, SEEDS, nothing, 0.0).choices[:, 0], one[:, 0])
    noisy = policy.act(seen(seed=5), SEEDS, nothing + 1, 1.0)
    assert noisy.choices.shape == (4, 1, 3)
    found = policy.act(seen(seed=5), SEEDS, nothing + 1, 0.0)
    ratio = torch.exp(torch.tensor(-0.01))
    wanted = (one[:, 1] + ratio * two[:, 0]) / (1 + ratio)
    torch.testing.assert_close(found.choices[:, 0], wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.actions_nKA, found.choices.clamp(-1, 1))
    assert act(chunk=1).ensembling is None


# -- weights --------------------------------------------------------------------------------------------------------------


def test_a_folder_is_the_same_policy(tmp_path):
    policy = act(statistics=STATISTICS, spread=0.4, chunk=1, ensemble=0.02, kl_weight=2.0)
    shown = Observation(images={}, state=seen().state, instructions=["x"] * 4)
    predicted = policy.foresee(shown)[0]
    policy.save(tmp_path / "saved")
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    beside = act(str(tmp_path / "moved"), statistics=STATISTICS)
    assert (beside.ensemble, beside.kl_weight, beside.chunk, beside.dims, beside.state) == (0.02, 2.0, 1, 3, 6)
    same = {"statistics": STATISTICS, "spread": 0.4, "chunk": 1, "ensemble": 0.02, "kl_weight": 2.0}
    for again in (beside, act(source=tmp_path / "moved", **same)):
        assert torch.equal(again.foresee(shown)[0], predicted)
        assert torch.equal(again.head.log_spread, policy.head.log_spread)
    config = PolicyConfig(kind="act", model=str(tmp_path / "moved"), options={"statistics": STATISTICS, "chunk": 3})
    assert make_policy(config).ensemble is None, "the options that were saved leave it out where it can't be"
    clone = policy.clone(frozen=True)
    assert clone.head is clone.model["head"] and clone.head is not policy.head and torch.equal(clone.foresee(shown)[0], predicted)


@pytest.mark.parametrize("model", [STATES, PICTURES])
def test_a_plan_reads_the_same_network(model):
    policy, config = act(model), PolicyConfig(model=model, kind="act", options={"dims": 3, "state": 6, "chunk": 2})
    planned = ACT.planned(config)
    assert {n: w.shape for n, w in planned.model.named_parameters()} == {n: w.shape for n, w in policy.parameters()}
    assert (planned.width, planned.chunk, planned.pictures) == (policy.width, 2, len(policy.checkpoint.config.cameras))
    for demonstrated, choices in ((False, torch.zeros(1, 2, 3)), (True, torch.zeros(1, 5, 4))):
        track = SimpleNamespace(choices=choices)
        assert planned.tokens(0, demonstrated) == policy.tokens_per_call([track])
        assert planned.learn(2, 0, demonstrated).shape == (2, 5, 3)
    assert planned.tokens(0, False) == planned.prefix(0) + 5 and planned.act(2, 0).device.type == "meta"
