"""What can't be right is refused when the run file is read: one line with what, where and what to do, and nothing was loaded."""

import importlib.util
import itertools
import math
import types
import typing

import pytest
import tomli_w
from annotated_types import Ge, Gt
from click.testing import CliRunner
from pydantic import BaseModel

import forked
import mmrl.train.start
import runs
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import STAGES, HgDaggerStage, OffPolicyStage, PolicyConfig, RecapStage, RunConfig
from mmrl.policies.load import checked_options
from mmrl.policies.vlm import tiny
from mmrl.registry import plugins
from mmrl.train.checks.compute import check_float16
from mmrl.train.smoke import smoke
from mmrl.ui.cli import main

RL = {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 4}
DISTILL = {"kind": "distill", "steps": 1, "teacher": "tiny:qwen2_5_vl:hidden=64,layers=1"}
TWO = [{"id": "toy/colour", "name": "one"}, {"id": "toy/colour", "name": "two"}]
PLAIN = {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"}
LORA = {"model": "tiny:qwen2_5_vl:hidden=32,layers=1", "lora": {}}


def stage(**settings):
    return {"stages": [{**RL, **settings}]}


def distill(**settings):
    return {"stages": [{**DISTILL, **settings}]}


def parts(*entries, **settings):
    return stage(parts=list(entries), **settings)


def frozen(match):
    return {"match": match, "freeze": True}


REFUSED = {
    # the sampler
    "top-p with vLLM": (
        {"compute": {"sampler": "vllm"}, "generate": {"top_p": 0.9}},
        r'compute\.sampler = "vllm" gives .* after generate\.top_p and top_k, not before: drop them, or use "local"',
    ),
    "steering with vLLM": (
        {"compute": {"sampler": "vllm"}, "evaluate": {"steer": True}},
        r'compute\.sampler = "vllm" can\'t be steered \(evaluate\.steer\): use "local"',
    ),
    "CUDA graphs with vLLM": (
        {"compute": {"sampler": "vllm"}, "generate": {"cuda_graphs": True}},
        r'generate\.cuda_graphs is for mmrl\'s own sampler, but compute\.sampler = "vllm" has its own .*: leave it out',
    ),
    "another sampler": ({"compute": {"sampler": "sglang"}}, r"compute\.sampler.*'local' or 'vllm'"),
    "all of the GPU and more": (
        {"compute": {"gpu_memory_utilization": 1.5}},
        r"compute\.gpu_memory_utilization.*less than or equal to 1",
    ),
    "fewer engines than learners": (
        {"compute": {"placement": "separate", "learners": 2}},
        r"compute\.engines = 1 for compute\.learners = 2: each learner needs at least one",
    ),
    "steering in engines": (
        {"compute": {"placement": "hybrid"}, "evaluate": {"steer": True}},
        r'compute\.placement = "hybrid" can\'t be steered \(evaluate\.steer\): use "colocated"',
    ),
    "another placement": ({"compute": {"placement": "elsewhere"}}, r"compute\.placement.*'colocated', 'separate' or 'hybrid'"),
    "several learners in one process": (
        {"compute": {"learners": 2}},
        r"compute\.learners = 2, but this is one process: start the run with `mmrl train`, which starts the others",
    ),
    "rows shared by more than there are": (
        {"compute": {"learners": 3, "sequence_parallel": 2}},
        r"compute\.sequence_parallel = 2 doesn't divide compute\.learners = 3: change one of them",
    ),
    "shared rows without a team's attention": (
        {"compute": {"learners": 2, "sequence_parallel": 2}, "policy": {**PLAIN, "attn_implementation": "eager"}},
        r'compute\.sequence_parallel = 2 has no attention of policy\.attn_implementation = "eager": use "auto"',
    ),
    "several learners that steer": (
        {"compute": {"learners": 2}, "evaluate": {"steer": True}},
        r"evaluate\.steer works in one process, but compute\.learners = 2: leave it out, or use one learner",
    ),
    "adafactor on spread weights": (
        {"compute": {"learners": 2}, **stage(optimizer="adafactor")},
        r'stages\.0\.optimizer = "adafactor" doesn\'t support weights sharded over compute\.learners = 2: .* "replicated"',
    ),
    "8-bit states on spread weights": (
        {"compute": {"learners": 2}, **stage(optimizer="paged_adamw_8bit")},
        r'stages\.0\.optimizer = "paged_adamw_8bit" doesn\'t support weights sharded over compute\.learners = 2: .* "replicated"',
    ),
    "4 bits of spread weights": (
        {"policy": {**LORA, "lora": {"nf4": ["language"]}}, "compute": {"learners": 2}},
        r'policy\.lora\.nf4 doesn\'t support weights sharded over compute\.learners = 2: set compute\.weights = "replicated"',
    ),
    "4 bits of nothing": (
        {"policy": {**LORA, "lora": {"nf4": ["head"]}}},
        r'policy\.lora\.nf4: "head" matches nothing, as this model\'s head is tied to its embeddings',
    ),
    "an optimiser that is spread and in the host": (
        {"compute": {"learners": 2}, "train": {"offload_optimizer": True}},
        r"train\.offload_optimizer doesn't support weights sharded over compute\.learners = 2, which spread the optimiser",
    ),
    "compiled layers of 4 bits": (
        {"policy": {**LORA, "lora": {"nf4": ["language"]}}, "train": {"compile": True}},
        r"train\.compile doesn't support weights of 4 bits \(policy\.lora\.nf4\): leave one of them out",
    ),
    "compiled layers of shared rows": (
        {"compute": {"learners": 2, "sequence_parallel": 2}, "train": {"compile": True}},
        r"train\.compile doesn't support rows that compute\.sequence_parallel = 2 learners share: leave one of them out",
    ),
    "experts of a dense model": (
        stage(experts={"router_replay": "R3"}),
        r"stages\.0\.experts is for mixtures of experts, and a qwen2_5_vl model has none: leave it out",
    ),
    "an unknown replay of routes": (stage(experts={"router_replay": "R4"}), r"router_replay.*'disabled', 'R2' or 'R3'"),
    "experts of which nothing is asked": (stage(experts={}), r"stages\.0\.experts changes nothing: give router_replay, "),
    "routes of a sampler that doesn't tell": (
        {"compute": {"sampler": "vllm", "model_runner": "v1"}, **stage(experts={"router_replay": "R3"})},
        r'stages\.0\.experts\.router_replay = "R3": vLLM tells .* only with Model Runner V2: leave out compute\.model_runner',
    ),
    "routes without a sampler": (
        {"stages": [{"kind": "sft", "steps": 1, "experts": {"router_replay": "R3"}}]},
        r"stages\.0\.experts\.router_replay is for an rl stage, and this one samples nothing: leave it out",
    ),
    "routes that nobody compares": (
        {"compute": {"sampler": "vllm", "model_runner": "v1"}, **stage(experts={"compare_sampler": True})},
        r"stages\.0\.experts\.compare_sampler: vLLM tells .*",
    ),
    "routes of a single pass": (
        stage(experts={"router_replay": "R2"}),
        r'stages\.0\.experts\.router_replay = "R2" has nothing to replay, as epochs and minibatches are 1: raise one',
    ),
    "routers without adapters": (
        {"policy": LORA, **stage(experts={"freeze_router": True})},
        r"stages\.0\.experts\.freeze_router: policy\.lora trains adapters alone, and routers get none: leave it out",
    ),
    "routes in compiled layers": (
        {"train": {"compile": True}, **stage(experts={"aux_loss_coef": 0.1})},
        r"stages\.0\.experts\.aux_loss_coef looks into layers, which train\.compile turns into fewer kernels: drop one",
    ),
    "routes of shared rows": (
        {"compute": {"learners": 2, "sequence_parallel": 2}, **stage(experts={"z_loss_coef": 0.1})},
        r"stages\.0\.experts\.z_loss_coef: compute\.sequence_parallel divides the tokens of a row: drop one",
    ),
    "float16 of a critic of turns": (
        {"policy": {**PLAIN, "dtype": "float16"}, **stage(turn_critic={})},
        r'policy\.dtype = "float16" isn\'t for stages\.0\.turn_critic: use "bfloat16"',
    ),
    "offload without checkpointing": (
        {"train": {"offload_activations": True}},
        r"'train': offload_activations moves what goes into checkpointed layers: set gradient_checkpointing = true",
    ),
    "engines that are not there": (
        {"compute": {"engines": 3}},
        r'compute\.engines = 3, but compute\.placement = "colocated" has no engines: use "separate" or "hybrid"',
    ),
    "broadcasts to engines that are not there": (
        {"compute": {"weight_transfer": "broadcast"}},
        r'compute\.weight_transfer = "broadcast", but compute\.placement = "colocated" has no engines: use "separate"',
    ),
    "a sampler that isn't vLLM over several GPUs": (
        {"compute": {"tensor_parallel": 2}},
        r"compute\.tensor_parallel = 2 needs vLLM, but compute\.sampler = 'local': use 'vllm'",
    ),
    "vLLM's model runner without vLLM": (
        {"compute": {"model_runner": "v2"}},
        r"compute\.model_runner = 'v2' is vLLM's, but compute\.sampler = 'local': use 'vllm', or leave it out",
    ),
    "a device for a policy that only writes": (
        {"simulate": {"policy_device": "cpu"}},
        r'simulate\.policy_device = "cpu", but policy\.kind = \'vlm\' doesn\'t act: leave it out',
    ),
    "what is stale and not weighed": (
        {"compute": {"staleness": 1}, **stage(importance_sampling="off")},
        r'stages\.0\.importance_sampling = "off" with compute\.staleness = 1: .*"truncate" or "mask", or ratio_to = "sampler"',
    ),
    "interrupted and not ahead": (
        {"compute": {"interrupt": True}},
        r"compute\.interrupt gives new weights to answers of later steps, and compute\.staleness = 0 samples none: set it to 1",
    ),
    "interrupted elsewhere": (
        {"compute": {"interrupt": True, "staleness": 1, "placement": "separate"}},
        r'compute\.interrupt works with compute\.placement = "colocated", not "separate"',
    ),
    "interrupted while rewards are weighed": (
        {"compute": {"interrupt": True, "staleness": 1}, **stage(reweight={"window": 2})},
        r"stages\.0\.reweight weighs rewards anew between steps, and compute\.interrupt leaves no time .*: leave one of them out",
    ),
    "interrupted, and neither yes nor no": (
        {"compute": {"interrupt": "often", "staleness": 1}},
        r"compute\.interrupt.*true or false.*found 'often'",
    ),
    "answers again beside answers ahead": (
        {"compute": {"staleness": 1}, **stage(entropy_control={})},
        r"stages\.0\.entropy_control answers prompts again while compute\.staleness = 1 samples others",
    ),
    "prompts measured beside answers ahead": (
        {"compute": {"staleness": 1}, **stage(curriculum={})},
        r"stages\.0\.curriculum measures prompts while compute\.staleness = 1 samples others",
    ),
    "two orders": (
        stage(order="easy-first", curriculum={}),
        r'order = "easy-first" and curriculum are two orders of the prompts',
    ),
    "replay of what a curriculum has left": (
        stage(replay_share=0.5, curriculum={}),
        r"replay_share = 0\.5 draws prompts again that curriculum has left behind",
    ),
    "epochs of a curriculum, which has none": (
        stage(epoch_filter={}, curriculum={}),
        r"curriculum has no epochs whose prompts epoch_filter could leave out",
    ),
    "replay of what an epoch filter has left out": (
        stage(replay_share=0.5, epoch_filter={}),
        r"replay_share = 0\.5 draws prompts again that epoch_filter leaves out",
    ),
    "an epoch filter that leaves nothing in": (
        stage(epoch_filter={"above": 0.7}),
        r"epoch_filter\.above = 0\.7 is not below epoch_filter\.up_to = 0\.7, so none stays",
    ),
    "an epoch filter by a verifier that is not there": (
        stage(epoch_filter={"verifier": "toy/no"}),
        r"stages\.0\.epoch_filter\.verifier names 'toy/no', which rewards nothing here: name one of",
    ),
    "an epoch filter by a verifier that is not called": (
        stage(epoch_filter={"verifier": "toy/letters"}, labels="majority"),
        r'epoch_filter\.verifier is never called with labels = "majority"',
    ),
    "weights of verifiers that are not called": (
        stage(labels="majority", reweight={}),
        r'reweight weighs verifiers, which labels = "majority" never calls',
    ),
    "two critics": (
        stage(algorithm="ppo", critic={}, turn_critic={}, credit="turn"),
        r"stages\.0\.critic is another critic: drop one of them, or use archer, whose tokens it gives a baseline",
    ),
    "a baseline that warms up before the policy learns": (
        stage(algorithm="archer", steps=9, critic={"warmup_steps": 2}, turn_critic={"warmup_steps": 2}),
        r"stages\.0\.critic\.warmup_steps = 2 has no effect: .*after turn_critic\.warmup_steps = 2; set more, or drop it",
    ),
    "new answers that nothing rewards": (
        stage(algorithm="ppo", credit="turn", turn_critic={"answers": 4}),
        r"stages\.0\.turn_critic\.answers is of answers that nothing rewards, and ppo needs rewards: use archer",
    ),
    "new answers to critics of success": (
        stage(algorithm="digirl", turn_critic={"rule": "success", "answers": 4}),
        r'turn_critic\.answers has no effect with rule = "success": set rule = "returns", or drop it',
    ),
    "a turn critic beside imitation": (
        stage(algorithm="archer", imitation={}),
        r"imitation changes what the policy learns from, and so does turn_critic: drop one",
    ),
    "a turn critic that nothing reads": (
        stage(turn_critic={}),
        r"stages\.0\.turn_critic is given, but grpo uses no values: drop it, or use archer, ppo or digirl",
    ),
    "values of tokens by a critic of turns": (
        stage(algorithm="ppo", turn_critic={}),
        r'stages\.0\.turn_critic has one value for a turn: set stages\.0\.credit = "turn"',
    ),
    "credit within turns for whole turns": (
        stage(algorithm="bi-level-gae", credit="turn"),
        r'stages\.0\.credit = "turn" leaves a turn in one piece, within which bi-level-gae gives credit: set credit = "token"',
    ),
    "values of answers that a critic doesn't have": (
        stage(algorithm="archer", critic={}),
        r"stages\.0\.critic has no values of answers, which archer needs: give turn_critic instead",
    ),
    "values of answers that a rule doesn't have": (
        stage(algorithm="archer", turn_critic={"rule": "success"}),
        r'stages\.0\.turn_critic\.rule = "success" has no values of answers, which archer needs: use "returns"',
    ),
    "replay of what isn't imitated": (
        stage(algorithm="ppo", credit="turn", turn_critic={"rule": "success", "replay": 4}),
        r"stages\.0\.turn_critic\.replay imitates old episodes, which ppo can't: use digirl, or drop replay",
    ),
    "replay by values of returns": (
        stage(algorithm="archer", turn_critic={"replay": 4}),
        r'turn_critic\.replay has no effect with rule = "returns": set rule = "success", or drop it',
    ),
    "a target of what has none": (
        stage(algorithm="digirl", turn_critic={"rule": "success", "target_rate": 0.5}),
        r'turn_critic\.target_rate has no effect with rule = "success": set rule = "returns", or drop it',
    ),
    "a share of nothing": (
        stage(algorithm="digirl", turn_critic={"rule": "success", "top": 0.5}),
        r"turn_critic\.top = 0\.5 chooses among replayed episodes: set replay, or drop it",
    ),
    "critics that warm up to the end": (
        stage(algorithm="archer", steps=2, turn_critic={"warmup_steps": 2}),
        r"stages\.0\.turn_critic\.warmup_steps = 2 leaves the policy none of 2 steps: lower it",
    ),
    "critics of turns that are stale": (
        {"compute": {"staleness": 1}, **stage(algorithm="archer", importance_sampling="truncate")},
        r"stages\.0\.turn_critic learns in one process, from what the policy has just played: set compute\.staleness = 0",
    ),
    "answers that nobody knows": (
        stage(algorithm="rlsd", labels="majority"),
        r'stages\.0\.labels = "majority": rlsd tells the policy the answer, which is to be known: use grpo',
    ),
    "answers to prompts of other weights": (
        {"compute": {"staleness": 1}, **stage(algorithm="sdpo", importance_sampling="truncate")},
        r"algorithm = 'sdpo' reads prompts while compute\.staleness = 1 samples others",
    ),
    "a window of one step": (stage(reweight={"window": 1}), r"reweight\.window.*greater than or equal to 2"),
    "a Gaussian without width": (stage(curriculum={"width": 0}), r"curriculum\.width.*greater than 0"),
    "no learner": ({"compute": {"learners": 0}}, r"compute\.learners.*greater than or equal to 1"),
    "weights that are neither": ({"compute": {"weights": "halved"}}, r"compute\.weights.*'sharded' or 'replicated'"),
    "simulators of words": (
        {"compute": {"simulators": "actors"}},
        r'compute\.simulators = "actors", but policy\.kind = \'vlm\' doesn\'t act: leave it out',
    ),
    "other simulators": ({"compute": {"simulators": "ray"}}, r"compute\.simulators.*'local', 'processes' or 'actors'"),
    "fewer judges than none": ({"compute": {"judges": -1}}, r"compute\.judges.*greater than or equal to 0"),
    # groups and samples
    "a group of one": (stage(group_size=1), r"stages\.0\.group_size = 1, but grpo compares .* sample at least 2"),
    "a task's group of one": (
        {"tasks": [{**TWO[0], "group_size": 1}, TWO[1]], **stage()},
        r"tasks 'one' group_size = 1, but grpo compares",
    ),
    "top-p with importance": (
        {"generate": {"top_p": 0.9}, **stage(importance_sampling="truncate")},
        r'stages\.0\.importance_sampling = "truncate" needs the prob.* generate\.top_p = 0\.9 changes: drop that key, or set '
        r'importance_sampling = "off"',
    ),
    "top-k with importance": (
        {"generate": {"top_k": 5}, **stage(importance_sampling="mask")},
        r'stages\.0\.importance_sampling = "mask" needs the probabilities .* generate\.top_k = 5 changes',
    ),
    "a task's tokens above all others'": (
        {"generate": {"max_tokens": 6}, "tasks": [{"id": "toy/colour", "max_tokens": 7}]},
        r"task 'toy/colour' has max_tokens = 7, above generate\.max_tokens = 6: raise the latter",
    ),
    "samples of a greedy evaluation": (
        {"evaluate": {"num_samples": 4}},
        r"evaluate.*num_samples = 4 greedy answers .* set temperature",
    ),
    "more mini-batches than prompts": (
        stage(minibatches=3),
        r"stages\.0\.minibatches: 3 is above prompts_per_step = 2, and groups aren't split: lower it",
    ),
    # rules that leave nothing or contradict each other
    "bounds that cross": (
        stage(min_success_rate=0.8, max_success_rate=0.2),
        r"min_success_rate = 0\.8 is above max_success_rate = 0\.2.*swap them",
    ),
    "only failures": (
        stage(max_success_rate=0.0),
        r"min_success_rate = max_success_rate = 0 leaves only groups of equal success.*widen",
    ),
    "only successes": (
        stage(min_success_rate=1.0),
        r"min_success_rate = max_success_rate = 1 leaves only groups of equal success.*widen",
    ),
    "bounds that cross the algorithm's": (
        stage(algorithm="trajectory-grpo", min_success_rate=0.95),
        r"trajectory-grpo.*min_success_rate = 0\.95 is above max_success_rate = 0\.9",
    ),
    "hints of nothing": (stage(hints="ghpo", hint_shares=[]), r'hints = "ghpo" and hint_shares = \[\], so there is no hint'),
    "a hint of a share of nothing": (stage(hints="ghpo", hint_shares=[0.0]), r"stages\.0\.hint_shares\.0.*greater than 0"),
    "hints without labels": (
        stage(hints="guide", labels="ttrv"),
        r'hints = "guide" needs gold completions .* labels = "ttrv" trains without',
    ),
    "gold completions without labels": (
        stage(ground_truth="always", labels="majority"),
        r'ground_truth = "always" needs gold completions and labels = "majority" trains without them: drop one',
    ),
    "a rephrased prompt of a task that can't": (
        stage(labels="co-reward"),
        r"stages\.0\.labels: task 'toy/colour' has no rephrase.* write one",
    ),
    "easy first without difficulties": (
        stage(order="easy-first"),
        r"order = \"easy-first\": item 0 of task 'toy/colour' .* use order = \"shuffled\"",
    ),
    "less than one sample": (stage(oversample=0.5), r"stages\.0\.oversample.*greater than or equal to 1; found 0\.5"),
    "more than all prompts again": (stage(replay_share=1.5), r"stages\.0\.replay_share.*less than or equal to 1"),
    "a memory of nothing": (
        stage(replay_share=0.5, replay_buffer_size=0),
        r"stages\.0\.replay_buffer_size.*greater than or equal to 1",
    ),
    "an unknown verifier of the gold": (
        stage(ground_truth="always", ground_truth_without=["toy/leters"]),
        r"stages\.0\.ground_truth_without names 'toy/leters', which rewards nothing here: name one of toy/letters",
    ),
    "an unknown verifier of what is right": (
        stage(rules=[{"id": "video/temporal-contrast", "options": {"verifier": "toy/leters"}}]),
        r"stages\.0\.rules\.0: options\.verifier names 'toy/leters', which rewards nothing here: toy/letters",
    ),
    "a rule of sampling without what it asks": (
        stage(labels="majority", rules=[{"id": "video/temporal-contrast"}]),
        r"stages\.0\.rules\.0: it needs verifiers, and this stage is scored by labels alone: leave one of them out",
    ),
    "an unknown rule of sampling": (
        stage(rules=[{"id": "video/temporal-contrsat"}]),
        r"stages\.0\.rules\.0: no sampling rule 'video/temporal-contrsat'\. Did you mean 'video/temporal-contrast'\?",
    ),
    "an unknown option of a rule of sampling": (
        stage(rules=[{"id": "video/temporal-contrast", "options": {"bonsu": 1.0}}]),
        r"stages\.0\.rules\.0: sampling rule 'video/temporal-contrast' has no option 'bonsu'\. Did you mean 'bonus'\?",
    ),
    "a key that is a plugin's rule by now": (
        stage(temporal={"bonus": 0.3}),
        r"key 'stages\.0\.temporal' is gone since mmrl 0\.2: give \[\[stages\.rules\]\] id = "
        r"\"video/temporal-contrast\", and the old",
    ),
    "an unknown verifier of what is right and long": (
        stage(length={"verifier": "toy/leters"}),
        r"stages\.0\.length\.verifier names 'toy/leters', which rewards nothing here: name one of toy/letters",
    ),
    "a shortest above the longest": (
        stage(length={"min_tokens": 600}),
        r"stages\.0\.length.*length\.min_tokens = 600 is above length\.max_tokens = 512, so no length has a bonus: swap them",
    ),
    "a verifier that is never asked": (
        stage(length={"verifier": "toy/letters"}, labels="majority"),
        r"stages\.0.*length\.verifier is never called with labels = \"majority\": drop one of them",
    ),
    "masks of nothing": (stage(perception={"coef": 0.1, "masked": 0.0}), r"stages\.0\.perception\.masked.*greater than 0"),
    "masks of more than all": (stage(perception={"coef": 0.1, "masked": 1.5}), r"stages\.0\.perception\.masked.*equal to 1"),
    "masks without a weight": (
        stage(perception={"masked": 0.5}),
        r"stages\.0\.perception\.coef = 0, and grpo doesn't look at it either: set coef, such as 0\.01, or use vppo",
    ),
    "masks of what learns without a weight": (
        stage(algorithm="vppo", perception={"gradient": "both"}),
        r'perception\.gradient = "both" has no effect with perception\.coef = 0: set coef',
    ),
    "a constant that is punished": (
        stage(perception={"coef": 0.1, "entropy_penalty": 0.1}),
        r'perception\.entropy_penalty = 0\.1 has no gradient with perception\.gradient = "seen": drop it, or set',
    ),
    "masks for imitation": (stage(perception={"coef": 0.1}, condition={}), r"perception is a part .* condition only imitates"),
    "entropy up and down": (stage(entropy_coef=0.1, entropy_penalty=0.1), r"entropy_penalty makes the entropy smaller and"),
    "an entropy that rises and falls": (
        stage(adaptive_entropy={}, entropy_penalty=0.1),
        r"adaptive_entropy is a bonus in the algorithm's loss, and entropy_penalty steers the entropy too: drop one",
    ),
    "two rules for the entropy": (stage(adaptive_entropy={}, entropy_control={}), r"and entropy_control steers the entropy too"),
    "a bonus for imitation": (
        stage(adaptive_entropy={}, condition={}),
        r"adaptive_entropy.*and condition only imitates: drop one",
    ),
    "a bonus that can't adapt": (
        stage(adaptive_entropy={"least": 0.5, "most": 0.5}, entropy_coef=0.5),
        r"adaptive_entropy\.least = 0\.5 is not below adaptive_entropy\.most = 0\.5: the weight lies between",
    ),
    "a bonus that begins elsewhere": (
        stage(adaptive_entropy={"least": 0.1}),
        r"entropy_coef = 0 is where adaptive_entropy begins, and not in adaptive_entropy\.least = 0\.1 to .*most = 1: change",
    ),
    "noise of nothing": (stage(noisy={"level": 0}), r"stages\.0\.noisy\.level.*greater than or equal to 1"),
    "nothing but noise": (stage(noisy={"level": 1000}), r"stages\.0\.noisy\.level.*less than 1000"),
    "no noisy answers": (stage(noisy={"share": 0.0}), r"stages\.0\.noisy\.share.*greater than 0"),
    "noisy answers that vote": (stage(noisy={}, labels="majority"), r'noisy answers would vote too with labels = "majority"'),
    "noisy answers and hints": (
        stage(noisy={"ratio": "clean"}, hints="guide"),
        r'noisy\.ratio = "clean" would count hinted answers as if sampled without a hint: set ratio = "sampled"',
    ),
    "noisy answers of few tokens": (
        {"generate": {"max_tokens": 8, "top_p": 0.9}, **stage(noisy={})},
        r'stages\.0\.noisy\.ratio = "sampled" divides by the probabilities .* generate\.top_p and top_k change: drop those',
    ),
    "noise and critics of turns": (stage(noisy={}, turn_critic={}), r"noisy changes what the policy learns from, and so does"),
    "a condition of nothing": (stage(condition={"positive": " "}), r"stages\.0\.condition.*positive is blank.*give a text"),
    "a bad condition of nothing": (stage(condition={"negative": ""}), r"stages\.0\.condition.*negative is blank.*give a text"),
    "conditions that are the same": (
        stage(condition={"positive": "good", "negative": "good "}),
        r"stages\.0\.condition.*positive and negative are both 'good': give two different",
    ),
    "a condition with a critic": (
        stage(algorithm="ppo", condition={}),
        r"stages\.0\.condition imitates .* never trains the critic of ppo: drop one",
    ),
    "a condition and hinted prompts": (stage(condition={}, hints="ghpo"), r'condition and hints = "ghpo".*drop one'),
    "a condition and rephrased prompts": (stage(condition={}, labels="co-reward"), r"condition and labels"),
    "a greedy baseline without labels": (
        stage(algorithm="remax", labels="ttrv"),
        r'stages\.0\.labels = "ttrv": remax compares .* use another algorithm',
    ),
    "imitation over no steps": (
        stage(imitation={"decay_steps": 0}),
        r"stages\.0\.imitation\.decay_steps.*greater than or equal to 1",
    ),
    # weights of another sampler's tokens
    "the ratio of a whole answer without one": (
        stage(importance_sampling_level="sequence"),
        r'stages\.0\.importance_sampling_level = "sequence" has no effect with importance_sampling = "off": set that to',
    ),
    "the geometric mean of ratios without one": (
        stage(importance_sampling_level="geometric"),
        r'stages\.0\.importance_sampling_level = "geometric" has no effect with importance_sampling = "off": set that to',
    ),
    "a floor above 1": (stage(importance_sampling_floor=1.5), r"importance_sampling_floor.*less than or equal to 1"),
    "a mask of no gap": (stage(gap_mask=0.0), r"gap_mask.*greater than 0"),
    "two corrections for the sampler": (
        stage(ratio_to="sampler", importance_sampling="mask"),
        r'stages\.0.*ratio_to = "sampler" and importance_sampling = "mask" correct for the same: drop one',
    ),
    "a ratio to a sampler that leaves tokens out": (
        {"generate": {"top_p": 0.9}, **stage(ratio_to="sampler")},
        r'stages\.0\.ratio_to = "sampler" needs the prob.* generate\.top_p = 0\.9 changes: drop that key, or set '
        r'ratio_to = "learner"',
    ),
    "a ratio to the sampler in a loss without one": (
        stage(algorithm="remax", ratio_to="sampler"),
        r'stages\.0\.ratio_to = "sampler": the loss of remax has no ratio: drop it, or use importance_sampling',
    ),
    "a ratio to the sampler where log-ratios are to the learner": (
        stage(algorithm="pacs", ratio_to="sampler"),
        r'stages\.0\.ratio_to = "sampler": the loss of pacs compares with the policy before the update: drop it',
    ),
    "a mask of no drift": (stage(off_policy_mask=0.0), r"off_policy_mask.*greater than 0"),
    "a loss of no algorithm": (
        stage(settings={"loss": "gsp"}),
        r"^stages\.0: algorithm 'grpo': loss = 'gsp': .*[Dd]id you mean 'gspo'",
    ),
    "a share of all tokens and more": (stage(settings={"entropy_share": 2}), r"entropy_share = 2 must be a number from 0 to 1"),
    "a bound of another's loss": (
        stage(settings={"loss": "sapo", "temperature": 0}),
        r"stages\.0\.settings\.temperature = 0 must be at least 1e-06",
    ),
    # the penalty and its reference
    "a penalty without a reference": (
        stage(kl_coef=0.1, reference="none"),
        r"kl_coef = 0\.1 needs a reference model: drop reference",
    ),
    "a penalty in the reward without one": (stage(kl_coef=0.1, kl_in="reward", reference="none"), "needs a reference model"),
    "an algorithm's penalty without one": (
        stage(algorithm="reinforce++", reference="none"),
        r"reinforce\+\+.*kl_coef = 0\.001 needs a reference model: drop reference",
    ),
    "a target of no penalty": (
        stage(kl_target=0.1),
        r"stages\.0\.kl_target is set, but kl_coef = 0.*set kl_coef, or drop kl_target",
    ),
    "a target of a penalty that is off": (
        stage(algorithm="reinforce++", kl_coef=0, kl_target=0.1),
        r"stages\.0\.kl_target is set, but kl_coef = 0",
    ),
    "a moving reference of no penalty": (stage(reference_every=2), r"stages\.0\.reference_every is set, but kl_coef = 0"),
    "a moving reference of adapters": (
        {"policy": LORA, **stage(kl_coef=0.1, reference_every=2)},
        r'stages\.0\.reference_every: with adapters .* set reference = "frozen"',
    ),
    "a moving reference that is the adapters'": (
        {"policy": LORA, **stage(kl_coef=0.1, reference="adapter", reference_every=2)},
        r'reference = "adapter" is the model without its adapters, which never changes: drop',
    ),
    "adapters off without adapters": (
        stage(kl_coef=0.1, reference="adapter"),
        r'stages\.0\.reference = "adapter" needs adapters: give',
    ),
    # parts
    "a part that isn't": (parts(frozen("vison")), r"stages\.0\.parts: 'vison' matches none .* did you mean 'vision'\?"),
    "a pattern of nothing": (
        parts(frozen("*.layrs.*")),
        r"stages\.0\.parts: '\*\.layrs\.\*' matches none .* did you mean 'layers'\?",
    ),
    "an adapter of nothing": (
        {"policy": {**LORA, "lora": {"target_modules": ["languag"]}}, **stage()},
        r"policy\.lora\.target_modules: 'languag' matches none .* did you mean 'language'\?",
    ),
    "no adapter at all": (
        {"policy": {**LORA, "lora": {"target_modules": []}}, **stage()},
        r"'policy\.lora\.target_modules': [Ll]ist should have at least 1 item",
    ),
    "an unknown option of the policy": (
        {"policy": {"model": LORA["model"], "options": {"foo": 1}}},
        r"policy 'vlm' has no option 'foo'\. It accepts: no options$",
    ),
    "an option of the policy that mmrl gives": (
        {"policy": {"model": LORA["model"], "options": {"device": "cpu"}}},
        r"policy\.options: leave out device: device and seed have keys of their own",
    ),
    "a pattern of adapters that there are not": (
        {"policy": LORA, **parts(frozen("vision"))},
        r"stages\.0\.parts: 'vision' matches none of the \d+ adapters, which are all that policy\.lora trains",
    ),
    "nothing to train": (parts(frozen("*")), r"stages\.0\.parts leaves nothing to train: freeze less"),
    "nothing to train, part by part": (
        parts(*map(frozen, ("vision", "projector", "language"))),
        r"stages\.0\.parts leaves nothing to train",
    ),
    "no policy to train, only a critic": (
        parts(frozen("language"), frozen("vision"), frozen("projector"), algorithm="ppo"),
        r"leaves nothing",
    ),
    "a value part without a critic": (parts(frozen("value")), r'stages\.0\.parts match "value" matches nothing, .* no critic'),
    "a part that never holds": (
        parts(frozen("vision"), {"match": "vision", "learning_rate": 1e-5}),
        r"stages\.0\.parts match 'vision' has no effect.* move it up",
    ),
    "a part that says nothing": (parts({"match": "vision"}), r"parts match 'vision' changes nothing: give"),
    "a frozen part with a rate": (parts({**frozen("vision"), "learning_rate": 1.0}), r"parts match 'vision' is frozen and has a"),
    # mixtures
    "a negative weight": ({"tasks": [{"id": "toy/colour", "weight": -1.0}]}, r"tasks\.0\.weight.*greater than or equal to 0"),
    "weights of nothing": ({"tasks": [{**t, "weight": 0.0} for t in TWO]}, r"the weights of \[\[tasks\]\] add up to 0: give"),
    "a stage's negative weight": ({"tasks": TWO, **stage(tasks={"one": -1.0})}, r"stages\.0\.tasks\.one.*greater than or equal"),
    "a stage's weights of nothing": ({"tasks": TWO, **stage(tasks={"one": 0.0})}, r"stages\.0.*weights of tasks add up to 0"),
    "a stage's unknown task": (
        {"tasks": TWO, **stage(tasks={"three": 1.0})},
        r"stages\.0\.tasks names 'three': choose from .*one, two",
    ),
    "a task twice": ({"tasks": [{"id": "toy/colour"}] * 2}, r"task 'toy/colour' is listed twice: give each entry a name"),
    "an unknown task": ({"tasks": [{"id": "toy/color"}]}, r"toy/color.*toy/colour"),
    "an unknown option of a task": ({"tasks": [{"id": "toy/colour", "options": {"copy": 1}}]}, r"no option 'copy'.*'copies'"),
    "a missing split": (stage(split="valid"), r"task 'toy/colour' has no split 'valid': choose one of train, test"),
    "a template without a place": (
        {"tasks": [{"id": "toy/colour", "prompt_template": "Think."}]},
        r"tasks\.0\.prompt_template.*must contain \{text\} once",
    ),
    "an unknown verifier": ({"tasks": [{"id": "toy/colour", "verifiers": {"toy/leters": 1.0}}]}, r"toy/leters.*toy/letters"),
    # teachers
    "a teacher of another family": (
        distill(teacher="tiny:qwen2_vl:hidden=32,layers=1"),
        r"stages\.0\.teacher: .*'tiny:qwen2_vl:hidden=32,layers=1' is a qwen2_vl model and the policy a qwen2_5_vl.*same family",
    ),
    "a missing teacher": (distill(teacher="./nowhere"), r"stages\.0\.teacher: '\./nowhere' is not a folder: give a folder"),
    "a teacher that is no size": (distill(teacher="tiny:qwen2_5_vl:hidden=33"), r"stages\.0\.teacher: tiny hidden=33"),
    "no teacher for what needs one": (stage(algorithm="opd"), r"stages\.0\.teacher: opd needs a teacher: set teacher to a"),
    "a teacher of nobody": (stage(teacher=DISTILL["teacher"]), r"stages\.0\.teacher: grpo doesn't use one: drop it, or use kdrl"),
    "an expert for words": (stage(algorithm="kdrl", teacher="expert"), r'teacher = "expert" is for a distill stage: name a ch'),
    "a teacher that can't score an answer": (
        stage(algorithm="kdrl", teacher="tiny:qwen2_vl:hidden=32,layers=1"),
        r"stages\.0\.teacher: .*'tiny:qwen2_vl:hidden=32,layers=1' is a qwen2_vl model and the policy a qwen2_5_vl.*same family",
    ),
    "a missing teacher of an rl stage": (
        stage(algorithm="kdrl", teacher="./nowhere"),
        r"stages\.0\.teacher: '\./nowhere' is not",
    ),
    # algorithms and their settings
    "an unknown algorithm": (stage(algorithm="gpro"), r"^stages\.0\.algorithm: no algorithm 'gpro'\. Did you mean"),
    "a critic of nothing": (stage(critic={}), r"stages\.0\.critic is given, but grpo doesn't use one: drop it, or .* ppo"),
    "temperatures that don't steer": (
        stage(entropy_control={"low": 1.2, "high": 1.2}),
        r"stages\.0.*entropy_control\.low = 1\.2 is not below entropy_control\.high = 1\.2: the two steer",
    ),
    "entropy held by answers that nobody marks": (
        stage(entropy_control={}, labels="majority"),
        r"stages\.0\.labels = \"majority\": entropy_control imitates right answers",
    ),
    "prompts to imitate that are filtered out": (
        stage(imitation={"rule": "hpt"}, dynamic_sampling=2),
        r"stages\.0\.dynamic_sampling leaves out the prompts that imitation\.rule = \"hpt\" imitates: set it to 0",
    ),
    "two that imitate": (
        stage(entropy_control={}, imitation={}),
        r"imitation and entropy_control both add completions to the loss: drop one",
    ),
    "bins of no range": (
        stage(algorithm="ppo", critic={"bins": 51, "low": 1.0}),
        r"stages\.0.*critic\.low = 1 is not below critic\.high = 1: give the range",
    ),
    "a single bin": (stage(algorithm="ppo", critic={"bins": 1}), r"critic\.bins = 1 can't tell returns apart: give at least 2"),
    "credit of no critic": (stage(credit="turn"), r'stages\.0\.credit = "turn" needs a critic, but grpo has none: drop it'),
    "an unknown setting": (stage(settings={"cliplow": 0.1}), r"'grpo' has no setting 'cliplow'.*Did you mean 'clip_low'"),
    "a choice that isn't": (stage(settings={"scale": "groups"}), r"scale = 'groups' is not one of 'group', 'batch', 'none'"),
    "a word for a number": (stage(settings={"clip_low": "wide"}), r"clip_low = 'wide' must be a number"),
    "a truth for a number": (stage(settings={"clip_low": True}), r"clip_low = True must be a number"),
    "a number for a truth": (stage(settings={"biased": 1}), r"biased = 1 must be true or false"),
    "an unknown average": (
        stage(settings={"normalise": "tokens"}),
        r"normalise = 'tokens' is not one of token, sequence, constant",
    ),
    "a negative constant": (stage(settings={"constant": -1}), r"constant = -1 must be a number above 0"),
    "an endless constant": (stage(settings={"constant": math.inf}), r"constant = inf must be a number above 0"),
    "a lower bound below 0": (stage(settings={"clip_low": 1.5}), r"stages\.0\.settings\.clip_low = 1\.5 must be from 0 to 1"),
    "a negative lower bound": (stage(settings={"clip_low": -0.2}), r"stages\.0\.settings\.clip_low = -0\.2 must be from 0 to 1"),
    "a negative upper bound": (stage(settings={"clip_high": -0.2}), r"stages\.0\.settings\.clip_high = -0\.2 must be at least 0"),
    "a bound that is no number": (stage(settings={"clip_low": math.nan}), r"stages\.0\.settings.*nan is not allowed"),
    "a dual clip inside the others": (stage(settings={"dual_clip": 0.5}), r"settings\.dual_clip = 0\.5 must be above 1, or 0"),
    "a discount above 1": (stage(algorithm="ppo", settings={"gamma": 1.01}), r"settings\.gamma = 1\.01 must be from 0 to 1"),
    "a trace above 1": (stage(algorithm="ppo", settings={"lam": 2}), r"settings\.lam = 2 must be from 0 to 1"),
    "a temperature of 0": (stage(algorithm="awr", settings={"beta": 0.0}), r"settings\.beta = 0\.0 must be at least 1e-06"),
    "a bound below 1": (
        stage(algorithm="stable-reinforce", settings={"bound": 0.5}),
        r"settings\.bound = 0\.5 must be at least 1",
    ),
    "a negative entropy bonus": (stage(entropy_coef=-0.1), r"stages\.0\.entropy_coef.*greater than or equal to 0"),
    "a cap below 1": (
        stage(importance_sampling="truncate", importance_sampling_cap=0.5),
        r"stages\.0\.importance_sampling_cap.*greater than or equal to 1",
    ),
    "a mean that never moves": (stage(ema_decay=1.0), r"stages\.0\.ema_decay.*less than 1"),
    "a bootstrap after the last word": (
        stage(algorithm="ppo", critic={"bootstrap": "always"}),
        r"stages\.0\.critic\.bootstrap = \"always\" is for episodes in simulators, and 'vlm' writes: .*leave it out",
    ),
    "another bootstrap": (stage(algorithm="ppo", critic={"bootstrap": "never"}), r"critic\.bootstrap.*'truncated' or 'always'"),
    "a critic that warms up for ever": (stage(algorithm="ppo", critic={"warmup_steps": 2}), r"critic\.warmup_steps = 2 leaves"),
    # numbers that float32 or int32 can't hold
    "a huge bound": (stage(settings={"clip_high": 1e308}), r"settings\.clip_high = 1e\+308 must be at most 1e\+30, or inf"),
    "a number of 400 digits": (
        stage(algorithm="awr", settings={"beta": 10**400}),
        r"settings\.beta = 1000.* must be at most 1e\+30",
    ),
    "a huge group": (stage(group_size=2**63), r"stages\.0\.group_size.*less than or equal to 2147483647"),
    "a huge Huber bound": (stage(algorithm="ppo", critic={"huber": 1e308}), r"critic\.huber.*no larger than 1e\+30"),
    "a huge cap": (
        stage(importance_sampling="truncate", importance_sampling_cap=1e308),
        r"importance_sampling_cap.*no larger than 1e\+30",
    ),
    "too much oversampling": (stage(oversample=1e308), r"oversample.*less than or equal to 1000"),
    "a learning rate that is none": (stage(learning_rate=5e-324), r"learning_rate.*no smaller than 1e-30"),
    "a share that holds no token": ({"generate": {"top_p": 1e-46}, **stage()}, r"top_p.*no smaller than 1e-30"),
    "a huge weight": ({"tasks": [{"id": "toy/colour", "verifiers": {"toy/letters": 1e308}}], **stage()}, r"verifiers.*1e\+30"),
    "a huge rank": ({"policy": {**LORA, "lora": {"rank": 2**31}}, **stage()}, r"policy\.lora\.rank.*2147483647"),
    # rewards
    "verifiers that weigh nothing": (
        {"tasks": [{"id": "toy/colour", "verifiers": {"toy/letters": 0, "toy/exact": [0, 0]}}], **stage()},
        r"tasks 'toy/colour': all its verifiers have weight 0, so it has no reward: give one a weight",
    ),
    "a curve of three weights": (
        {"tasks": [{"id": "toy/colour", "verifiers": {"toy/letters": [1, 2, 3]}}], **stage()},
        r"the weight of 'toy/letters' is a list of 3: give one number, or two: \[first, last\]",
    ),
    # everything else
    "an unknown tracker": ({"record": {"trackers": ["tensorbord"]}}, r"tensorbord.*tensorboard"),
    "a warning after the stop": (
        {"limits": {"logprob_gap": {"warn": 0.2, "stop": 0.1}}},
        r"limits\.logprob_gap.*warn = 0\.2 is above stop = 0\.1, so it would never warn: lower it",
    ),
    "a missing model": ({"policy": {"model": "./nowhere"}}, r"policy\.model: '\./nowhere' is not a folder"),
    "an unknown kind of policy": ({"policy": {"model": LORA["model"], "kind": "vml"}}, r"vml.*vlm"),
    "pixels that cross": (
        {"policy": {"model": "tiny:qwen2_vl", "min_pixels": 9000, "max_pixels": 4000}},
        r"min_pixels = 9000 is above",
    ),
    "an unknown key": (stage(clip_low=0.1), r"unknown key 'stages\.0\.clip_low'"),
    "a key of another kind": ({"stages": [{"kind": "sft", "steps": 1, "group_size": 4}]}, r"unknown key 'stages\.0\.group_size'"),
}


INVARIANT = {"model": "tiny:qwen2_vl", "batch_invariant": True}
REFUSED |= {
    f"the same bits with {what}": (sections, rf"policy\.batch_invariant doesn't go with {what}: leave one of them out")
    for what, sections in {
        'policy.attn_implementation = "sdpa"': {"policy": {**INVARIANT, "attn_implementation": "sdpa"}},
        'policy.kind = "reward"': {"policy": {**INVARIANT, "kind": "reward"}},
        r"policy\.lora\.nf4": {"policy": {**INVARIANT, "lora": {"nf4": ["language"]}}},
        r"policy\.lora\.use_dora": {"policy": {**INVARIANT, "lora": {"use_dora": True}}},
        'compute.sampler = "vllm"': {"policy": INVARIANT, "compute": {"sampler": "vllm"}},
        "compute.sequence_parallel = 2": {"policy": INVARIANT, "compute": {"learners": 2, "sequence_parallel": 2}},
        r"train\.compile": {"policy": INVARIANT, "train": {"compile": True}},
        r"evaluate\.steer": {"policy": INVARIANT, "evaluate": {"steer": True}},
    }.items()
}


@pytest.fixture
def nothing_loads(monkeypatch):
    """Whatever would load weights or start workers."""

    def loaded(*_, **__):
        raise AssertionError("it was not refused in time")

    for name in ("load_policy", "load_teacher", "Judge"):
        monkeypatch.setattr(mmrl.train.start, name, loaded)
    monkeypatch.setattr(tiny, "build", loaded)


def begin(folder, sections):
    return runs.run(runs.toy_config(folder / "runs", **sections))


@pytest.mark.parametrize("fault", REFUSED)
def test_it_is_refused_before_anything_is_loaded(fault, tmp_path, nothing_loads):
    sections, message = REFUSED[fault]
    with pytest.raises(UserError, match=message) as caught:
        begin(tmp_path, sections)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["pi0", "smolvla", "gr00t"])
def test_float16_is_for_policies_that_were_tried_in_it(kind, tmp_path):
    config = runs.toy_config(tmp_path, policy={"model": f"tiny:{kind}", "kind": kind, "dtype": "float16"})
    with pytest.raises(
        UserError, match=rf'"float16" is for policies of kind vlm, reward, vla, not {kind!r}: leave it out, or use'
    ):
        check_float16(config)


@pytest.mark.parametrize("kind", ["act", "diffusion", "robotics/small"])
def test_a_dtype_that_would_do_nothing_is_refused(kind):
    config = PolicyConfig(model="mlp" if kind == "robotics/small" else f"tiny:{kind}", kind=kind, dtype="bfloat16")
    with pytest.raises(
        UserError, match=rf'^policy.dtype = "bfloat16": a policy of kind {kind!r} computes in float32: leave it out$'
    ):
        checked_options(config, plugins.registry().get("policies", kind))


@pytest.mark.parametrize("key", ["attn_implementation", "chat_template", "min_pixels", "max_pixels"])
@pytest.mark.parametrize("kind", ["act", "diffusion", "robotics/small", "pi0", "xvla", "vla"])
def test_keys_of_the_policy_that_would_do_nothing_are_refused(kind, key):
    value = {"attn_implementation": "eager", "chat_template": "own.jinja"}.get(key, 12544)
    config = PolicyConfig(model="mlp" if kind == "robotics/small" else f"tiny:{kind}", kind=kind, **{key: value})
    spec = plugins.registry().get("policies", kind)
    if (kind == "vla" and key != "chat_template") or (kind in ("pi0", "xvla") and value == "eager"):
        checked_options(config, spec)
        return
    with pytest.raises(UserError, match=rf"^policy\.{key}: a policy of kind {kind!r} doesn't read it: leave it out$"):
        checked_options(config, spec)


@pytest.mark.parametrize("stage", [RecapStage, HgDaggerStage, OffPolicyStage])
def test_float16_is_for_stages_that_scale_their_losses(stage, tmp_path):
    config = runs.toy_config(tmp_path, policy={"model": "tiny:openvla", "kind": "vla", "dtype": "float16"})
    check_float16(config)
    config = config.model_copy(update={"stages": [stage.model_construct(kind="x")]})
    with pytest.raises(UserError, match=r"^policy\.dtype = \"float16\" isn't for stages\.0\.kind = 'x': use \"bfloat16\"$"):
        check_float16(config)


def test_what_is_right_gets_as_far_as_the_weights(tmp_path, nothing_loads):
    """The fixture would see a load; and each of these is the near neighbour of something that is refused."""
    for sections in (
        stage(),
        stage(group_size=1, ground_truth="always"),
        stage(algorithm="remax", group_size=1),
        stage(algorithm="reinforce++", kl_target=0.1),
        stage(algorithm="reinforce++", reference_every=1),
        stage(algorithm="ppo", credit="turn"),
        stage(settings={"clip_low": 1.0, "clip_high": math.inf, "dual_clip": 3}),
        stage(algorithm="filtered-cloning", settings={"threshold": -1.0}),
        stage(settings={"scale": "none", "biased": True, "normalise": "constant", "constant": 2}),
        stage(minibatches=2),
        parts(frozen("*.layers.0.*"), frozen("vision")),
        {"policy": LORA, **stage(kl_coef=0.1, reference="frozen", reference_every=2)},
        {"limits": {"logprob_gap": {"warn": 0.1, "stop": 0.1}}},
        {"generate": {"max_tokens": 6}, "tasks": [{"id": "toy/colour", "max_tokens": 6}]},
        {"tasks": TWO, **stage(tasks={"one": 1.0, "two": 0.0})},
        distill(),
    ):
        with pytest.raises(AssertionError, match="not refused in time"):
            begin(tmp_path, sections)
        assert list(tmp_path.iterdir()) == []


def test_a_teacher_with_another_vocabulary(tmp_path, monkeypatch):
    """Two folders of one family, one of whose tokenizers knows a token more."""
    for name in ("policy", "teacher"):
        tiny.save(str(tmp_path / "models" / name), hidden=32, layers=1)
    path = tmp_path / "models" / "teacher" / "tokenizer.json"
    text = path.read_text()
    assert text.count('"</think>"') == 1
    path.write_text(text.replace('"</think>"', '"</thought>"'))
    for name in ("load_policy", "load_teacher", "Judge"):
        monkeypatch.setattr(mmrl.train.start, name, None)  # calling it would be another error
    models = {"policy": {"model": str(tmp_path / "models" / "policy")}}
    with pytest.raises(UserError, match=r"stages\.0\.teacher: .*has another vocabulary than .*'</th.*same tokenizer") as caught:
        begin(tmp_path, {**models, **distill(teacher=str(tmp_path / "models" / "teacher"))})
    assert "\n" not in str(caught.value) and not (tmp_path / "runs").exists()
    with pytest.raises(TypeError, match="not callable"):
        begin(tmp_path, {**models, **distill(teacher=models["policy"]["model"])})


def test_a_plugins_algorithm_gives_its_settings_their_ranges(tmp_path, monkeypatch, nothing_loads):
    (tmp_path / "own.py").write_text(
        "from mmrl import AlgorithmSpec, hookimpl\n"
        "@hookimpl\n"
        "def mmrl_algorithms():\n"
        "    return [AlgorithmSpec(id='own/signed', target='own:signed')]\n"
        "def signed(rewards_N, *, limit=-1.0):\n"
        "    return rewards_N\n"
    )
    monkeypatch.setenv("MMRL_PLUGIN_FILES", f"{runs.TOY}:{tmp_path / 'own.py'}")
    with pytest.raises(AssertionError, match="not refused in time"):
        begin(tmp_path, stage(algorithm="own/signed", settings={"limit": -3.0}))
    with pytest.raises(UserError, match="clip_high = -1 must be at least 0"):
        begin(tmp_path, stage(algorithm="own/signed", settings={"clip_high": -1}))


# -- numbers ------------------------------------------------------------------------------------------------------------


def numbers(model, path=()):
    """(path, annotation, constraints) of every float in the schema; a list's or table's items go by `0` or `x`."""
    for name, field in model.model_fields.items():
        if (model, name) == (RunConfig, "stages"):
            for kind, section in STAGES.items():
                yield from numbers(section, (*path, name, kind))
            continue
        yield from found_in(field.annotation, (*path, name), field.metadata)


def found_in(annotation, path, metadata=()):
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from found_in(inner[0], path, (*metadata, *inner[1].metadata) if hasattr(inner[1], "metadata") else metadata)
    elif annotation is float:
        yield path, metadata
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from numbers(annotation, path)
    elif origin in (typing.Union, types.UnionType):
        for one in inner:
            yield from found_in(one, path)
    elif origin in (list, tuple):
        yield from found_in(inner[0], (*path, "0"))
    elif origin is dict:
        yield from found_in(inner[1], (*path, "x"))


PATHS = sorted({path for path, _ in numbers(RunConfig)})


def put(path, value):
    """A run file in which that number is the value."""
    first = {
        "sft": {"kind": "sft", "steps": 1}, "rl": {**RL, "critic": {}, "imitation": {}, "condition": {}}, "distill": DISTILL,
        "preference": {"kind": "preference", "steps": 1}, "off-policy": {"kind": "off-policy", "steps": 1},
        "recap": {"kind": "recap", "steps": 1}, "hg-dagger": {"kind": "hg-dagger", "steps": 1},
    }  # fmt: skip
    data = {
        "name": "x", "policy": {"model": "m", "lora": {}}, "tasks": [{"id": "a", "verifiers": {}}],
        "stages": [first[path[1]] if path[0] == "stages" else first["sft"]],
    }  # fmt: skip
    steps = [path[0], "0", *path[2:]] if path[0] == "stages" else list(path)
    node = data = {**data, "stages": [dict(data["stages"][0])]}
    if "select" in path:
        data["stages"][0]["select"] = {"path": "scores.jsonl"}
    if "losses" in path:
        steps[-1] = "dpo"  # their names are known
    if "gripper" in path:
        data["stages"][0]["gripper"] = {"state": 0}
    for name, following in itertools.pairwise(steps):
        if isinstance(node, list):
            while len(node) <= int(name):
                node.append({"match": "vision", "freeze": False} if "parts" in steps else {})
            node = node[int(name)]
        else:
            node[name] = following_in(node.get(name), following)
            node = node[name]
    if isinstance(node, list):
        node[:] = [value] * (2 if "verifiers" in path else 1)  # a weight goes from one number to another
    else:
        node[steps[-1]] = value
    return data


def following_in(found, key):
    """What is there, copied, or something that the key can be put into."""
    return ([*found] if isinstance(found, list) else dict(found)) if found else [] if key.isdigit() else {}


def test_the_walk_finds_numbers_wherever_they_stand():
    assert len(PATHS) > 60
    for path in (
        ("tasks", "0", "weight"), ("tasks", "0", "verifiers", "x", "0"), ("policy", "lora", "alpha"),
        ("stages", "sft", "tasks", "x"), ("stages", "rl", "critic", "huber"), ("stages", "rl", "hint_shares", "0"),
        ("stages", "rl", "condition", "top"), ("stages", "distill", "parts", "0", "learning_rate"),
        ("limits", "blind", "warn"), ("judge", "timeout_s"),
    ):  # fmt: skip
        assert path in PATHS


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_no_number_of_a_run_file_may_be_nan(path):
    with pytest.raises(UserError) as caught:
        parse_config(put(path, math.nan))
    text = str(caught.value)
    assert "nan" in text and next(p for p in reversed(path) if p not in ("x", "0")) in text and "\n" not in text


@pytest.mark.parametrize("sections", [{"tasks": [{"id": "toy/colour", "options": {"a": [{"b": math.nan}]}}]},
                                      stage(settings={"clip_low": math.nan})])  # fmt: skip
def test_nor_one_among_a_plugins_settings(sections, tmp_path):
    with pytest.raises(UserError, match=r"(options|settings).*nan is not allowed"):
        runs.toy_config(tmp_path, **sections)


def test_bounded_numbers_are_refused_below_their_bounds():
    bounded = {path: next((m for m in metadata if isinstance(m, Ge | Gt)), None) for path, metadata in numbers(RunConfig)}
    checked = 0
    for path, bound in bounded.items():
        if bound is None:
            continue
        below = bound.ge - 0.5 if isinstance(bound, Ge) else bound.gt
        with pytest.raises(UserError, match="greater than"):
            parse_config(put(path, float(below)))
        checked += 1
    assert checked > 30


# -- the command line ---------------------------------------------------------------------------------------------------

SAMPLE = [
    "a group of one", "top-p with importance", "bounds that cross the algorithm's", "an algorithm's penalty without one",
    "a target of no penalty", "a part that isn't", "a teacher of another family", "a critic of nothing", "an unknown setting",
    "a negative upper bound", "a bound that is no number", "a stage's unknown task", "an unknown tracker",
    "more mini-batches than prompts", "a warning after the stop", "conditions that are the same",
    "a task's tokens above all others'", "easy first without difficulties", "an unknown verifier",
    "adafactor on spread weights", "an unknown option of the policy",
]  # fmt: skip


def written(folder, sections):
    data = {
        "name": "toy", "runs_dir": str(folder / "runs"), "policy": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"},
        "tasks": [{"id": "toy/colour"}], "stages": [RL], "generate": {"max_tokens": 6}, "evaluate": {"num_prompts": 4},
        **sections,
    }  # fmt: skip
    (folder / "run.toml").write_text(tomli_w.dumps(data))
    return str(folder / "run.toml")


LOCAL = ("a teacher of another family", "a teacher that can't score an answer")  # a smoke run has a tiny teacher


@pytest.mark.parametrize(
    ("fault", "switch"), [(f, s) for f in SAMPLE for s in ("", "--dry-run", "--smoke") if s != "--smoke" or f not in LOCAL]
)
def test_the_command_line_says_it_in_one_line(fault, switch, tmp_path, nothing_loads):
    sections, message = REFUSED[fault]
    done = CliRunner().invoke(main, ["train", written(tmp_path, sections), *switch.split()])
    lines = [line for line in done.stderr.splitlines() if not line.startswith("loading ")]
    assert done.exit_code == 2 and len(lines) == 1 and lines[0].startswith("mmrl: "), done.output
    with pytest.raises(UserError, match=message):
        raise UserError(lines[0])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("switch", [[], ["--dry-run"], ["--smoke"]])
def test_bitsandbytes_is_missed_before_anything_is_loaded(switch, tmp_path, nothing_loads, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "bitsandbytes" else find(name, *more))
    sections = stage(optimizer="adamw_8bit")
    done = CliRunner().invoke(main, ["train", written(tmp_path, sections), *switch])
    assert done.exit_code == 2 and not (tmp_path / "runs").exists()
    assert 'stages.0.optimizer = "adamw_8bit" needs bitsandbytes, which is not installed: pip install "multim' in done.stderr


@pytest.mark.parametrize("switch", [[], ["--dry-run"]])
def test_a_sandbox_is_missed_before_anything_is_loaded(switch, tmp_path, nothing_loads, monkeypatch):
    monkeypatch.setattr("mmrl.api.processes.sandbox.problem", lambda: "there is none in this test")
    done = CliRunner().invoke(main, ["train", written(tmp_path, {"judge": {"isolation": "strict"}}), *switch])
    assert done.exit_code == 2 and not (tmp_path / "runs").exists()
    assert 'judge.isolation = "strict" needs a sandbox, and there is none in this test: install bubblewrap' in done.stderr


def test_a_process_of_its_own_ends_with_2_and_no_traceback(tmp_path):
    for switch in ((), ("--dry-run",)):
        done = forked.run(["train", written(tmp_path, stage(settings={"clip_low": -1.0})), *switch])
        lines = done.stderr.splitlines()
        assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == "" and not (tmp_path / "runs").exists()
        assert lines[-1] == "mmrl: stages.0.settings.clip_low = -1.0 must be from 0 to 1" and len(lines) <= 2


# -- a smoke run of what is right is right ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sections",
    [
        stage(prompts_per_step=8, minibatches=8),
        {"generate": {"max_tokens": 64}, "tasks": [{"id": "toy/colour", "max_tokens": 64}]},
        {"policy": {"model": "tiny:qwen2_5_vl", "max_pixels": 1000}},
        stage(prompts_per_step=8, minibatches=4, algorithm="ppo"),
    ],
    ids=["mini-batches", "tokens", "pixels", "ppo"],
)
def test_smaller_numbers_stay_consistent(sections, tmp_path):
    small = smoke(runs.toy_config(tmp_path, **sections))
    mmrl.train.start.resolve(small)
    largest = small.policy.max_pixels
    assert largest <= 12544 and small.policy.min_pixels <= largest
    assert all(t.max_tokens is None or t.max_tokens <= small.generate.max_tokens <= 16 for t in small.tasks)
    assert all(s.minibatches <= s.prompts_per_step == 2 for s in small.stages if s.kind == "rl")
