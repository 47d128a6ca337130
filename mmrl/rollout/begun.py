"""Answers that go on from a given text. As much of it as the policy had sampled keeps its tokens and log-probabilities; the rest
is encoded, and behind it the policy samples on."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.sampling import Continued
from mmrl.api.types import Message, Prompt, Status, Turn
from mmrl.policies.vlm.chat_templates import CLOSE, OPEN, without_opening
from mmrl.policies.vlm.routes import Routes
from mmrl.rollout.generate.exchange import Stretch
from mmrl.rollout.generate.sampling import Completion, Generator, SamplingParams

SPLIT = 4
"""Tokens at most that a character is divided into, so that a text may grow shorter with one token more."""


class BeginningPolicy(Protocol):
    """What going on needs of a policy that writes. `Any` are its own inputs."""

    def begun(self, inputs: Any, token_ids: Sequence[int]) -> Any:
        """Inputs after the first tokens of an answer. Raises UserError if the policy can't go on with a begun answer."""
        ...

    @property
    def opening(self) -> str:
        """What the chat template writes of each answer, before the policy's own tokens."""
        ...

    def encode_completion(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class WritingPolicy(BeginningPolicy, Protocol):
    """What the collector needs of a policy that writes. `Any` are its own inputs: prompts as it reads them."""

    @property
    def longest(self) -> int:
        """The largest number of tokens of a conversation."""
        ...

    def encode(self, prompt: Prompt) -> Any: ...

    def extend(self, inputs: Any, token_ids: Sequence[int], messages: Sequence[Message]) -> tuple[Any, tuple[int, ...]]:
        """(inputs after a turn and the reply to it, ids of the reply)."""
        ...

    def check_turns(self) -> None:
        """Raise UserError if a conversation can't go on after an answer."""


def answer_text(policy: BeginningPolicy, ids: Sequence[int]) -> str:
    """The text of an answer of these tokens, with what the chat template has written of it."""
    return f"{policy.opening}{policy.decode(ids)}"


def demonstrated(policy: BeginningPolicy, text: str, learned: bool = True) -> Completion:
    """A given answer as a completion. Where the chat template opens the thinking and the answer doesn't close it, it is refused
    with a UserError if it is to be learned, and otherwise stands behind thinking that ends at once."""
    if policy.opening and CLOSE not in text:
        if not learned:
            return _told(policy, f"{CLOSE}\n\n{text}")
        raise UserError(
            f"the model's chat template begins each answer with {OPEN}, and the given answer {text!r:.60} has no {CLOSE}: set "
            "policy.chat_template_kwargs = {enable_thinking = false} if the template reads it, or write thinking into the answers"
        )
    return _told(policy, text)


def go_on(
    policy: BeginningPolicy,
    generator: Generator,
    rollouts: Sequence[Conversation],
    begun: Sequence[str],
    sampling: SamplingParams,
    version: int = 0,
    numbers: Sequence[int] = (),
    most: int | None = None,
    endings: Sequence[str | None] = (),
    max_context: int = 0,
) -> list[Continued]:
    """See `StepSampler.go_on`. rollouts: of one turn. version: of the weights, unless the sampler says which. numbers: of the
    rollouts, which fix their random draws. endings: for each rollout what comes in the place of what would be sampled, if not
    None. max_context: tokens of a prompt and its answer at most, 0 for any number. Raises UserError for a begun answer that fills
    it."""
    own = ["" if policy.opening.startswith(text) else without_opening(text, policy.opening) for text in begun]
    starts = [_beginning(policy, r.turns[0], text) for r, text in zip(rollouts, own, strict=True)]
    rooms = [max(sampling.max_tokens - len(turn.token_ids), 0) if most is None else most for turn, _ in starts]
    given, numbers = endings or [None] * len(rollouts), numbers or range(len(rollouts))
    samples = [
        Completion(token_ids=(), logprobs=(), finished=False) if text is None else _told(policy, text, behind=True)
        for text in given
    ]
    asked = [n for n, room in enumerate(rooms) if room and given[n] is None]
    for n in asked if max_context else ():
        rooms[n] = min(rooms[n], _left(rollouts[n], starts[n][0], max_context))
    inputs = [policy.begun(rollouts[n].inputs, starts[n][0].token_ids) for n in asked]
    if asked:
        how = replace(sampling, max_tokens=max(rooms[n] for n in asked))
        for n, (sample,) in zip(asked, generator.generate(inputs, 1, how, [numbers[n] for n in asked]), strict=True):
            samples[n] = _cut(sample, rooms[n])
    return [_continued(policy, r, *start, s, version) for r, start, s in zip(rollouts, starts, samples, strict=True)]


def num_kept(decode: Callable[[Sequence[int]], str], ids: Sequence[int], text: str) -> int:
    """The largest number of tokens, counted from the first, with whose text the given one begins; without tokens at their end
    that have no text, such as the one that ends an answer."""
    alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(decode(ids), text, strict=False)))
    first = bisect.bisect_right(range(1, len(ids) + 1), alike, key=lambda n: len(decode(ids[:n])))
    found = next((n for n in range(min(first + SPLIT, len(ids)), 0, -1) if text.startswith(decode(ids[:n]))), 0)
    while found and decode(ids[:found]) == decode(ids[: found - 1]):
        found -= 1
    return found


def _beginning(policy: BeginningPolicy, turn: Turn, text: str) -> tuple[Turn, int]:
    """(the turn with which an answer begins, how many of its tokens were sampled; the others are given)."""
    kept = num_kept(policy.decode, turn.token_ids, text)
    first = turn.token_ids[:kept]
    words = _encoded(policy, text[len(policy.decode(first)) :])[:-1]  # without the end token
    if words and policy.decode((*first, *words[1:])) == text:  # a tokenizer that begins every text with a blank
        words = words[1:]
    ids, logprobs = (*first, *words), (*turn.logprobs[:kept], *[math.nan] * len(words))
    return replace(turn, token_ids=ids, logprobs=logprobs), kept


def _left(rollout: Conversation, begun: Turn, max_context: int) -> int:
    """Tokens that fit behind a begun answer. Raises UserError if none does."""
    prompt, answer = len(begun.observed_ids), len(begun.token_ids)
    if prompt + answer >= max_context:
        raise UserError(
            f"task {rollout.prompt.task!r}: a begun answer of {answer} tokens behind a prompt of {prompt} fills the context of "
            f"{max_context}, so that it can't go on: raise generate.max_context, at most to the model's limit, lower "
            "generate.max_tokens, or leave the rule out that asks for it"
        )
    return max_context - prompt - answer


def _encoded(policy: BeginningPolicy, text: str) -> Sequence[int]:
    """The ids of a text that stands behind what the chat template has written, and so keeps a `<think>` of its own."""
    return policy.encode_completion(f"{policy.opening}{text}")


def _told(policy: BeginningPolicy, text: str, behind: bool = False) -> Completion:
    """A text that was not sampled, as a completion. behind: it stands behind what the chat template has written."""
    ids = tuple(_encoded(policy, text) if behind else policy.encode_completion(text))
    return Completion(token_ids=ids, logprobs=(math.nan,) * len(ids), finished=True)


def _cut(sample: Completion, room: int) -> Completion:
    """As if no more tokens had been asked for. Each answer has a limit of its own, and all are sampled together."""
    if len(sample.token_ids) <= room:
        return sample
    stretches = _first(sample.versions, room)
    return replace(sample, token_ids=sample.token_ids[:room], logprobs=sample.logprobs[:room], finished=False, versions=stretches)


def _continued(
    policy: BeginningPolicy, rollout: Conversation, begun: Turn, kept: int, sample: Completion, version: int
) -> Continued:
    before, ids = rollout.turns[0], (*begun.token_ids, *sample.token_ids)
    known = before.token_versions or ((before.policy_version, len(before.token_ids)),)
    later = sample.versions or ((version, len(sample.token_ids)),)
    given = (later[0][0], len(begun.token_ids) - kept)  # given words count as those that follow them
    versions = _joined([*_first(known, kept), given, *later])
    turn = replace(
        begun,
        token_ids=ids,
        logprobs=(*begun.logprobs, *sample.logprobs),
        text=answer_text(policy, ids),
        terminated=sample.finished,
        truncated=not sample.finished,
        policy_version=versions[0][0] if versions else version,
        token_versions=versions if len(versions) > 1 else (),
    )
    status = Status.FINISHED if sample.finished else Status.TRUNCATED_LENGTH
    whole = replace(rollout, turns=(turn,), status=status, routes=_routes(rollout.routes, kept, sample.routes, len(ids)))
    return Continued(rollout=whole, text=policy.decode(sample.token_ids), tokens=len(sample.token_ids))


def _first(stretches: Sequence[Stretch], count: int) -> tuple[Stretch, ...]:
    """Those of the first `count` tokens."""
    found = []
    for version, size in stretches:
        found.append((version, min(size, count)))
        count -= found[-1][1]
    return _joined(found)


def _joined(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Without empty ones; neighbours of one version are one."""
    found: list[Stretch] = []
    for version, size in stretches:
        if found and found[-1][0] == version:
            found[-1] = (version, found[-1][1] + size)
        elif size:
            found.append((version, size))
    return tuple(found)


def _routes(known: Routes | None, kept: int, later: Routes | None, length: int) -> Routes | None:
    """Those of a whole answer of `length` tokens, the last of which has none. Sampled tokens keep theirs."""
    if known is None or later is None:
        return None
    whole = Routes(known.prompt_PMK, known.after_AMK[:kept]).then(later)
    return Routes(whole.prompt_PMK, whole.after_AMK[: length - 1])
