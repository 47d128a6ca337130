"""A bonus for right answers that follow from their thoughts, as a reference model sees them (Chen et al., GRPO-CARE)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import torch

from mmrl.algorithms.shaping import consistency_bonus
from mmrl.api.episodes import Conversation
from mmrl.api.sampling import Group
from mmrl.compute.ranks import all_reduce_sum
from mmrl.config.sections import ConsistencyConfig
from mmrl.policies.policy import Policy
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.sampling.groups import judged

CONSISTENCY = "consistency"
"""The part of the reward."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for a part of a sign."""


def pay_consistency(
    groups: Sequence[Group], reference_NT: torch.Tensor, policy: Policy, config: ConsistencyConfig
) -> dict[str, float]:
    """Add the bonus to the scores of the groups that are trained on, and return metrics. reference_NT: log-probability of each
    token under the reference model, of all ranks."""
    assert isinstance(policy, VLM)  # see `mmrl.train.checks.run_file`
    rollouts = [r for group in groups for r in group.rollouts]
    texts = TokenTexts(policy.reader.tokenizer)
    confidence_N = torch.zeros(len(rollouts), dtype=torch.float64, device=reference_NT.device)
    for n, rollout in enumerate(rollouts):
        if isinstance(rollout, Conversation) and not rollout.is_stub:
            ids = list(chain.from_iterable(turn.token_ids for turn in rollout.turns))
            answer = answer_tokens(texts(ids), config.opening, config.closing)
            if answer:
                confidence_N[n] = reference_NT[n, answer.start : answer.stop].double().mean().exp()
    confidence_N = all_reduce_sum(confidence_N).cpu()  # each rank knows the tokens of its own
    sure: list[float] = []
    paid = 0
    for group, own_N in zip(groups, confidence_N.split([len(g.rollouts) for g in groups]), strict=True):
        accuracy_N = judged(group, config.verifier)
        bonus_N = consistency_bonus(
            accuracy_N, own_N, bonus=config.bonus, margin=config.margin, cap=config.cap, threshold=config.correct_above
        ).nan_to_num(0.0)
        group.pay(CONSISTENCY, bonus_N.tolist())
        sure += own_N[accuracy_N > config.correct_above].tolist()
        paid += int(bonus_N.count_nonzero())
    found = {"consistency/paid_share": paid / max(1, len(rollouts))}
    return found | ({"consistency/confidence": sum(sure) / len(sure)} if sure else {})


class TokenTexts:
    """The text of each token among others, as a reader sees it. A tokenizer's own names of tokens encode blanks and signs that
    aren't ASCII, and decoding a token alone drops blanks in front and parts of signs."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.before = tokenizer.encode("a", add_special_tokens=False)
        """Tokens in front of all others, as some decoders drop a text's first blank."""
        self.skipped = 0
        self.skipped = len(self._decoded([]))
        self.known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Of a sign that several tokens make up, the last one has the text, and the others none."""
        texts, begun = list[str](), list[int]()
        for id in ids:
            if id not in self.known:
                self.known[id] = self._decoded([id])
            if not begun and BROKEN not in self.known[id]:
                texts.append(self.known[id])
                continue
            begun.append(id)
            whole = self._decoded(begun)
            if whole.endswith(BROKEN) and len(begun) < 4:  # UTF-8 has at most four bytes a sign
                texts.append("")
            else:
                texts.append(whole)
                begun = []
        return [*texts[:-1], self._decoded(begun)] if begun else texts

    def _decoded(self, ids: Sequence[int]) -> str:
        whole: str = self.tokenizer.decode([*self.before, *ids], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return whole[self.skipped :]


def answer_tokens(pieces: Sequence[str], opening: str = "<answer>", closing: str = "</answer>") -> range:
    """The places of the tokens of the last answer: those that begin at the last sign of the opening tag (as a rule its bracket,
    as in GRPO-CARE's code) or after it, to the closing tag or the end. Empty without the opening tag.

    pieces: the tokens' texts, see `TokenTexts`.
    """
    text = "".join(pieces)
    start = text.rfind(opening)
    if start < 0:
        return range(0)
    inside = start + len(opening)
    found = text.find(closing, inside)
    end = found if found >= 0 else len(text)
    begins = list(accumulate(map(len, pieces), initial=0))[:-1]
    chosen = [k for k, begin in enumerate(begins) if inside - 1 <= begin < end]
    return range(chosen[0], chosen[-1] + 1) if chosen else range(0)
