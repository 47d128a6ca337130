"""What teams of ranks that share rows compute, and what one process does, for tests that compare them.

The file is also the program of each process: see `learners.start`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

import vlm_cases
from mmrl.algorithms.loss import average
from mmrl.api.media.sounds import Waveform
from mmrl.api.types import Prompt
from mmrl.compute import ranks
from mmrl.compute.teams import Team
from mmrl.config.sections import CriticConfig
from mmrl.policies.batches import Credit
from mmrl.policies.critic import Critic
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.shard import full_tensor
from mmrl.policies.vlm import attention, vlm
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack, pad_passes

TEMPERATURE = 0.8


def policy_of(family: str, way: str | None) -> VLM:
    """A policy with weights so large that what a token sees shows. way: of attention; None: what the probe chose."""
    import other_families

    made = other_families.policy(family)
    if way is not None:
        attention.use(made.model, way)
    return made


def figures(
    family: str,
    *,
    team: int = 1,
    sharded: bool = False,
    checkpointed: bool = False,
    shared: bool = True,
    way: str | None = None,
    pictures: Sequence[int] = (1, 0, 2),
    budget: int = 400,
    small: bool = False,
    chunk: int = 0,
    sounds: Sequence[float] = (),
) -> dict[str, torch.Tensor]:
    """Log-probabilities, entropies, values [N, T] and the gradients of a loss that reads all three; `kept`, the bytes that the
    largest forward pass of each rank keeps for the backward pass. Each rank has every n-th prompt. small: attention by blocks
    of a few tokens. chunk: logits of so many tokens at a time. sounds: seconds of the sound in each prompt, 0 for none."""
    policy = policy_of(family, way)
    before, vlm.LOGIT_CHUNK = vlm.LOGIT_CHUNK, chunk * len(policy.bias_V) or vlm.LOGIT_CHUNK
    prompts = [vlm_cases.prompt(k, n) for k, n in enumerate(pictures)]
    for n, seconds in enumerate(sounds):
        prompts[n] = with_sound(prompts[n], seconds, policy)
    made = vlm_cases.rollouts(policy, prompts, group=3)
    own = [r if ranks.owns(r.group) else r.to_stub() for r in made]
    credit = Credit(advantages=torch.linspace(-1, 1, len(made)))
    critic = Critic(policy, CriticConfig(hidden_sizes=[8]), 0)
    torch.manual_seed(0)
    torch.nn.init.normal_(critic.head[-1].weight)
    if sharded and ranks.world_size() > 1:
        policy.spread()
    members = Team.of(team)
    if members is not None:
        policy.family.share_rows(members.size)
    with attention.small_blocks() if small else contextlib.nullcontext():
        packed = pack(own, credit, policy, shared_prefix=shared, budget=budget, team=members)
        batch = Learner._counted(_Of(policy), pad_passes(packed, policy, members))
        found = _passed(policy, critic, batch, checkpointed)
    vlm.LOGIT_CHUNK = before
    return found


def with_sound(prompt: Prompt, seconds: float, policy: VLM) -> Prompt:
    """A prompt that begins with a sound of so many seconds."""
    rate = policy.reader.sound_limits.rate
    tone_T = torch.linspace(0, 1, round(seconds * rate)).mul(3000).sin().numpy()
    heard = [{"type": "audio", "audio": Waveform(samples_T=tone_T, rate=rate)}] if seconds else []
    (message,) = prompt.messages
    return replace(prompt, messages=[{**message, "content": [*heard, *message["content"]]}])


class _Of:
    def __init__(self, policy: VLM) -> None:
        self.policy = policy


def _passed(policy: VLM, critic: Critic, batch: Any, checkpointed: bool) -> dict[str, torch.Tensor]:
    shape = (len(batch.lengths_N), int(batch.lengths_N.max()))
    sums = {name: torch.zeros(shape) for name in ("logprobs", "entropies", "values", "times")}
    passes, kept = torch.zeros(ranks.world_size(), 2), torch.zeros(ranks.world_size())
    whole_weights = [] if policy.root else list(policy.model.parameters())
    weights = {p.untyped_storage().data_ptr() for p in whole_weights}
    for micro in batch.micro:
        storages: dict[int, torch.Tensor] = {}

        def keep(x: torch.Tensor, storages: dict[int, torch.Tensor] = storages) -> torch.Tensor:
            if policy.root is None:  # gathered weights would be counted
                storages[x.untyped_storage().data_ptr()] = x
            return x

        with gradient_checkpointing(policy.model, checkpointed), saved_tensors_hooks(keep, lambda x: x):
            out = policy.outputs(micro, TEMPERATURE, states=True, entropy_gradient=True)
            values_L, values_R, _ = critic.values(micro, out.states_QH)
            loss_L = out.logprobs_L * micro.advantages_L - 0.1 * out.entropy_L + 0.01 * values_L**2
            loss = average(loss_L, micro, batch, "token") + 0.01 * values_R.square().sum()
        held = sum(x.untyped_storage().nbytes() for ptr, x in storages.items() if ptr not in weights)
        kept[ranks.rank()] = max(kept[ranks.rank()], held)
        storages.clear()
        loss.backward()
        place = (micro.rollout_L, micro.place_L)
        for name, one in (("logprobs", out.logprobs_L), ("entropies", out.entropy_L), ("values", values_L)):
            sums[name][place] = one.detach()
        sums["times"][place] += 1
        passes[ranks.rank()] += torch.tensor([1.0, float(len(micro.target_L))])
    found = {name: ranks.all_reduce_sum(one) for name, one in (sums | {"passes": passes, "kept": kept}).items()}
    for name, p in [*policy.parameters(), *critic.parameters()]:
        none = torch.zeros(p.shape)  # of a weight that no pass uses
        own = none if p.grad is None else full_tensor(p.grad)
        found[f"grad/{name}"] = own if isinstance(p, DTensor) else ranks.all_reduce_sum(own.clone())
    return found


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], bound: float = 1e-5) -> list[str]:
    """What differs by more than `bound`, of gradients by more than that share of the largest one."""
    found = [] if one.keys() == other.keys() else [f"names: {sorted(one.keys() ^ other.keys())[:4]}"]
    largest = max((float(x.abs().max()) for name, x in one.items() if name.startswith("grad/")), default=1.0)
    for name in sorted(one.keys() & other.keys() - {"passes", "kept"}):
        gap = float((one[name] - other[name]).abs().max()) if one[name].numel() else 0.0
        if not gap <= bound * (max(largest, 1.0) if name.startswith("grad/") else 1.0):
            found.append(f"{name}: {gap:.2e}")
    return found


def main() -> None:
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count, timeout=datetime.timedelta(seconds=120)
    )
    import other_families

    for number, options in enumerate(json.loads((folder / "play.json").read_text())):
        torch.save(figures(**options), folder / f"{number}.{rank}.pt")
        other_families.policy.cache_clear()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
