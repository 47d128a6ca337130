"""The embedded sampler: the vision tower and the prompt run once per group, then the group is decoded together."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from transformers import DynamicCache

from mmrl.api.errors import UserError
from mmrl.policies.shard import reshard, unshard
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.prompt_rows import read_prompts
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.decode_graphs import DecodeGraphs
from mmrl.rollout.generate.draw import sample_tokens
from mmrl.rollout.generate.exchange import Versions, WeightExchange, taking_turns
from mmrl.rollout.generate.processor import LogitsProcessor
from mmrl.rollout.generate.room_rows import rows_for
from mmrl.rollout.generate.sampling import Completion, SamplingParams, StopTexts, prompt_seed

LOOK_EVERY = 8
"""Tokens between checks which completions ended: a check waits for the device. Tokens after an end are dropped."""


class LocalGenerator:
    """Samples with the learner's own weights, so there is nothing to synchronise."""

    def __init__(self, policy: VLM, batch_size: int = 256) -> None:
        """batch_size: completions decoded at once."""
        self.policy = policy
        self.batch_size = batch_size
        self.exchange: WeightExchange | None = None
        """Lets new weights in while answers are being sampled; without one they don't change meanwhile."""
        self.graphs: DecodeGraphs | None = None
        """Decodes by CUDA graphs (`generate.cuda_graphs`)."""
        self.look_every = 1 if policy.device.type == "cpu" else LOOK_EVERY

    def ready(self) -> None:
        """Nothing to prepare."""

    def wake_up(self) -> None:
        """Gather the weights, if they are sharded over ranks."""
        if self.policy.root is not None:
            unshard(self.policy.root)

    def sleep(self) -> None:
        """Keep only this rank's shard of the weights, and no graphs."""
        if self.graphs:
            self.graphs.release()
        if self.policy.root is not None:
            reshard(self.policy.root)

    def close(self) -> None:
        """Nothing to release."""

    def generate(
        self, inputs: Sequence[PromptInputs], group_size: int, sampling: SamplingParams, numbers: Sequence[int] = ()
    ) -> list[list[Completion]]:
        """group_size completions of each prompt. The same seed, numbers and inputs give the same samples, up to rounding."""
        numbers = numbers or range(len(inputs))
        at_once = max(1, self.batch_size // group_size) if self.policy.family.pads_prompts else 1
        order = sorted(range(len(inputs)), key=lambda i: len(inputs[i].ids))  # similar lengths together: little padding
        groups: list[list[Completion]] = [[] for _ in inputs]
        with (sampling.logits_processor or LogitsProcessor()).decoding(self.policy.model):
            for start in range(0, len(order), at_once):
                chosen = order[start : start + at_once]
                seeds = [prompt_seed(sampling, numbers[i]) for i in chosen]
                with taking_turns(self.exchange):
                    found = self._decode([inputs[i] for i in chosen], group_size, sampling, seeds)
                for i, group in zip(chosen, found, strict=True):
                    groups[i] = group
        return groups

    @torch.inference_mode()
    def first(self, inputs: Sequence[PromptInputs]) -> torch.Tensor:
        """Float32 log-probabilities [P, V] of the token that follows each prompt, at temperature 1; nothing is sampled."""
        at_once = self.batch_size if self.policy.family.pads_prompts else 1
        order = sorted(range(len(inputs)), key=lambda i: len(inputs[i].ids))
        found: list[torch.Tensor | None] = [None] * len(inputs)
        for start in range(0, len(order), at_once):
            chosen = order[start : start + at_once]
            logits, _ = self.prefill([inputs[i] for i in chosen], DynamicCache(config=self.policy.model.config))
            for i, row in zip(chosen, self.policy.distribution(logits, 1.0), strict=True):
                found[i] = row
        return torch.stack([row for row in found if row is not None])

    def _decode(
        self, inputs: list[PromptInputs], group_size: int, sampling: SamplingParams, seeds: list[int]
    ) -> list[list[Completion]]:
        policy, device = self.policy, self.policy.device
        made = {"eos": torch.tensor(sorted(policy.eos))}
        if sampling.temperature:
            made["drawn_TN"] = uniform_draws(seeds, group_size, sampling.max_tokens)
        rows = rows_for(self, self.graphs, inputs, group_size, sampling, made)
        eos, drawn_TN = rows.beside["eos"], rows.beside.get("drawn_TN")
        versions = Versions(self.exchange)
        logits = rows.logits
        if not torch.isfinite(logits).all():
            cause = ', or activations overflow in float16: try policy.dtype = "bfloat16"' if logits.dtype == torch.float16 else ""
            raise UserError(
                f"the model's logits are not finite: most likely a learning rate was too high; lower it and begin again{cause}"
            )
        total = len(inputs) * group_size
        processor = sampling.logits_processor
        if processor:
            processor.begin(policy, rows.cache, inputs, group_size)
        tokens_TN: list[torch.Tensor] = []
        logprobs_TN: list[torch.Tensor] = []
        length_N = torch.full((total,), sampling.max_tokens, device=device)
        finished_N = torch.zeros(total, dtype=torch.bool, device=device)
        stop, seen = StopTexts(sampling.stop, policy.decode), 0
        for t in range(sampling.max_tokens):
            row_N = rows.row_N
            if processor:
                logits = processor(t, torch.stack(tokens_TN, 1)[row_N] if t else row_N.new_empty(total, 0), logits)
            token, logprob = self._choose(logits, sampling, None if drawn_TN is None else drawn_TN[t, row_N])
            tokens_TN.append(torch.zeros(total, dtype=torch.long, device=device).index_copy_(0, row_N, token))
            logprobs_TN.append(torch.zeros(total, device=device).index_copy_(0, row_N, logprob))
            ended = torch.isin(token, eos) & ~finished_N[row_N]  # tokens of a row after its end don't count
            length_N[row_N] = torch.where(ended, t + 1, length_N[row_N])
            finished_N[row_N] |= ended
            if sampling.stop and ((t + 1) % self.look_every == 0 or t + 1 == sampling.max_tokens):
                _stop(stop, seen, tokens_TN, length_N, finished_N)
                seen = t + 1
            if t + 1 == sampling.max_tokens:
                break
            if (t + 1) % self.look_every == 0:
                alive = ~finished_N[row_N]
                remaining = int(alive.sum())
                if not remaining:
                    break
                if remaining <= len(row_N) // 2:
                    rows.keep(alive.nonzero()[:, 0])
            if self.exchange and self.exchange.wanted:
                self.exchange.let_in()
                versions.note(t + 1)
                logits = rows.again(torch.stack(tokens_TN, 1))
                continue
            with torch.set_grad_enabled(processor.needs_gradient(t + 1)) if processor else contextlib.nullcontext():
                logits = rows.step(tokens_TN[-1], t)
        if processor:
            processor.end(length_N)
        tokens, logprobs = torch.stack(tokens_TN, 1).tolist(), torch.stack(logprobs_TN, 1).tolist()
        lengths = length_N.tolist()
        routes = rows.recorder.routes(lengths) if rows.recorder else [None] * total
        samples = [
            Completion(
                token_ids=tuple(tokens[n][:length]),
                logprobs=tuple(logprobs[n][:length]),
                finished=finished,
                versions=versions.of(length),
                routes=routes[n],
            )
            for n, (length, finished) in enumerate(zip(lengths, finished_N.tolist(), strict=True))
        ]
        return [samples[i : i + group_size] for i in range(0, total, group_size)]

    def _choose(
        self, logits_NV: torch.Tensor, sampling: SamplingParams, drawn_N: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_NV = self.policy.distribution(logits_NV, sampling.temperature or 1.0)
        if drawn_N is None:
            token_N = logprobs_NV.argmax(-1)
        else:
            token_N = sample_tokens(filter_top_p_top_k(logprobs_NV.exp(), sampling.top_p, sampling.top_k), drawn_N)
        return token_N, logprobs_NV.gather(1, token_N[:, None])[:, 0]

    def prefill(self, inputs: list[PromptInputs], cache: DynamicCache) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Fill the cache with the prompts, padded on the left; returns logits [P, V] and the padding mask, if any."""
        return read_prompts(self.policy.family, inputs, self.policy.device, cache)


def _stop(
    stop: StopTexts, seen: int, tokens_TN: Sequence[torch.Tensor], length_N: torch.Tensor, finished_N: torch.Tensor
) -> None:
    """Finish, in place, completions that reached a stop text after their first `seen` tokens, before an end token."""
    rows = torch.stack(list(tokens_TN), 1).tolist()
    found = [
        (n, end)
        for n, (ids, length, finished) in enumerate(zip(rows, length_N.tolist(), finished_N.tolist(), strict=True))
        if (not finished or length > seen) and (end := stop.end(ids[:length], seen)) is not None
    ]
    if found:
        index = torch.tensor([n for n, _ in found], device=length_N.device)
        length_N[index] = torch.tensor([end for _, end in found], device=length_N.device)
        finished_N[index] = True


def uniform_draws(seeds: Sequence[int], group_size: int, length: int) -> torch.Tensor:
    """float64 [T, N] in [0, 1): random numbers of each token of each completion. Those of a group depend on its prompt's seed
    alone."""
    made = [torch.rand(group_size, length, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in seeds]
    return torch.cat(made).T


def filter_top_p_top_k(probabilities_NV: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """The probabilities with those of unlikely tokens set to 0: all but the top_k likeliest, and of these all but the fewest that
    reach top_p of what is left (Holtzman et al., The Curious Case of Neural Text Degeneration, section 3.1)."""
    if top_p == 1 and not top_k:
        return probabilities_NV
    sorted_NV, order_NV = probabilities_NV.sort(-1, descending=True)
    if top_k:
        sorted_NV[:, top_k:] = 0.0
    before_NV = sorted_NV.cumsum(-1) - sorted_NV
    sorted_NV = sorted_NV.where(before_NV < top_p * sorted_NV.sum(-1, keepdim=True), 0.0)
    return torch.zeros_like(sorted_NV).scatter(-1, order_NV, sorted_NV)
