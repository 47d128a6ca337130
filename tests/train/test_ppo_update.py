"""A whole update of PPO on episodes in a simulator, critic and all, is that of a loop that is written out here.

The loop is the one of CleanRL (Huang et al., The 37 Implementation Details of PPO) and of ManiSkill's baseline, but for what docs
say of mini-batches, clipping and standardising.
"""

import copy

import pytest
import torch
from mmrl_robotics.small import Small
from torch.distributions import Normal

from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.signals import Signals
from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.types import Prompt, Score, Status
from mmrl.config.load import parse_config
from mmrl.config.sections import CriticConfig, PolicyConfig, RlStage
from mmrl.policies.critic import Critic
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_trajectories import TrajectoryPacker
from mmrl.train.update.packer import PackOptions

RUN = {"name": "x", "policy": {"model": "mlp"}, "tasks": [{"id": "x/y"}], "stages": [{"kind": "rl", "steps": 1}]}
STATE, DIMS, GAMMA, LAM, RATE, NORM = 5, 3, 0.8, 0.9, 3e-3, 0.5
LENGTHS = [(7, True), (4, False), (7, True), (2, False), (5, True)]
"""Calls of an episode, and whether it was cut off."""


def made(seed, backbone):
    policy = Small(
        PolicyConfig(kind="robotics/small", model="mlp"), dims=DIMS, state=STATE, hidden=[16, 8], spread=0.6, seed=seed
    )
    config = CriticConfig(
        backbone=backbone, learning_rate=2 * RATE, clip_range=0.0, max_grad_norm=NORM, detach=backbone == "shared"
    )
    critic = Critic(policy, config, seed)
    with torch.no_grad():  # the head begins at zero, and a separate backbone as the policy's: values must tell them apart
        for _, p in critic.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return policy, critic


def shown(states):
    return Observation(images={}, state=states, instructions=[""] * len(states))


def episodes(policy, critic):
    """What `act` chose and valued at random states, paid at random."""
    g, found = torch.Generator().manual_seed(1), []
    for n, (length, cut) in enumerate(LENGTHS):
        states, calls = torch.randn(length + 1, STATE, generator=g), torch.arange(length + 1)
        chosen = policy.act(shown(states), torch.full_like(calls, n), calls, 1.0, critic)
        track = TrajectoryData(
            instruction="",
            images={},
            state=states,
            choices=chosen.choices[:-1],
            logprobs_TKC=chosen.logprobs_nKC[:-1],
            valid_TK=torch.ones(length, 1, dtype=torch.bool),
            rewards_TK=torch.randn(length, 1, generator=g),
            values_TU=chosen.values_nU[:-1],
            bootstrap=float(chosen.values_nU[-1, 0]) if cut else 0.0,
        )
        status = Status.TRUNCATED_TIME if cut else Status.FINISHED
        found.append(Trajectory(prompt=Prompt(messages=[]), group=n, status=status, data=track))
    return found


def updated(policy, critic, rollouts, stage):
    """The update under test; returns the states of each mini-batch, for every epoch."""
    algorithm, longest = load_algorithm("ppo", {"gamma": GAMMA, "lam": LAM}), max(n for n, _ in LENGTHS)
    values = torch.stack([torch.nn.functional.pad(r.data.values_TU[:, 0], (0, longest - len(r.data.choices))) for r in rollouts])
    measured = {"values": values, "bootstrap": torch.tensor([r.data.bootstrap for r in rollouts])}
    signals = Signals(rollouts, [Score(0.0)] * len(rollouts), stage, measure=lambda names: measured)
    credit = algorithm.credit(signals)
    options = PackOptions(keep_zero=True, minibatches=stage.minibatches, seed=3, ratio=stage.ratio)
    packer = TrajectoryPacker(parse_config({**RUN, "train": {"micro_batch_tokens": 4}}), policy)
    batches, dealt = packer.deal(rollouts, credit, options), []

    def watched(epoch):
        dealt.append(batches(epoch))
        return dealt[-1]

    Learner(policy, stage, algorithm, critic=critic).update(watched if callable(batches) else batches, 0)
    found = [[torch.cat([micro.observation.state for micro in batch.micro]) for batch in pass_] for pass_ in dealt or [batches]]
    return found if dealt else found * stage.epochs


def network(model, states):
    """(mean of the action, what a critic reads) of a perceptron, by its weights alone."""
    x = states
    for layer in model["body"]:
        x = torch.tanh(x @ layer.weight.T + layer.bias) if isinstance(layer, torch.nn.Linear) else x
    last = model["head"].mean[0]
    return x @ last.weight.T + last.bias, x


def by_hand(model, backbone, head, rollouts, passes):
    """Trains the given modules. backbone: None reads the policy's own features, which then learn nothing from values. passes: of
    each epoch the states of its mini-batches."""

    def value(states):
        features = network(model, states)[1].detach() if backbone is None else network(backbone, states)[1]
        return (features @ head[0].weight.T + head[0].bias)[:, 0]

    rows = []
    for r in rollouts:
        with torch.no_grad():
            v = value(r.data.state)
        later = 0.0
        for t in reversed(range(len(r.data.choices))):
            ended = t == len(r.data.choices) - 1 and r.status == Status.FINISHED
            delta = r.data.rewards_TK[t, 0] + GAMMA * (0.0 if ended else v[t + 1]) - v[t]
            later = delta + GAMMA * LAM * later
            rows.append((r.data.state[t], r.data.choices[t, 0], later, later + v[t]))
    states, actions, advantages, targets = (torch.stack(column) for column in zip(*rows, strict=True))
    advantages = (advantages - advantages.mean()) / advantages.std(correction=0)

    def logprob(s, a):
        return Normal(network(model, s)[0], model["head"].log_spread.exp()).log_prob(a).sum(-1)

    old = logprob(states, actions).detach()
    ours, critics = list(model.parameters()), [*head.parameters(), *([] if backbone is None else backbone.parameters())]
    rule = torch.optim.Adam([{"params": ours, "lr": RATE}, {"params": critics, "lr": 2 * RATE}])
    for parts in passes:
        for part in parts:
            at = [next(i for i in range(len(states)) if torch.equal(states[i], s)) for s in part]
            ratio = (logprob(states[at], actions[at]) - old[at]).exp()
            a = advantages[at]
            surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
            error = ((value(states[at]) - targets[at]) ** 2 / 2).mean()
            rule.zero_grad()
            (-surrogate + 0.5 * error).backward()
            for group in (ours, critics):
                torch.nn.utils.clip_grad_norm_([p for p in group if p.grad is not None], NORM)
            rule.step()


@pytest.mark.parametrize("minibatches", [1, 3])
@pytest.mark.parametrize("backbone", ["separate", "shared"])
def test_an_update_on_episodes_is_the_loop_written_out(backbone, minibatches):
    policy, critic = made(0, backbone)
    twin = copy.deepcopy(critic.backbone.model) if critic.backbone else None
    model, head = copy.deepcopy(policy.model), copy.deepcopy(critic.head)
    before = [p.detach().clone() for p in policy.model.parameters()]
    settings = {"epochs": 4, "minibatches": minibatches, "optimizer": "adam", "learning_rate": RATE, "max_grad_norm": NORM}
    sampled = {"prompts_per_step": 5, "group_size": 1, "ratio": "action", "credit": "action"}
    stage = RlStage(kind="rl", steps=1, algorithm="ppo", critic=critic.config, **sampled, **settings)
    rollouts = episodes(policy, critic)
    passes = updated(policy, critic, rollouts, stage)
    assert [sorted(len(p) for p in parts) for parts in passes] == [[25] if minibatches == 1 else [8, 8, 9]] * 4
    by_hand(model, twin, head, rollouts, passes)
    assert max((a - b).abs().max() for a, b in zip(before, policy.model.parameters(), strict=True)) > RATE, (
        "something was learned"
    )
    pairs = [(policy.model, model), (critic.head, head), *([(critic.backbone.model, twin)] if twin else [])]
    for mine, other in pairs:
        for name, p in mine.named_parameters():
            torch.testing.assert_close(p.detach(), dict(other.named_parameters())[name].detach(), rtol=1e-4, atol=1e-5, msg=name)
