"""Rows of `self_test.py` about sampling: padded prompts, and decoding and acting by CUDA graphs. Not a benchmark itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.call_graphs import SIGHTS, CallGraphs
from mmrl.policies.batches import ones
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.decode_graphs import DecodeGraphs
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.pack_conversations import pack
from self_test_device import Measured

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
LOGPROBS = 1e-4
"""Allowed of a log-probability in float32, in nats."""


def padded(device: str) -> Measured:
    """Two prompts of different lengths, read together and each by itself: the log-probabilities of what follows. The heads of the
    model are 128 wide, as most models' are."""
    from mmrl.compute.devices import prepare_device

    found: Measured = {}
    for dtype, allowed in (("float32", LOGPROBS), ("bfloat16", 3e-2)):
        prepare_device(device, dtype)
        policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=512,layers=2", dtype=dtype), device=device)  # type: ignore[arg-type]
        inputs = [policy.encode(prompt_of(words)) for words in (0, 30)]
        sampler = LocalGenerator(policy)
        first = [sampler.first([one])[0] for one in inputs]
        alone = torch.stack(first)
        apart = (sampler.first(inputs) - alone)[alone.isfinite()].abs()  # ids that are never sampled have -inf
        found[f"{dtype} first token"] = (float(apart.mean()), allowed / 10)
        found[f"{dtype} pads"] = (0.0 if policy.family.pads_prompts else 1.0, 0.0)
    return found


def graphs(device: str) -> Measured:
    """Decoding by CUDA graphs against decoding without: the log-probabilities of tokens that follow the same ones, before and
    after weights are changed in place and put elsewhere; 1 if nothing was captured. On a CPU rooms without graphs."""
    from mmrl.compute.devices import prepare_device

    found: Measured = {}
    for dtype, allowed in (("float32", LOGPROBS), ("bfloat16", 3e-2)):
        prepare_device(device, dtype)
        policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=512,layers=2", dtype=dtype), device=device)  # type: ignore[arg-type]
        inputs, sampler = [policy.encode(prompt_of(words)) for words in (0, 30)], LocalGenerator(policy, 8)
        sampler.graphs = DecodeGraphs(policy, 8)
        sampler.graphs.failure = "" if device != "cpu" else "a CPU has none"
        head = policy.model.get_output_embeddings()
        for what in ("", ", weights in place", ", weights elsewhere"):
            with torch.no_grad():
                head.weight.mul_(1.0 if not what else 1.5)
            if what.endswith("elsewhere"):
                head.weight = torch.nn.Parameter(head.weight.detach().clone())
            sampling = SamplingParams(max_tokens=100, temperature=1.0, seed=3)
            pairs = [LocalGenerator(policy, 8).generate(inputs, 4, sampling), sampler.generate(inputs, 4, sampling)]
            apart: list[float] = []
            for one, other in zip(*(chain(*groups) for groups in pairs), strict=True):
                same = [a == b for a, b in zip(one.token_ids, other.token_ids, strict=False)]
                until = [*same, False].index(False)
                apart += [abs(a - b) for a, b in zip(one.logprobs[:until], other.logprobs[:until], strict=True)]
            found[f"{dtype}{what}"] = (sum(apart) / max(1, len(apart)), allowed / 10)
            found[f"{dtype}{what}, equal tokens"] = (float(len(apart)), math.inf)
        lacking = device != "cpu" and (sampler.graphs.failure or sampler.graphs.unfit or not sampler.graphs.captured)
        found[f"{dtype} without graphs"] = (float(bool(lacking)), 0.0)
    return found


def same_bits(device: str) -> Measured:
    """`policy.batch_invariant`: the largest gap between sampler and learner in bfloat16, which must be 0, decoded with graphs and
    without; and the gradient's distance from that of the same model without it, relative to its norm."""
    import vlm_cases as cases
    from mmrl.compute.devices import prepare_device

    prepare_device(device, "bfloat16")
    found: Measured = {}
    for family in ("qwen2_5_vl", "internvl"):
        told: dict[str, Any] = {"model": f"tiny:{family}:hidden=512,layers=2", "dtype": "bfloat16"}
        policy, plain = (VLM(PolicyConfig(**told, batch_invariant=on), device=device) for on in (True, False))
        prompts = [prompt_of(words) for words in (0, 150)]
        inputs = [policy.encode(one) for one in prompts]
        for graphs in (None, DecodeGraphs(policy, 8)) if device != "cpu" else (None,):
            sampler = LocalGenerator(policy, 8)
            sampler.graphs = graphs
            groups = sampler.generate(inputs, 4, SamplingParams(max_tokens=100, temperature=1.0, seed=3))
            rollouts = cases.as_rollouts(prompts, inputs, groups)
            batch = pack(rollouts, ones(rollouts), policy, shared_prefix=True, budget=4096)
            with torch.no_grad():
                gaps = [policy.logprobs(micro, 1.0)[0] - micro.sampler_logprobs_L for micro in batch.micro]
            how = f"{family}, by graphs" if graphs else family
            found[how] = (float(torch.cat(gaps).abs().max()), 0.0)
            if graphs is not None:
                found[f"{how}, none captured"] = (float(not graphs.captured), 0.0)
        ours, theirs = (cases.logprobs_and_gradient(vlm, batch, 1.0)[1].float() for vlm in (policy, plain))
        found[f"{family}, gradient"] = (float((ours - theirs).norm() / theirs.norm()), 5e-2)
    return found


def acting(kind: str, device: str) -> Measured:
    """Calls of a policy that acts by CUDA graphs against calls without: actions and log-probabilities, before and after weights
    are changed in place and put elsewhere; 1 if nothing was captured. On a CPU both are without."""
    import acting_cases
    from mmrl.compute.devices import prepare_device

    prepare_device(device, "float32")
    made, found = acting_cases.policy(kind, device), Measured()
    graphs = CallGraphs(made.model, made.device) if device != "cpu" else None
    for what in ("", ", weights in place", ", weights elsewhere"):
        with torch.no_grad():
            for _, weight in made.parameters():
                weight.mul_(1.0 if not what else 1.1)
                if what.endswith("elsewhere"):
                    weight.data = weight.data.clone()
        for n in range(SIGHTS + 2):
            given = acting_cases.seen(made, n, 3), torch.arange(3) + n, torch.arange(3), 1.0
            made.graphs = None
            wanted = made.act(*given)
            made.graphs = graphs
            here = made.act(*given)
            for name in ("actions_nKA", "logprobs_nKC"):
                apart = float((getattr(here, name) - getattr(wanted, name)).abs().max())
                key = f"{name.split('_')[0]}{what}"
                found[key] = (max(apart, found.get(key, (0.0, 0.0))[0]), 10 * LOGPROBS)
    found["without graphs"] = (float(graphs is not None and (bool(graphs.failure) or not graphs.captured)), 0.0)
    return found


def prompt_of(words: int) -> Prompt:
    from PIL import Image

    return Prompt(messages=[user_message("What is it?" + " x" * words, Image.new("RGB", (64, 64), (90, 140, 40)))])


KINDS = (
    *("vla, one by one", "vla, adapters", "vla, flow head", "openvla", "pi0", "pi05", "smolvla", "xvla", "gr00t"),
    "diffusion",
)
SAMPLING: dict[str, Callable[[str], Measured]] = {"padded prompts": padded, "graphs": graphs, "same bits": same_bits}
SAMPLING |= {f"graphs, {kind}": partial(acting, kind) for kind in KINDS}
