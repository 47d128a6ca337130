"""Conversations with environments. A single answer to a picture is an episode of one turn."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from mmrl.api.episodes import Conversation
from mmrl.api.errors import EnvironmentFailed, UserError, warns_of_loss
from mmrl.api.interfaces import Environment, Task
from mmrl.api.sampling import Continued
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Reply, Status
from mmrl.compute.ranks import Reduction
from mmrl.policies.critic import Critic
from mmrl.rollout.begun import WritingPolicy, answer_text, demonstrated, go_on
from mmrl.rollout.environments import close_environment, has_environment, make_environment
from mmrl.rollout.generate.sampling import Completion, Generator, Interruptible, SamplingParams
from mmrl.rollout.ongoing import OngoingConversation, make_turn, status_of

STEPPED_PER_CORE = 4
"""Environments that are stepped concurrently, for each core."""


def _replies(episodes: Sequence[OngoingConversation], last: bool) -> list[Reply | EnvironmentFailed]:
    """The environments' replies; those with `waits` are stepped concurrently. last: no turn follows."""
    waiting = [e for e in episodes if getattr(e.environment, "waits", False)]
    if len(waiting) < 2:
        return [e.step_environment(last) for e in episodes]
    with ThreadPoolExecutor(min(len(waiting), STEPPED_PER_CORE * (os.cpu_count() or 1)), "environment") as pool:
        futures = {id(e): pool.submit(e.step_environment, last) for e in waiting}
        return [futures[id(e)].result() if id(e) in futures else e.step_environment(last) for e in episodes]


class NeverStarted:
    """The environment of an episode that is lost from its start."""

    def __init__(self, why: EnvironmentFailed) -> None:
        self.why = why

    def step(self, completion: str) -> Reply:
        raise self.why

    def close(self) -> None:
        """There is nothing to close."""


class ConversationCollector:
    """Encodes each prompt once and samples its group."""

    reductions: Mapping[str, Reduction] = {}

    def __init__(
        self,
        policy: WritingPolicy,
        generator: Generator,
        tasks: Mapping[str, Task] | None = None,
        max_turns: int = 8,
        max_context: int | None = None,
    ) -> None:
        """tasks: label -> task, which makes the environments. max_turns: turns after which an episode is truncated.
        max_context: maximum of tokens of a conversation with its next answer, by default the model's own limit."""
        self.policy, self.generator = policy, generator
        self.critic: Critic | None = None
        """Unused: values of tokens are computed in the update's own passes."""
        self.with_expert = False
        self.tasks, self.max_turns = tasks or {}, max_turns
        self.max_context = max_context or policy.longest
        self._lost = self._ever = 0

    @property
    def batch_size(self) -> int:
        return self.generator.batch_size

    def metrics(self) -> dict[str, float]:
        """Number of lost episodes since the last call, if tasks have environments."""
        lost, self._lost = self._lost, 0
        return {"environment/lost": float(lost)} if any(has_environment(task) for task in self.tasks.values()) else {}

    def wake_up(self) -> None:
        """Prepare the sampler."""
        self.generator.wake_up()

    def renew(self, version: int) -> None:
        """Interrupt the sampler."""
        assert isinstance(self.generator, Interruptible), "the run file asks for no sampler that can be interrupted"
        self.generator.renew(version)

    def sleep(self) -> None:
        """Put the sampler to sleep; no environment is open between calls."""
        self.generator.sleep()

    def close(self) -> None:
        """Close the sampler; environments are closed with their episodes."""
        self.generator.close()

    def ready(self) -> None:
        """Make the sampler; environments are made with their episodes."""
        self.generator.ready()

    def encode(self, prompts: Sequence[Prompt]) -> list[Any]:
        """Prompts as the model reads them."""
        return [self.policy.encode(p) for p in prompts]

    def collect(
        self,
        prompts: Sequence[Prompt],
        inputs: Sequence[Any],
        group_size: int,
        sampling: SamplingParams,
        version: int = 0,
        numbers: Sequence[int] = (),
    ) -> list[Conversation]:
        """N = len(prompts) * group_size finished episodes, a group's next to each other."""
        numbers = numbers or range(len(prompts))
        at_once = max(1, self.batch_size // group_size)
        if len(prompts) <= at_once or not any(has_environment(self.tasks[p.task]) for p in prompts if p.task in self.tasks):
            return self._collected(prompts, inputs, group_size, sampling, version, numbers)
        rollouts: list[Conversation] = []
        for first in range(0, len(prompts), at_once):  # each environment may be a browser's page: all at once are too many
            part = slice(first, first + at_once)
            collected = self._collected(prompts[part], inputs[part], group_size, sampling, version, numbers[part])
            rollouts += [replace(rollout, group=rollout.group + first) for rollout in collected]
        return rollouts

    def _collected(
        self,
        prompts: Sequence[Prompt],
        inputs: Sequence[Any],
        group_size: int,
        sampling: SamplingParams,
        version: int,
        numbers: Sequence[int],
    ) -> list[Conversation]:
        with contextlib.ExitStack() as opened:
            # environments start while completions are sampled
            environments = [self._make_environment(prompt, opened) for prompt in prompts for _ in range(group_size)]
            groups = self.generator.generate(inputs, group_size, sampling, numbers)
            rollouts = [
                self._rollout(prompt, encoded, sample, group, version)
                for group, (prompt, encoded, samples) in enumerate(zip(prompts, inputs, groups, strict=True))
                for sample in samples
            ]
            own = [number * group_size + g for number in numbers for g in range(group_size)]
            episodes = [
                OngoingConversation(r, *w, number)
                for r, w, number in zip(rollouts, environments, own, strict=True)
                if w is not None and r.status is not Status.ENVIRONMENT_ERROR
            ]
            self._continue(episodes, sampling, version)
        for prompt, sample in zip((p for p in prompts for _ in range(group_size)), (s for g in groups for s in g), strict=True):
            self._warn_if_lost(prompt.task, sample.lost)
        ended = {id(e.rollout): e.ended() for e in episodes}
        for episode in episodes:
            self._warn_if_lost(episode.rollout.prompt.task, episode.lost)
        return [ended.get(id(r), r) for r in rollouts]

    def _warn_if_lost(self, task: str, why: EnvironmentFailed | str | None) -> None:
        """Count and warn of a lost episode; see `warns_of_loss`. why: empty if it isn't lost."""
        if not why:
            return
        self._lost += 1
        self._ever += 1
        if warns_of_loss(self._ever):
            warnings.warn(f"task {task!r}: an episode was lost, {self._ever} so far: {why}", stacklevel=2)

    def _make_environment(self, prompt: Prompt, opened: contextlib.ExitStack) -> tuple[Environment, Callable[[], None]] | None:
        """The environment of an episode and a function that closes it once; `opened` calls it at the latest."""
        task = self.tasks.get(prompt.task)
        if task is None or not has_environment(task):
            return None
        environment: Environment | None
        try:
            environment = make_environment(task, prompt)
        except EnvironmentFailed as lost:
            environment = NeverStarted(lost)
        if environment is None:
            return None
        close = functools.cache(functools.partial(close_environment, environment, prompt.task))
        opened.callback(close)
        try:
            self.policy.check_turns()
        except UserError as error:
            raise UserError(f"task {prompt.task!r} has an environment, but {error}", key="policy.model") from None
        return environment, close

    def _continue(self, episodes: Sequence[OngoingConversation], sampling: SamplingParams, version: int) -> None:
        """Step the environments and sample the policy's turns, all episodes together, until each is over."""
        for number in range(1, self.max_turns + 1):
            last = number == self.max_turns
            episodes = [
                e for e, reply in zip(episodes, _replies(episodes, last), strict=True) if not e.add_reply(reply, self.policy)
            ]
            if last:
                for episode in episodes:
                    episode.cut_off(version, Status.TRUNCATED_TURNS)
                return
            full = [e for e in episodes if len(e.inputs.ids) + sampling.max_tokens > self.max_context]
            for episode in full:
                episode.cut_off(version, Status.TRUNCATED_LENGTH)
            episodes = [e for e in episodes if e not in full]
            if not episodes:
                return
            again = replace(sampling, seed=derive(sampling.seed, "turn", number))
            samples = self.generator.generate([e.inputs for e in episodes], 1, again, [e.number for e in episodes])
            for episode, (sample,) in zip(episodes, samples, strict=True):
                episode.add_turn(sample, answer_text(self.policy, sample.token_ids), version)
            episodes = [e for e in episodes if not e.lost]

    def demonstrate(
        self, prompts: Sequence[Prompt], inputs: Sequence[Any], completions: Sequence[str], learned: bool = True
    ) -> list[Conversation]:
        """Rollouts that begin with a given completion each, and go on with their environments' `gold_turn`, if they have one.
        They are not sampled, so their logprobs are NaN. learned: see `mmrl.rollout.begun.demonstrated`."""
        rollouts = [
            self._rollout(p, i, demonstrated(self.policy, text, learned), n, 0)
            for n, (p, i, text) in enumerate(zip(prompts, inputs, completions, strict=True))
        ]
        with contextlib.ExitStack() as opened:
            environments = [self._make_environment(prompt, opened) for prompt in prompts]
            both = zip(rollouts, environments, strict=True)
            demonstrations = [OngoingConversation(r, *w) for r, w in both if w is not None and hasattr(w[0], "gold_turn")]
            self._continue_demonstrations(demonstrations, learned)
        for episode in demonstrations:
            self._warn_if_lost(episode.rollout.prompt.task, episode.lost)
        ended = {id(e.rollout): e.ended() for e in demonstrations}
        return [ended.get(id(r), r) for r in rollouts]

    def try_answers(self, prompts: Sequence[Prompt], inputs: Sequence[Any], completions: Sequence[str]) -> list[Conversation]:
        return self.demonstrate(prompts, inputs, completions, learned=False)

    def go_on(
        self, rollouts: Sequence[Conversation], begun: Sequence[str], sampling: SamplingParams, **options: Any
    ) -> list[Continued]:
        """See `mmrl.rollout.begun.go_on`."""
        return go_on(self.policy, self.generator, rollouts, begun, sampling, max_context=self.max_context, **options)

    def _continue_demonstrations(self, episodes: Sequence[OngoingConversation], learned: bool) -> None:
        """Step the environments of demonstrations, with their gold turns, until each episode is over."""
        for number in range(1, self.max_turns + 1):
            last = number == self.max_turns
            episodes = [
                e for e, reply in zip(episodes, _replies(episodes, last), strict=True) if not e.add_reply(reply, self.policy)
            ]
            for episode in episodes:
                text = None if last else episode.gold()
                if episode.lost:
                    continue
                given = None if text is None else demonstrated(self.policy, text, learned)
                full = len(episode.inputs.ids) + (len(given.token_ids) if given else 1) > self.max_context
                if given is None or full:
                    episode.cut_off(0, Status.TRUNCATED_LENGTH if full else Status.TRUNCATED_TURNS)
                else:
                    episode.add_turn(given, answer_text(self.policy, given.token_ids), 0)
            episodes = [e for e in episodes if not e.status.is_truncated and not e.lost]

    def _rollout(self, prompt: Prompt, inputs: Any, sample: Completion, group: int, version: int) -> Conversation:
        turn = make_turn(tuple(inputs.ids.tolist()), sample, answer_text(self.policy, sample.token_ids), version)
        told: dict[str, Any] = {"inputs": inputs, "routes": sample.routes}
        return Conversation(prompt=prompt, group=group, turns=(turn,), status=status_of(sample), **told)
