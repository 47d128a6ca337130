"""How often the host waits for the device, and how many copies it starts: all numbers are in `BUDGETS`."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from mmrl_robotics.small import Small

import row_length_cases as rows
import vlm_cases as cases
from changed_models import change
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.simulators.processes.simulator import ProcessSimulator
from mmrl.api.simulators.types import ActionSpec, Observation
from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, OffPolicyStage, PolicyConfig, SimulateConfig
from mmrl.policies.act.ensemble import Ensemble
from mmrl.policies.actors import NoisyTanh, SquashedNormal
from mmrl.policies.gr00t.embodiment import Group
from mmrl.policies.gr00t.pictures import resize_by_area
from mmrl.policies.load import make_policy
from mmrl.policies.pi0.action_words import NOTHING
from mmrl.policies.resizing import resize
from mmrl.policies.vlm import families
from mmrl.policies.vlm.vision_cache import vision_cache
from mmrl.policies.vlm.vlm import VLM
from mmrl.policies.xvla.pictures import framed
from mmrl.registry import plugins
from mmrl.rollout.generate.local import LOOK_EVERY, LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.testing.cases import mostly_slow, some_of
from mmrl.train.update.aliasing import NoiseAliased
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack
from mmrl.train.update.pack_trajectories import pack_trajectories
from mmrl.train.update.packer import PackOptions
from mmrl.train.update.replay import Episode, Layout, Replay
from mmrl.train.update.rlpd import Rlpd
from mmrl.train.update.td3 import Td3

BUDGETS = {
    # the embedded sampler; the prompts of a call have several lengths
    "a call": (5, 4),  # are the logits finite; tokens, log-probabilities, lengths and which are finished, at the end
    "a token": (0, 0),
    "a look": (1, 0),  # how many go on
    # an update of a conversations' policy
    "packing a batch": (0, 1),
    "packing a micro-batch": (0, 1),
    "a step": (2, 0),  # the figures; the gradient's norm
    "a micro-batch": (1, 1),  # where pictures were put in, backward; what follows from their sizes, to the device
    "pictures of a micro-batch": (0, 1),  # in each pass over more than two
    "a micro-batch whose pictures a frozen tower has seen": (0, 0),
    # a policy that acts, on a simulator beside it
    "a step of the environments": (4, 3),  # is the action finite, and a number; what is drawn; what came of it
    "a call of a vision-language model that acts": (1, 3),  # are the actions finite; its text, what follows from sizes, seeds
    "a step of processes": (0, 1),  # what they show and say, from pinned memory
    "packing a micro-batch of calls": (0, 2),  # of them, and their rows of the observations
    "a micro-batch of calls": (0, 0),
    "tokens of actions": (3, 2),  # the state, words of the prompt; the longest call; where tokens are
    # an update from a memory
    "a step of the critics": (3, 3),  # is the loss finite, the gradient's norm, the errors; batch, noise, which critics
    "its novelty": (1, 0),  # for its deviation from all so far; the memory's states are there already
    "a step of RLPD's policy": (5, 1),  # as of the critics, of it and its temperature; the figures of all; noise
    "a step of TD3's policy": (3, 0),
    "a step of DSRL-NA's policy": (4, 1),  # as of the critics, of it and its temperature; noise
    "a step of critics of noise": (2, 2),  # is the loss finite, the gradient's norm; batch, noise
}
"""What -> (waits, copies that nobody waits for). A smaller number is to be written down."""
FAMILIES = {
    **{"qwen2_5_vl": 1, "qwen2_vl": 1, "qwen3_vl": 1, "qwen3_vl_moe": 1},
    **{"gemma3": 2, "llava": 2, "internvl": 2, "paligemma": 4, "deepseek_vl": 2, "aya_vision": 2, "cohere2_vision": 2},
    **{"pixtral": 5, "idefics3": 6, "gemma4": 6, "llava_onevision": 8, "mistral3": 8, "smolvlm": 10, "qwen3_5": 10},
    **{"qwen3_5_moe": 10, "glm4v": 13, "glm46v": 13, "glm4v_moe": 13, "kimi_k25": 19, "ovis2": 23, "lfm2_vl": 23},
    **{"ernie4_5_vl_moe": 33, "minicpmv4_6": 41, "minicpmv4_7": 41},
}
"""Family -> waits in a micro-batch, at most; those of the last are transformers' own."""
ACTING = {
    "gr00t": ("tiny:gr00t:hidden=32,layers=1,chunk=3", 1),
    "gr00t_n1d6": ("tiny:gr00t_n1d6:hidden=32,layers=1,chunk=3", 1),
    "vla": ("tiny:openvla:hidden=32,layers=1", 1),
    "pi05": ("tiny:pi05:hidden=32,layers=1,chunk=3", 2),  # the state, which is words of its prompt
    "pi0": ("tiny:pi0:hidden=32,layers=1,chunk=3", 1),
    "pi0_fast": ("tiny:pi0_fast:hidden=32,layers=1,chunk=3", 4),  # the state, its tokens, and at the eighth whether they go on
    "smolvla": ("tiny:smolvla:hidden=32,layers=2,chunk=3", 1),
    "xvla": ("tiny:xvla:hidden=32,layers=1,chunk=3", 1),
    "act": ("tiny:act:width=16,chunk=3,latent=0", 1),
    "diffusion": ("tiny:diffusion:width=8,horizon=4,moments=1,times=4", 1),  # however many steps it denoises in
}
"""Kind of a policy that acts -> (model, waits in a call); one of them for whether the actions are finite."""
OPTIONS = {"vla": {}, "pi0_fast": {"chunk": 2, "state": 8, "action_tokens": 14, "vocabulary": "actions"}}
OFTEN = {"qwen2_5_vl", "qwen3_vl_moe", "llava", "paligemma", "idefics3", "smolvlm", "glm4v", "kimi_k25"}
"""Families that CI counts, of few waits and of many."""
ROWS = [("camera/front", "uint8", (8, 8, 3)), ("state", "float32", (4,)), ("reward", "float32", ()), ("part/near", "float32", ())]
ROWS += [(name, "bool", ()) for name in ("terminated", "truncated", "success")]
"""Arrays of an environment in a process: name, dtype, shape."""
RUN = {
    "name": "x",
    "policy": {"model": "mlp"},
    "tasks": [{"id": "x/y"}],
    "stages": [{"kind": "rl", "steps": 9, "algorithm": "grpo"}],
}
TEXT = dict.fromkeys(FAMILIES, "") | dict.fromkeys(("qwen2_5_vl", "qwen2_vl", "qwen3_vl"), ":hidden=32,layers=1")


def cost(device, work, *arguments):
    """(waits, copies) of a second call, as caches are filled then."""
    work(*arguments)
    with device.counting() as seen:
        work(*arguments)
    return len(seen.waits), len(seen.copies)


def each(few, many, count):
    """What each of `count` more of them costs."""
    return tuple((b - a) / count for a, b in zip(few, many, strict=True))


@pytest.fixture
def policy(device):
    def make(family="qwen2_5_vl"):
        made = VLM(PolicyConfig(model=f"tiny:{family}{TEXT[family]}"), device="cuda")
        made.eos = frozenset()  # completions have all tokens that they may have
        return made

    return make


def sampled(policy, tokens):
    inputs = [policy.encode(cases.prompt(seed)) for seed in (1, 2)]
    LocalGenerator(policy).generate(inputs, 2, SamplingParams(max_tokens=tokens, temperature=1.0, seed=3))


@pytest.mark.everyday
def test_the_sampler_waits_once_in_so_many_tokens(device, policy):
    made = policy()
    costs = {tokens: cost(device, sampled, made, tokens) for tokens in (1, LOOK_EVERY - 1, LOOK_EVERY + 1, 3 * LOOK_EVERY + 1)}
    assert costs[1] == BUDGETS["a call"]
    assert each(costs[1], costs[LOOK_EVERY - 1], LOOK_EVERY - 2) == BUDGETS["a token"]
    assert each(costs[LOOK_EVERY + 1], costs[3 * LOOK_EVERY + 1], 2) == BUDGETS["a look"]


def test_what_each_call_of_a_policy_needs_beside_its_observation_is_there_already(device):
    pictures, predicted = torch.zeros(2, 30, 40, 3, dtype=torch.uint8, device="cuda"), torch.zeros(6, 4, 2, device="cuda")
    assert cost(device, resize, pictures.permute(0, 3, 1, 2), 20, 20) == (0, 0)
    assert cost(device, framed, pictures, 1.0, (16, 16), "published", True) == (0, 0)
    assert cost(device, resize_by_area, pictures.permute(0, 3, 1, 2), 20, 20) == (0, 0)
    assert cost(device, resize_by_area, pictures.permute(0, 3, 1, 2), 40, 20) == (0, 0)
    poses = torch.rand(2, 3, 9, device="cuda"), torch.rand(2, 9, device="cuda")
    group = Group(name="arm", low=-torch.ones(9).cuda(), high=torch.ones(9).cuda(), state=slice(0, 9), pose=True)
    assert cost(device, group.absolute, *poses) == (0, 0)
    mean, seeds = Ensemble(0.01, 4), torch.arange(6)
    assert cost(device, mean, seeds, torch.zeros(6, dtype=torch.int64), predicted) == (0, 1), "one copy for all episodes"


@pytest.mark.parametrize("kind", mostly_slow(ACTING, everyday=3))
def test_a_call_of_a_policy_that_acts_is_waited_for_as_a_whole(device, tmp_path, kind):
    """Its prompts have several lengths, and its numbers are normalised."""
    (model, waits), size = ACTING[kind], 64
    ends = {"q01": [-1.0] * 8, "q99": [1.0, 2.0] * 4}
    statistics = {"observation.state": ends, "action": {end: values[:4] for end, values in ends.items()}}
    (tmp_path / "stats.json").write_text(json.dumps(statistics))
    options = {"dims": 4, "statistics": str(tmp_path / "stats.json"), "gripper": "open-positive"}
    options |= OPTIONS.get(kind, {"chunk": 2, "state": 8})
    policy = make_policy(PolicyConfig(kind=kind.removesuffix("_n1d6"), model=model, options=options), device="cuda")
    policy.take_units("x", "y", ActionSpec(dims=4, gripper=3, units=(0.5, 2.0, 4.0, 1.0)))
    texts = ["reach", "go to the red cube", "reach"]
    images = {"front": torch.zeros(3, size, size, 3, dtype=torch.uint8, device="cuda")}
    seen = Observation(images=images, state=torch.rand(3, 8).cuda(), instructions=texts)
    assert cost(device, policy.act, seen, torch.arange(3), torch.zeros(3, dtype=torch.int64), 1.0)[0] == waits


@pytest.mark.parametrize("options", mostly_slow([{"decoding": "one-by-one", "state": 8}, {"chunk": 2}], everyday=1), ids=str)
def test_a_call_of_a_vision_language_model_that_acts_brings_over_its_text_and_what_follows_from_sizes(device, options):
    """And the seeds of what is drawn. Its pictures are there; its prompts have several lengths."""
    model = "tiny:qwen2_5_vl:hidden=32,layers=1"
    policy = make_policy(PolicyConfig(kind="vla", model=model, options={"dims": 2, "bins": 16, **options}), device="cuda")
    images = {"front": torch.zeros(3, 64, 64, 3, dtype=torch.uint8, device="cuda")}
    seen = Observation(images=images, state=torch.rand(3, 8).cuda(), instructions=["reach", "go to the red cube", "reach"])
    found = cost(device, policy.act, seen, torch.arange(3), torch.zeros(3, dtype=torch.int64), 1.0)
    assert found == BUDGETS["a call of a vision-language model that acts"]


@pytest.mark.slow
def test_which_tokens_of_actions_are_there_is_looked_up_once(device):
    options = {"dims": 4, "chunk": 2, "state": 8, "action_tokens": 14, "vocabulary": "actions"}
    policy = make_policy(PolicyConfig(kind="pi0_fast", model=ACTING["pi0_fast"][0], options=options), device="cuda")
    images = {"front": torch.zeros(3, 64, 64, 3, dtype=torch.uint8, device="cuda")}
    seen = Observation(images=images, state=torch.rand(3, 8).cuda(), instructions=["reach"] * 3)
    choices = torch.full((3, 14), NOTHING, device="cuda")
    for row, length in enumerate((3, 14, 5)):
        choices[row, :length] = policy.action_ids[1]

    def learn():
        logprobs, entropy, _ = policy.scored(SimpleNamespace(observation=seen, choices=choices), 1.0)
        (logprobs + entropy).sum().backward()

    assert cost(device, learn) == BUDGETS["tokens of actions"]


def packed(policy, budget):
    rollouts = cases.rollouts(policy, [cases.prompt(seed) for seed in (1, 2, 3)])
    credit = cases.credit(*[(-1.0) ** n for n in range(len(rollouts))])
    return pack(rollouts, credit, policy, shared_prefix=policy.family.shares_prefix, budget=budget)


def updates(device, policy, packed):
    """(costs of packing, costs of an update) in one micro-batch and in several, and how many more those are."""
    learner = Learner(policy, parse_config(RUN).stages[0], load_algorithm("grpo", {}))
    batches = [packed(budget) for budget in (10_000, 1)]
    more = len(batches[1].micro) - len(batches[0].micro)
    return [cost(device, packed, budget) for budget in (10_000, 1)], [cost(device, learner.update, [b], 0) for b in batches], more


@pytest.mark.everyday
def test_a_micro_batch_comes_over_at_once_and_is_not_waited_for(device, policy):
    made = policy()
    packing, update, more = updates(device, made, lambda budget: packed(made, budget))
    assert more > 2 and each(*packing, more) == BUDGETS["packing a micro-batch"]
    # one or two stay on the device, of which `cost` has the second update
    update[1] = tuple(a - b * (more + 1) for a, b in zip(update[1], BUDGETS["pictures of a micro-batch"], strict=True))
    assert each(*update, more) == BUDGETS["a micro-batch"]
    for found, fixed, one in ((packing[0], "packing a batch", "packing a micro-batch"), (update[0], "a step", "a micro-batch")):
        assert tuple(a - b for a, b in zip(found, BUDGETS[one], strict=True)) == BUDGETS[fixed]


@pytest.mark.slow
def test_pictures_that_a_frozen_tower_has_seen_cost_nothing_but_their_way_here(device):
    """In an update of adapters after sampling."""
    config = PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1", lora=LoraConfig(rank=2))
    made = VLM(config, device="cuda")
    made.eos = frozenset()
    with vision_cache(2**20) as cache:
        sampled(made, 2)
        _, update, more = updates(device, made, lambda budget: packed(made, budget))
    update[1] = tuple(a - b * (more + 1) for a, b in zip(update[1], BUDGETS["pictures of a micro-batch"], strict=True))
    assert cache.bytes and each(*update, more) == BUDGETS["a micro-batch whose pictures a frozen tower has seen"]


def test_nobody_waits_for_the_length_of_a_row(device, policy, monkeypatch):
    """transformers would, to know whether rotary frequencies change: once for each token."""
    change(monkeypatch, rows.dynamic)
    few, many = (cost(device, sampled, policy("internvl"), tokens) for tokens in (2, LOOK_EVERY - 1))
    assert each(few, many, LOOK_EVERY - 3) == BUDGETS["a token"]
    monkeypatch.setattr(families, "ignore_row_lengths", lambda model: None)
    few, many = (cost(device, sampled, policy("internvl"), tokens) for tokens in (2, LOOK_EVERY - 1))
    assert each(few, many, LOOK_EVERY - 3)[0] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("family", some_of(FAMILIES, OFTEN))
def test_each_family_keeps_to_its_budget(device, policy, family):
    made = policy(family)
    costs = {tokens: cost(device, sampled, made, tokens) for tokens in (2, LOOK_EVERY - 1)}
    assert each(costs[2], costs[LOOK_EVERY - 1], LOOK_EVERY - 3) == BUDGETS["a token"]
    packing, update, more = updates(device, made, lambda budget: packed(made, budget))
    assert each(*packing, more) == BUDGETS["packing a micro-batch"] and each(*update, more)[0] <= FAMILIES[family]


def episodes(collector, steps):
    """Four episodes of so many steps beside each other."""
    (label,) = collector.tasks
    collector.lanes(label)[0].rules.max_steps = steps
    prompts = [replace(p, task=label) for p in collector.tasks[label].prompts("train", 0)[:4]]
    return collector.collect(prompts, [None] * 4, 1, SamplingParams(max_tokens=1, temperature=1.0, seed=5))


def test_a_step_of_the_environments_waits_for_what_came_of_it(device):
    config = PolicyConfig(model="mlp", kind="robotics/small")
    policy = Small(config, device="cuda", dims=4, state=8, hidden=[8])
    task = plugins.registry().make_task("robotics/reach", {"dims": 4, "size": 32})
    collector = SimulatorCollector(policy, {"robotics/reach": task}, SimulateConfig(num_envs=4), device="cuda")
    costs = [cost(device, episodes, collector, steps) for steps in (1, 3)]
    assert each(*costs, 2) == BUDGETS["a step of the environments"]

    rollouts = episodes(collector, 3)
    credit = cases.credit(1.0, -1.0, 0.5, 2.0)
    packing, update, more = updates(
        device, policy, lambda budget: pack_trajectories(rollouts, credit, PackOptions(ratio="action"), budget=min(budget, 12))[0]
    )
    assert each(*packing, more) == BUDGETS["packing a micro-batch of calls"]
    assert each(*update, more) == BUDGETS["a micro-batch of calls"]
    collector.close()


def from_memory(device, learner, memory, updates):
    """(costs of an update with so many steps of the critics while they explore, costs afterwards)."""
    stage = {"steps": 9, "batch_size": 8, "updates": updates, "hidden": [4], "explore_steps": 5}
    stage = OffPolicyStage(kind="off-policy", **stage, **({"td3": {}} if learner is Td3 else {}))
    actor = NoisyTanh(3, 2, noise=0.1, hidden=(4,)) if learner is Td3 else SquashedNormal(3, 2, hidden=(4,))
    made = learner(actor.to("cuda"), 3, stage, 1)
    return [cost(device, made.update, memory, None, step) for step in (0, 7)]


@pytest.mark.parametrize("learner, policy", [(Rlpd, "a step of RLPD's policy"), (Td3, "a step of TD3's policy")])
def test_an_update_from_a_memory_brings_its_batches_over_at_once_and_the_memory_never_again(device, learner, policy):
    memory = Replay(Layout(simulator="x", action=2, features=3), 50, gamma=0.9)
    seen = {"seen_TF": torch.rand(20, 3), "after_TF": torch.rand(20, 3), "actions_TA": torch.rand(20, 2)}
    memory.add(Episode(**seen, rewards_T=torch.rand(20), terminated=True))
    few, many = (from_memory(device, learner, memory, updates) for updates in (1, 3))
    one = BUDGETS["a step of the critics"]
    assert each(few[1], many[1], 2) == one
    assert tuple(a - b for a, b in zip(few[1], one, strict=True)) == BUDGETS[policy]
    explored = [tuple(a - b for a, b in zip(*costs, strict=True)) for costs in (few, many)]
    assert explored[0] == each(*explored, 2) == BUDGETS["its novelty"]


@pytest.mark.slow
def test_critics_of_noise_bring_their_batches_over_at_once(device):
    memory = Replay(Layout(simulator="x", action=2, features=3), 50, gamma=0.9)
    seen = {"seen_TF": torch.rand(20, 3), "after_TF": torch.rand(20, 3), "actions_TA": torch.rand(20, 2)}
    memory.add(Episode(**seen, rewards_T=torch.rand(20), terminated=True))
    base: Any = SimpleNamespace(of=lambda drawn, after, noise_nA: noise_nA.tanh())

    def updated(updates, of_noise):
        stage = {"steps": 9, "batch_size": 8, "updates": updates, "hidden": [4], "noise_aliasing": {"updates": of_noise}}
        actor = SquashedNormal(3, 2, hidden=(4,)).to("cuda")
        made = NoiseAliased(actor, base, 3, 2, OffPolicyStage(kind="off-policy", **stage), 1, 1.5)
        return cost(device, made.update, memory, None, 7)

    few = updated(1, 1)
    own = zip(BUDGETS["a step of the critics"], BUDGETS["a step of DSRL-NA's policy"], strict=True)
    assert each(few, updated(3, 1), 2) == tuple(map(sum, own))
    assert each(few, updated(1, 3), 2) == BUDGETS["a step of critics of noise"]


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_what_environments_in_processes_show_comes_over_at_once(device, where):
    rows = {name: numpy.zeros((3, *shape), dtype) for name, dtype, shape in ROWS}
    workers: Any = SimpleNamespace(num_envs=3, rows=rows, lost=0, what="x", pid=lambda env: 1, step=lambda actions, envs: {})
    simulator = ProcessSimulator(workers, instruction="", action=ActionSpec(dims=2), max_steps=9, device=where)
    step = simulator.step, torch.zeros(3, 2), torch.ones(3, dtype=torch.bool)
    assert cost(device, *step) == (BUDGETS["a step of processes"] if where == "cuda" else (0, 0))
    found = simulator.step(*step[1:])
    rows["camera/front"][:] = 7
    assert found.observation.device.type == found.lost_N.device.type == where
    assert not found.observation.images["front"].any(), "a later step doesn't change it"
