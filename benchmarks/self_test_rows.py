"""The rows of `self_test.py`: each computes one thing on the CPU and on the device, and says how far apart they are.

A row is a function of the device that returns measurements, {what: (how far apart, how far apart they may be)}; what it raises is
an error of the row. Not a benchmark itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig, RunConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.smoke import smoke
from mmrl.train.start import train
from mmrl.train.update.packer import PackOptions, packer_of
from packing import group_of, update
from same_figures import CLOCK
from self_test_device import DEVICE, Measured
from self_test_sampling import LOGPROBS, SAMPLING, SUPPORT

GRADIENT, STEP = 1e-3, 2e-3
"""Allowed in float32: of the gradient's norm and of a metric of the first step, relatively."""
SMALL = 1e-2
"""Metrics below this are compared by their difference over it."""
GROUP = 4


class Silent:
    """A run's progress that nobody watches."""

    def stage_started(self, *_: Any) -> None: ...

    def step_finished(self, *_: Any) -> None: ...

    def evaluated(self, *_: Any) -> None: ...

    def note(self, text: str) -> None: ...

    def say(self, text: str) -> None: ...

    def stopping(self) -> None: ...


# -- families -------------------------------------------------------------------------------------------------------------------


def family(name: str, device: str) -> Measured:
    """Log-probabilities, gradients and samples of a tiny model of the family. In bfloat16, the device may be twice as far from
    float32 as the CPU is."""
    exact, rollouts = _computed(name, "cpu", "float32", None)
    there, _ = _computed(name, device, "float32", rollouts)
    rough, _ = _computed(name, "cpu", "bfloat16", rollouts)
    rough_there, _ = _computed(name, device, "bfloat16", rollouts)

    def logprobs(found: dict[str, torch.Tensor]) -> torch.Tensor:
        return (found["logprobs"] - exact["logprobs"]).abs()

    def gradient(found: dict[str, torch.Tensor]) -> float:
        return float((found["gradient"] - exact["gradient"]).norm() / exact["gradient"].norm())

    other = (there["samples"] != exact["samples"]).float().mean()
    return {
        "logprobs": (float(logprobs(there).max()), LOGPROBS),
        "gradient": (gradient(there), GRADIENT),
        "other tokens": (float(other), 0.02),
        "sampler gap": (float(there["gap"]), LOGPROBS),
        "bf16 logprobs": (float(logprobs(rough_there).mean()), 2 * float(logprobs(rough).mean()) + 2e-3),
        "bf16 gradient": (gradient(rough_there), 2 * gradient(rough) + 2e-2),
        "bf16 sampler gap": (float(rough_there["gap"]), 2 * float(rough["gap"]) + 2e-3),
    }


def mllama(device: str) -> Measured:
    """As `family`, of Llama 3.2 Vision, whose words look at pictures in layers of their own: a checkpoint that tests make."""
    from mllama_checkpoint import save_mllama

    with tempfile.TemporaryDirectory() as folder:
        return family(str(save_mllama(Path(folder))), device)


def _computed(name: str, device: str, dtype: str, rollouts: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """(what a model computes of the rollouts, on the CPU; the rollouts, made if there are none). name: a family or a folder."""
    deep = max(2, tiny.LEAST_LAYERS.get(name, 1))
    model = f"tiny:{name}:hidden=64,layers={deep}" if name in tiny.FAMILIES else name
    config = _run_file({"model": model, "dtype": dtype, "device": device})
    policy = VLM(PolicyConfig(model=config.policy.model, dtype=dtype), device=device)  # type: ignore[arg-type]
    if rollouts is None:
        rollouts = group_of(policy, 112, GROUP, 9, 2)
    credit = Credit(advantages=torch.linspace(-1, 1, GROUP) + 0.01)
    packer = packer_of(config, policy)
    (batch,) = packer.pack(rollouts, credit, PackOptions())
    logprobs, gradient, _ = update(policy, batch)
    sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=3)
    (sampled,) = LocalGenerator(policy).generate([rollouts[0].inputs], GROUP, sampling)
    samples = torch.nn.utils.rnn.pad_sequence([torch.tensor(s.token_ids) for s in sampled], batch_first=True, padding_value=-1)
    padded = torch.nn.functional.pad(samples, (0, 8 - samples.shape[1]), value=-1)
    gap = _gap(policy, packer, rollouts[0], sampled, credit)
    return {"logprobs": logprobs.cpu().float(), "gradient": gradient.cpu(), "samples": padded, "gap": gap}, rollouts


def _gap(policy: VLM, packer: Any, like: Any, sampled: Any, credit: Credit) -> torch.Tensor:
    """The mean difference between the sampler's log-probabilities and the learner's."""
    from dataclasses import replace

    turns = [replace(like.turns[0], token_ids=s.token_ids, logprobs=s.logprobs) for s in sampled]
    (batch,) = packer.pack([replace(like, turns=(turn,)) for turn in turns], credit, PackOptions())
    with torch.no_grad():
        gaps = [(policy.logprobs(m, 1.0)[0] - m.sampler_logprobs_L).abs() for m in batch.micro]
    return torch.cat(gaps).mean().cpu()


# -- runs -----------------------------------------------------------------------------------------------------------------------


def _run_file(policy: dict[str, Any], folder: str = "runs", **sections: Any) -> RunConfig:
    data = {
        "name": "self-test",
        "runs_dir": folder,
        "policy": {"model": "tiny:qwen2_5_vl:hidden=64,layers=2", **policy},
        "tasks": [{"id": "toy/colour"}],
        "stages": [SFT],
        "generate": {"max_tokens": 6},
        "evaluate": {"num_prompts": 4},
        "simulate": {"num_envs": 8},
        "record": {"rollouts_every": 0, "trackers": []},
        "checkpoint": {"every": 1, "keep": 2},
        "train": {"threads": 1},
    }
    return parse_config({**data, **sections})


def run(sections: dict[str, Any], device: str, bf16: bool = False) -> Measured:
    """Every metric of the steps of a run. The first step decides: later ones are further apart where a sample fell differently.
    In bfloat16 samples differ from the first step on, so only the gap between sampler and learner is measured."""
    rows = {place: _steps(sections, place) for place in ("cpu", device)}
    there = rows[device]
    if not all(math.isfinite(value) for row in there for value in row.values()):
        raise RuntimeError(f"a metric is not finite: {there}"[:300])
    if bf16:
        return {"sampler gap": (there[0]["logprob_gap"], 5e-2)}
    first, name = _apart(rows["cpu"][0], there[0])
    last, name_last = _apart(rows["cpu"][-1], there[-1])
    return {f"first step, {name}": (first, STEP), f"step {len(there)}, {name_last}": (last, math.inf)}


def resumed(device: str) -> Measured:
    """A run of four steps against one of two that goes on to four, on the device."""
    stages = [{**GRPO, "steps": 4}]
    with tempfile.TemporaryDirectory() as folder:
        whole = _metrics(train(_run_file({"device": device}, f"{folder}/a", stages=stages), Silent()).path)

        class Stop(Silent):
            def step_finished(self, step: int, *_: Any) -> None:
                if step == 2:
                    raise KeyboardInterrupt

        config = _run_file({"device": device}, f"{folder}/b", stages=stages)
        with contextlib.suppress(KeyboardInterrupt):
            train(config, Stop())
        again = _metrics(train(config, Silent(), resume=True).path)
    by, name = _apart(whole[-1], again[-1])
    return {f"step 4, {name}": (by, STEP)}


def _steps(sections: dict[str, Any], device: str) -> list[dict[str, float]]:
    own = dict(sections)
    policy, shortened = {**own.pop("policy", {}), "device": device}, own.pop("smoke", False)
    with tempfile.TemporaryDirectory() as folder:
        config = _run_file(policy, folder, **own)
        return _metrics(train(smoke(config) if shortened else config, Silent()).path)


def _metrics(path: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    found = [row["metrics"] for row in rows if "metrics" in row]
    return [{k: v for k, v in row.items() if not any(fnmatchcase(k, p) for p in CLOCK)} for row in found]


def _apart(here: dict[str, float], there: dict[str, float]) -> tuple[float, str]:
    """(the largest relative difference, its metric)."""
    if here.keys() != there.keys():
        raise RuntimeError(f"only one of the two has {', '.join(sorted(here.keys() ^ there.keys()))}")
    found = ((abs(here[k] - there[k]) / max(abs(here[k]), abs(there[k]), SMALL), k) for k in here)
    by, name = max(found, default=(0.0, ""))
    return by, name if by else "all metrics"


SFT: dict[str, Any] = {"kind": "sft", "steps": 2, "batch_size": 4, "learning_rate": 1e-3}
RL: dict[str, Any] = {"kind": "rl", "steps": 2, "learning_rate": 1e-3}
GRPO = {**RL, "prompts_per_step": 3, "group_size": 4}
FOLLOW = {**RL, "kind": "distill", "prompts_per_step": 4, "teacher": "tiny:qwen2_5_vl:hidden=64,layers=2,seed=5"}
KL = {**GRPO, "kl_coef": 0.1}
EPISODES = {**RL, "prompts_per_step": 8, "group_size": 1, "minibatches": 2, "algorithm": "ppo", "settings": {"gamma": 0.9}}
EPISODES |= {"ratio": "chunk", "credit": "chunk", "critic": {"hidden_sizes": [8], "detach": True}}
DEMO = {**SFT, "split": "demo"}
VLA: dict[str, Any] = {"kind": "vla", "options": {"dims": 4, "bins": 32}}
TURN = {"id": "dial/turn", "options": {"n": 200, "reward": "stages"}}
REACH = {"id": "robotics/reach", "options": {"dims": 4, "size": 56, "cameras": ["front", "wrist"], "max_steps": 4}}
TABLE = {"id": "robotics/pick", "options": {"dims": 4, "size": 32, "max_steps": 4, "stages": {"grasped": 0.1, "success": 1.0}}}


def _stages(*stages: dict[str, Any], **sections: Any) -> Callable[[str], Measured]:
    return partial(run, {"stages": list(stages), **sections})


def self_play(device: str) -> Measured:
    """A shortened run, in which gold completions propose questions."""
    if lacking := [name for name in ("sklearn", "scipy", "Levenshtein") if not importlib.util.find_spec(name)]:
        raise UserError(f"vqa/self-play needs {', '.join(lacking)}: install them")
    samples = Path(__file__).parents[1] / "assets" / "samples"
    tasks = [{"id": "vqa/propose", "options": {"path": str(samples / "photographs"), "size": 56}}]
    tasks += [{"id": "vqa/table", "weight": 0.0, "options": {"path": str(samples / "questions.jsonl")}}]
    stage = {**GRPO, "rules": [{"id": "vqa/self-play"}]}
    return run({"stages": [stage], "tasks": tasks, "evaluate": {"num_prompts": 0}, "smoke": True}, device)


def _expert(kind: str, *stages: dict[str, Any], task: dict[str, Any] = TURN) -> Callable[[str], Measured]:
    """A policy whose expert turns noise into actions."""
    dims, state = (2, 2) if task is TURN else (4, 8)
    policy = {"kind": kind, "model": f"tiny:{kind}:hidden=32,layers=2,chunk=3"}
    return _stages(*stages, policy=policy | {"options": {"dims": dims, "chunk": 2, "state": state, "steps": 3}}, tasks=[task])


def _acting(*stages: dict[str, Any], **options: Any) -> Callable[[str], Measured]:
    """A vision-language model that acts on the table."""
    return _stages(*stages, policy=VLA | {"options": {**VLA["options"], **options}}, tasks=[TABLE])


FAST = {"kind": "pi0_fast", "model": "tiny:pi0_fast:hidden=32,layers=1,chunk=3"}
FAST["options"] = {"dims": 4, "chunk": 2, "state": 8, "action_tokens": 14, "vocabulary": "actions"}
DENOISES = {"kind": "diffusion", "model": "tiny:diffusion:width=8,horizon=4,times=4"}
DENOISES["options"] = {"dims": 4, "chunk": 2, "state": 8, "steps": 3}
SQUASHED = {"kind": "squashed", "model": "mlp", "options": {"dims": 4, "state": 8, "hidden": [16]}}
MEMORY = {"kind": "off-policy", "steps": 2, "prompts_per_step": 8, "updates": 1, "batch_size": 16, "hidden": [16], "critics": 2}
MEMORY |= {"offline": "expert", "offline_episodes": 8}
ACT = {"kind": "act", "model": "tiny:act:width=32,chunk=3,latent=4"}
ACT["options"] = {"dims": 4, "chunk": 2, "state": 8, "dropout": 0.0}
ACTS_AT = {**REACH, "options": {**REACH["options"], "size": 64}}
HELPED = {"id": "dial/turn", "options": {"n": 200, "helps": 0.3, "reward": "stages", "stages": {"success": 1.0}}}
HELPED |= {"verifiers": {"dial/success": 0.0}}
LEARNS_FROM_HELP = {"kind": "squashed", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [16]}}
SPARSE = {"model": "tiny:qwen3_vl_moe:hidden=64,layers=2"}
ROUTERS = {"aux_loss_coef": 0.01, "z_loss_coef": 0.01}
AGAIN = {"tasks": [{"id": "asks_again/colour"}], "generate": {"max_tokens": 4, "max_turns": 2}}
LESS = {"masked": 0.5, "patch": 14}
OFFLOAD = {"threads": 1, "gradient_checkpointing": True, "offload_activations": True, "offload_optimizer": True}
RUNS: dict[str, Callable[[str], Measured]] = {
    "GRPO": _stages(GRPO),
    "SFT": _stages(SFT),
    "PPO, shared critic": _stages({**GRPO, "algorithm": "ppo", "critic": {}}),
    "PPO, separate critic": _stages({**GRPO, "algorithm": "ppo", "critic": {"backbone": "separate"}}),
    "KL, frozen reference": _stages(KL),
    "KL, in the reward": _stages({**KL, "kl_in": "reward"}),
    "LoRA": _stages(SFT, GRPO, policy={"lora": {"rank": 4}}),
    "LoRA, KL to the base": _stages(KL, policy={"lora": {"rank": 4, "target_modules": ["vision", "projector", "language"]}}),
    "distill, reverse KL": _stages(FOLLOW),
    "distill, sampled": _stages({**FOLLOW, "divergence": "sampled"}),
    "epochs, entropy, importance weights": _stages(
        {**GRPO, "epochs": 2, "minibatches": 2, "entropy_coef": 0.01, "importance_sampling": "truncate"}
    ),
    "gradient checkpointing": _stages(GRPO, train={"threads": 1, "gradient_checkpointing": True}),
    "offload, bfloat16": partial(run, {"stages": [GRPO], "policy": {"dtype": "bfloat16"}, "train": OFFLOAD}, bf16=True),
    "8-bit AdamW": _stages({**SFT, "optimizer": "adamw_8bit"}),
    "8-bit AdamW, paged": _stages({**SFT, "optimizer": "paged_adamw_8bit"}),
    "LoRA over 4 bits": _stages(SFT, GRPO, policy={"lora": {"rank": 4, "nf4": ["language", "vision"]}}),
    "small micro-batches": _stages(GRPO, train={"threads": 1, "micro_batch_tokens": 64}),
    "bfloat16": partial(run, {"stages": [GRPO], "policy": {"dtype": "bfloat16"}}, bf16=True),
    "float16": partial(run, {"stages": [GRPO], "policy": {"dtype": "float16"}}, bf16=True),
    "muon, EMA": _stages({**SFT, "optimizer": "muon", "ema_decay": 0.9}),
    "adafactor": _stages({**SFT, "optimizer": "adafactor"}),
    "resume": resumed,
    "acting, tokens": _acting(DEMO, EPISODES),
    "acting, parallel tokens": _acting(DEMO, EPISODES, decoding="parallel", chunk=2),
    "acting, normal head": _acting(DEMO, EPISODES, head="normal", chunk=2),
    "acting, flow head": _acting(DEMO, EPISODES, head="flow", chunk=2),
    "acting, GRPO of episodes": _acting({**GRPO, "algorithm": "trajectory-grpo"}),
    "acting, LoRA": _stages(EPISODES, policy=VLA | {"lora": {"rank": 4}}, tasks=[TABLE]),
    "pi0": _expert("pi0", EPISODES),
    "pi0 on the table": _expert("pi0", DEMO, task=REACH),
    "pi05": _expert("pi05", EPISODES),
    "SmolVLA": _expert("smolvla", EPISODES),
    "SmolVLA on the table": _expert("smolvla", DEMO, task=REACH),
    "GR00T": _expert("gr00t", EPISODES),
    "pi0-FAST": _stages(DEMO, {**EPISODES, "ratio": "token", "credit": "token"}, policy=FAST, tasks=[REACH]),
    "Diffusion Policy": _stages(DEMO, {**EPISODES, "algorithm": "dppo"}, policy=DENOISES, tasks=[REACH]),
    "OpenVLA": _stages(
        EPISODES, policy={"kind": "vla", "model": "tiny:openvla:hidden=32,layers=1", "options": {"dims": 4}}, tasks=[TABLE]
    ),
    "RLPD": _stages(MEMORY, policy=SQUASHED, tasks=[TABLE]),
    "ACT": _stages(EPISODES, policy=ACT, tasks=[ACTS_AT]),
    "ACT on the table": _stages(DEMO, policy=ACT, tasks=[ACTS_AT]),
    "X-VLA": _expert("xvla", EPISODES),
    "X-VLA on the table": _expert("xvla", DEMO, task=REACH),
    "interventions": _stages(MEMORY, policy=LEARNS_FROM_HELP, tasks=[HELPED]),
    "R3, balance of experts": _stages({**GRPO, "experts": {"router_replay": "R3", **ROUTERS}}, policy=SPARSE),
    "R2": _stages({**GRPO, "minibatches": 2, "epochs": 2, "experts": {"router_replay": "R2"}}, policy=SPARSE),
    "R3, bfloat16": partial(
        run, {"stages": [{**GRPO, "experts": {"router_replay": "R3"}}], "policy": SPARSE | {"dtype": "bfloat16"}}, bf16=True
    ),
    "PAPO": _stages({**GRPO, "perception": {"coef": 0.1, "gradient": "both", **LESS}}),
    "VPPO": _stages({**GRPO, "algorithm": "vppo", "perception": LESS}),
    "noisy pictures": _stages({**GRPO, "noisy": {"share": 0.5, "level": 300, "schedule": "constant"}}),
    "GiGPO": _stages({**GRPO, "algorithm": "gigpo"}, **AGAIN),
    "losses of the whole batch": _stages({**GRPO, "algorithm": "clip-cov", "minibatches": 2}),
    "losses of whole groups": _stages({**GRPO, "algorithm": "real", "minibatches": 2}),
    "self-play": self_play,
    "IQL": _stages({**MEMORY, "iql": {}, "offline_steps": 1, "offline_updates": 3}, policy=SQUASHED, tasks=[TABLE]),
    "PA-RL": _stages({**MEMORY, "improve": {"candidates": 4, "keep": 2, "steps": 2}}, policy=SQUASHED, tasks=[TABLE]),
}
FAMILIES = {f"family {name}": partial(family, name) for name in tiny.FAMILIES} | {"family mllama": mllama}
ROWS: dict[str, Callable[[str], Measured]] = {**DEVICE, **SAMPLING, **RUNS, **FAMILIES}


def prepare() -> None:
    """Settings of this process for the rows."""
    os.environ["MMRL_PLUGIN_FILES"] = os.pathsep.join(str(SUPPORT / name) for name in ("toy.py", "dial.py", "asks_again.py"))
    sys.path.append(str(SUPPORT))
    torch.set_num_threads(1)
