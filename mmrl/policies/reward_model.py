"""A reward model: a vision-language model with a scalar head, which rates a completion of a prompt.

Its rating takes the place of a completion's log-probability, so a preference stage trains it as it trains a policy: with `loss =
"bradley-terry"`, -log sigmoid(rating of the preferred - rating of the rejected) (Ouyang et al., InstructGPT, equation 1).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmrl.api.errors import UserError, shorten
from mmrl.api.seeds import derive
from mmrl.api.transfer import upload
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import ForwardOutputs, MicroBatch
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.vlm import VLM

HEAD = "reward_head.safetensors"
"""The file with the head's weights, beside those of the model."""


class RewardModel(VLM):
    """A linear head on the last hidden state after a completion. It rates and never writes."""

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None
    ) -> None:
        """A model without a head gets a random one, which `remark` says. Raises UserError for a head of another model."""
        super().__init__(config, device=device, seed=seed, source=source)
        name = str(source or config.model)
        head, is_new = _head(self.width, name, seed)
        self.value = head.to(self.device)
        self.remark = f"{name} has no {HEAD}: its reward head begins at random weights" if is_new else ""

    def outputs(
        self, micro: MicroBatch, temperature: float, *, states: bool = False, entropy_gradient: bool = False
    ) -> ForwardOutputs:
        """The rating of each rollout as the log-probability of its last token, and 0 at all others. temperature: not used."""

        def passed() -> tuple[torch.Tensor, ...]:
            states_QH = self._forward(micro, True)[2]
            assert states_QH is not None
            return (self.value(states_QH[len(micro.source_L) :].float())[:, 0],)

        (ratings_R,) = self._through(passed)
        own_RL = micro.final_rollout_R[:, None] == micro.rollout_L
        place_RL = torch.where(own_RL, torch.arange(len(micro.rollout_L), device=self.device), -1)
        last_R = place_RL.amax(1) if len(place_RL) else micro.rollout_L  # a pass is empty if other ranks have more
        found_L = torch.zeros(len(micro.rollout_L), device=self.device).index_add(0, last_R, ratings_R)
        return ForwardOutputs(logprobs_L=found_L, entropy_L=torch.zeros_like(found_L).detach())

    @torch.no_grad()
    def rate(self, inputs: PromptInputs, completions: Sequence[str]) -> list[float]:
        """The ratings of completions of an encoded prompt; any numbers. The prompt is computed once if the model can share it.
        Equal completions are computed once, and have equal ratings."""
        different = [*dict.fromkeys(completions)]
        ids_G = [self.encode_completion(completion) for completion in different]
        rows = [ids_G] if self.family.shares_prefix else [[ids] for ids in ids_G]
        found = [rating for row in rows for rating in self._ratings(self._row(inputs, row))]
        return [found[different.index(completion)] for completion in completions]

    def _ratings(self, micro: MicroBatch) -> list[float]:
        found_R = torch.zeros(len(micro.final_R), device=self.device)
        return found_R.index_add(0, micro.rollout_L, self.outputs(micro, 1.0).logprobs_L).tolist()

    def _row(self, inputs: PromptInputs, ids_G: Sequence[Sequence[int]]) -> MicroBatch:
        """A row with a prompt and completions."""
        start, lengths = len(inputs.ids), [len(ids) for ids in ids_G]
        ends = start + torch.tensor(lengths).cumsum(0)
        target_L = torch.tensor([token for ids in ids_G for token in ids])
        rollout_L = torch.arange(len(ids_G)).repeat_interleave(torch.tensor(lengths))
        source_L = torch.arange(len(target_L)) + start - 1
        source_L[ends[:-1] - start] = start - 1  # the last token of the prompt comes before the first of every completion
        place_L = torch.cat([torch.arange(length) for length in lengths])
        whole = inputs.answered(target_L, self.family.completion_type)  # but for positions, which begin anew in each completion
        own = {"ids_BS": whole.ids[None], "target_L": target_L, "source_L": source_L, "place_L": place_L}
        own |= {"segment_BS": torch.cat([torch.zeros(start, dtype=torch.long), rollout_L + 1])[None], "final_R": ends - 1}
        own |= {"rollout_L": rollout_L, "final_rollout_R": torch.arange(len(ids_G))}
        if inputs.positions is not None:
            following = (place_L + inputs.next_position).expand(len(inputs.positions), -1)
            own["positions"] = torch.cat([inputs.positions, following], 1)[:, None]
        media = {**whole.media, **{key: values[None] for key, values in whole.token_types.items()}}
        there: dict[str, Any] = upload(own, self.device)
        nothing_L = torch.full((len(target_L),), torch.nan, device=self.device)
        return MicroBatch(
            **({"positions": None} | there),
            media=upload(media, self.device, self.family.on_host),
            sampler_logprobs_L=nothing_L,
            advantages_L=torch.ones_like(nothing_L),
            off_policy_L=torch.zeros_like(nothing_L, dtype=torch.bool),
        )

    def parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """Those of the model, then the head's, which `stages.parts` matches as `value`."""
        yield from super().parameters()
        yield from self.value.named_parameters(prefix="value")

    def clone(self, frozen: bool = False, spread: bool = True) -> RewardModel:
        other = super().clone(frozen, spread)
        assert isinstance(other, RewardModel)
        other.value = copy.deepcopy(self.value).requires_grad_(not frozen)
        return other

    def save(self, folder: Path) -> None:
        """The folder of the model, with the head in a file of its own."""
        super().save(folder)
        save_file({name: tensor.detach().cpu() for name, tensor in self.value.named_parameters()}, folder / HEAD)


def _head(width: int, name: str, seed: int) -> tuple[nn.Linear, bool]:
    """(the head of a folder or hub name, False), or (a new one, True), whose weights have the variance 1 / (width + 1) (Stiennon
    et al., Learning to summarize from human feedback, appendix B.1)."""
    head = nn.utils.skip_init(nn.Linear, width, 1)
    with torch.no_grad():
        head.weight.normal_(0.0, (width + 1) ** -0.5, generator=torch.Generator().manual_seed(derive(seed, "reward head")))
        head.bias.zero_()
    file = _head_file(name)
    if file is None:
        return head, True
    try:
        head.load_state_dict(load_file(file))
    except Exception as error:
        raise UserError(f"{name}/{HEAD} is no head of this model: {shorten(error, 200)}", key="policy.model") from error
    return head, False


def _head_file(name: str) -> str | None:
    """The place of the head's file in a folder or, by a hub name, in the cache, into which it is fetched; None if there is none,
    or none in the cache of a machine that can't reach the hub."""
    from transformers.utils import cached_file

    if name.startswith("tiny:"):
        return None
    found: str | None = cached_file(
        name, HEAD, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )
    return found
