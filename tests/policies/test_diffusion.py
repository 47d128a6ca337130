"""Diffusion Policy: what is sampled is what is learned, it sees the last steps of the simulator, a folder is the same policy."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from diffusion_cases import CALLS, PICTURES, SEEDS, STATES, diffusion, seen
from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.simulators.history import earlier, present
from mmrl.api.simulators.types import Demonstration, Observation
from mmrl.api.types import Prompt, Status
from mmrl.config.sections import SimulateConfig
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.diffusion.model import Diffusion
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.demonstrations import to_trajectory
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.train.stages.distill import DistillSteps

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
STATISTICS = {
    "kind": "min-max",
    "state_kind": "mean-std",
    "action": {"min": [-2.0, -1.0, 0.0], "max": [2.0, 3.0, 1.0]},
    "state": {"mean": [1.0] * 3, "std": [0.5] * 3},
}


def calls(policy, shown, choices, ratio="token"):
    logprobs, tokens = policy.unsampled(choices)
    targets = int(tokens.sum()) if ratio == "token" else len(choices)
    some = torch.zeros(targets)
    return ActionMicroBatch(
        observation=shown,
        choices=choices,
        slots=logprobs.shape[-1],
        tokens_S=tokens,
        valid_SK=torch.ones(len(choices), policy.chunk, dtype=torch.bool),
        ratio=ratio,
        sampler_logprobs_L=some,
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )


# -- likelihoods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [STATES, pytest.param(PICTURES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scheduler", ["DDPM", "DDIM"])
def test_what_is_sampled_is_what_is_learned(model, scheduler):
    policy, shown = diffusion(model, scheduler=scheduler, tuned_steps=3), seen()
    found = policy.act(shown, SEEDS, CALLS, 0.6)
    assert found.actions_nKA.shape == (4, 2, 3) and found.logprobs_nKC.shape == (4, 1, 3) and found.choices.shape == (4, 4, 8, 3)
    assert found.tokens_n.tolist() == [3] * 4
    each = policy.outputs(calls(policy, shown, found.choices), 0.6, states=True)
    torch.testing.assert_close(each.logprobs_L, found.logprobs_nKC.flatten(), atol=1e-5, rtol=1e-5)
    whole = policy.outputs(calls(policy, shown, found.choices, "chunk"), 0.6)
    torch.testing.assert_close(whole.logprobs_L, found.logprobs_nKC.sum((1, 2)), atol=1e-4, rtol=1e-5)
    assert each.logprobs_L.requires_grad and torch.equal(each.states_QH, policy.states_of(shown))
    some = torch.tensor([2, 1])
    alone = policy.act(shown.rows(some), SEEDS[some], CALLS[some], 0.6)
    torch.testing.assert_close(alone.actions_nKA, found.actions_nKA[some], atol=1e-5, rtol=1e-5)
    assert not torch.equal(policy.act(shown, SEEDS, CALLS + 1, 0.6).actions_nKA, found.actions_nKA)
    still = policy.act(shown, SEEDS, CALLS, 0.0)
    assert torch.equal(policy.act(shown, SEEDS, CALLS, 0.0).actions_nKA, still.actions_nKA)


@pytest.mark.parametrize("likelihood", ["sum", "mean"])
def test_a_likelihood_is_that_of_the_executed_numbers(likelihood):
    """Step by step with plain loops, from the definition of DDPM. Of two moments and eight actions, the second and third are
    carried out."""
    policy, shown = diffusion(likelihood=likelihood, exploration_std=0.3, likelihood_std=0.2), seen(1)
    found = policy.act(shown, SEEDS[:1], CALLS[:1], 0.8)
    condition, kept = policy.look(shown), (1 - policy.chain.betas_T).cumprod(0).double()
    for i in range(4):
        t, (x, following) = 3 - i, found.choices[0, i : i + 2].double()
        with torch.no_grad():
            noise = policy.model.predict(condition, found.choices[:, i : i + 1], torch.tensor([[t]]))[0, 0].double()
        before, after = kept[t], kept[t - 1] if t else torch.tensor(1.0, dtype=torch.float64)
        start = ((x - (1 - before).sqrt() * noise) / before.sqrt()).clamp(-1, 1)
        beta = 1 - before / after
        mean = (after.sqrt() * beta * start + (before / after).sqrt() * (1 - after) * x) / (1 - before)
        std = max(((1 - after) / (1 - before) * beta).sqrt().item(), 0.2) * 0.8
        each = torch.distributions.Normal(mean, std).log_prob(following)[1:3]
        wanted = each.sum() if likelihood == "sum" else each.mean()
        torch.testing.assert_close(found.logprobs_nKC[0, 0, i].double(), wanted, atol=1e-4, rtol=1e-4)
    assert torch.equal(found.actions_nKA[0], found.choices[0, -1, 1:3].clamp(-1, 1))


def test_a_critic_reads_all_that_is_seen_and_no_noise():
    policy, shown = diffusion(PICTURES, cameras=["wrist"]), seen()
    first = policy.states_of(shown)
    assert torch.equal(policy.choose(shown, CallRandomness(seeds_n=SEEDS, calls_n=CALLS), 1.0)[3], first)
    assert first.shape == (4, policy.width) and policy.width == 2 * (6 + 16)
    for change in (
        {"images": shown.images | {"wrist": 255 - shown.images["wrist"]}},
        {"images": shown.images | {earlier("wrist", 1): 255 - shown.images[earlier("wrist", 1)]}},
        {"state": torch.cat([shown.state[:, :6] + 1, shown.state[:, 6:]], 1)},
        {"state": torch.cat([shown.state[:, :6], shown.state[:, 6:] + 1], 1)},
    ):
        assert (policy.states_of(replace(shown, **change)) - first).abs().amax(1).min() > 1e-4, list(change)
    front = shown.images | {"front": 255 - shown.images["front"]}
    assert torch.equal(policy.states_of(replace(shown, images=front)), first)


def test_a_demonstration_teaches_all_actions_from_the_first_moment_on():
    policy = diffusion()
    actions = torch.arange(5.0)[:, None].expand(-1, 3) / 10
    shown = Demonstration(instruction="x", images={}, state=torch.arange(30.0).view(5, 6), actions_MA=actions)
    track = to_trajectory(shown, Prompt(id="a", messages=[]), policy)
    assert track.choices.shape == (5, 1, 8, 3) and track.tokens_T.tolist() == [1] * 5
    assert (track.choices[0, 0, :, 0] * 10).round().tolist() == [0, 0, 1, 2, 3, 4, 4, 4]
    assert (track.choices[3, 0, :, 0] * 10).round().tolist() == [2, 3, 4, 4, 4, 4, 4, 4]
    assert track.state[0].tolist() == [*range(6), *range(6)] and track.state[4].tolist() == [*range(18, 30)]
    assert track.valid_TK.tolist() == [[True, True]] * 4 + [[True, False]]
    made = calls(policy, Observation(images={}, state=track.state[:-1], instructions=["x"] * 5), track.choices)
    found = policy.outputs(made, 1.0)
    condition = policy.look(made.observation)
    loss = policy.chain.matching(lambda x, times: policy.model.predict(condition, x, times), track.choices[:, 0])
    torch.testing.assert_close(found.logprobs_L, -loss.mean((1, 2)), atol=1e-6, rtol=1e-5)
    assert found.logprobs_L.requires_grad and found.logprobs_L.shape == (5,)


def test_what_an_expert_does_not_say_is_not_learned():
    """It says the action of each state, and not what follows it: what it says in the states after is about another's actions."""
    policy = diffusion(chunk=1)
    actions = torch.arange(5.0)[:, None].expand(-1, 3) / 10
    shown = Demonstration(instruction="x", images={}, state=torch.arange(30.0).view(5, 6), actions_MA=actions)
    track = replace(to_trajectory(shown, Prompt(id="a", messages=[]), policy), expert_actions_TA=actions)
    followed = policy.following(Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track)).data
    assert followed.choices[:, 0, 1].tolist() == track.choices[:, 0, 1].tolist()
    assert followed.choices.isnan().sum() == 5 * 7 * 3
    made = calls(policy, Observation(images={}, state=track.state[:-1], instructions=["x"] * 5), followed.choices)
    condition, said = policy.look(made.observation), track.choices[:, :1, 1:2].squeeze(1).expand(-1, 8, -1)
    loss = policy.chain.matching(lambda x, times: policy.model.predict(condition, x, times), said)
    torch.testing.assert_close(policy.outputs(made, 1.0).logprobs_L, -loss[:, 1].mean(1), atol=1e-6, rtol=1e-5)


def test_a_policy_that_can_not_leave_out_what_was_not_said_has_no_expert_for_a_teacher(monkeypatch):
    monkeypatch.setattr(Diffusion, "follows", False)
    run = SimpleNamespace(policy=diffusion(), collector=SimpleNamespace(), at=SimpleNamespace(stage=2))
    steps = SimpleNamespace(config=None, stage=SimpleNamespace(teacher="expert"), run=run)
    with pytest.raises(UserError, match=r"^stages\.2\.teacher: an expert says one .* learns 8 in a row: imitate demonstrations"):
        DistillSteps.begin(steps)


# -- the last steps -------------------------------------------------------------------------------------------------------


def test_it_sees_the_last_steps_of_the_simulator_and_not_its_last_calls(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", DIAL)
    model = "tiny:diffusion:width=8,horizon=8,moments=3,times=2,pictures=0"
    policy = diffusion(model, dims=2, state=2, chunk=2)
    task = plugins.registry().make_task("dial/turn", {"n": 6, "never": True})
    made = SimulatorCollector(policy, {"dial/turn": task}, SimulateConfig(num_envs=1))
    asked = [replace(p, task="dial/turn") for p in task.prompts("train", 0)]
    made.ready()
    simulator, states, pictures = made.lanes("dial/turn")[0].simulator, [], []
    reset, step = simulator.reset, simulator.step

    def remember(shown):
        states[-1].append(shown.state[0])
        pictures[-1].append(shown.images["front"][0])

    def began(*given):
        states.append([])
        pictures.append([])
        remember(found := reset(*given))
        return found

    def went(*given):
        remember((found := step(*given)).observation)
        return found

    monkeypatch.setattr(simulator, "reset", began)
    monkeypatch.setattr(simulator, "step", went)
    found = made.collect(asked, made.encode(asked), 1, SamplingParams(max_tokens=1, temperature=1.0, seed=5))
    assert len(found) == len(states) == 6 and any(len(s) > 3 for s in states)
    for one, state, shown in zip(found, states, pictures, strict=True):
        data = one.data
        moments = [min(2 * t, len(state) - 1) for t in range(len(data.choices) + 1)]
        assert data.state.tolist() == [torch.cat([state[max(0, at - k)] for k in (2, 1, 0)]).tolist() for at in moments]
        for k in (1, 2):
            assert torch.equal(data.images[earlier("front", k)], torch.stack([shown[max(0, at - k)] for at in moments]))
    first = max(found, key=lambda r: len(r.data.choices)).data
    seen_there = Observation(
        images={}, state=first.state[:-1], instructions=[first.instruction] * len(first.choices)
    )  # scored as it was sampled
    scored = policy.outputs(calls(policy, seen_there, first.choices), 1.0).logprobs_L
    torch.testing.assert_close(scored, first.logprobs_TKC.flatten(), atol=1e-5, rtol=1e-5)
    (shown,) = made.demonstrate(asked[:1], made.encode(asked[:1]), [""])
    now = shown.data.state[:, 4:]
    assert torch.equal(shown.data.state[:, :2], torch.stack([now[max(0, t - 2)] for t in range(len(now))]))
    front = shown.data.images["front"]
    assert torch.equal(shown.data.images[earlier("front", 1)], torch.stack([front[max(0, t - 1)] for t in range(len(front))]))
    assert list(present(shown.data.images)) == ["front"]
    made.close()


# -- weights --------------------------------------------------------------------------------------------------------------


def test_a_folder_is_the_same_policy(tmp_path):
    policy = diffusion(statistics=STATISTICS, tuned_steps=2, likelihood="mean", scheduler="DDIM", steps=3)
    condition = policy.look(seen())
    shutil.move(_saved(policy, tmp_path / "saved"), tmp_path / "moved")
    kept = {"statistics": STATISTICS, "tuned_steps": 2, "likelihood": "mean"}
    for again in (diffusion(str(tmp_path / "moved"), **kept), diffusion(source=tmp_path / "moved", **kept)):
        assert torch.equal(again.look(seen()), condition) and again.settings() == policy.settings()
        draw = CallRandomness(seeds_n=SEEDS, calls_n=CALLS)
        assert all(
            torch.equal(a, b) for a, b in zip(again.choose(seen(), draw, 1.0), policy.choose(seen(), draw, 1.0), strict=True)
        )
    changed = diffusion(str(tmp_path / "moved"), statistics=STATISTICS, scheduler="DDPM", steps=4, chunk=3)
    assert changed.chain.steps == 4 and changed.head.slots == 4 and changed.chunk == 3
    with pytest.raises(UserError, match=r"policy\.options\.dims = 4, and '.*moved' has 3: leave it out"):
        diffusion(str(tmp_path / "moved"), statistics=STATISTICS, dims=4)


def _saved(policy, folder):
    policy.save(folder)
    return str(folder)
