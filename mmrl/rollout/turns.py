"""Conversations with environments. A single answer to a picture is an episode of one turn."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mmrl.api.episodes import Conversation
from mmrl.api.errors import EnvironmentFailed, PluginError, UserError, is_finite, plugin_errors
from mmrl.api.interfaces import Environment, Task
from mmrl.api.seeds import derive
from mmrl.api.types import Message, Prompt, Reply, Status, Turn
from mmrl.compute.ranks import Reduction
from mmrl.data.prompts import check_messages
from mmrl.policies.critic import Critic
from mmrl.policies.vlm.processing import PromptInputs, one_turn
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.sampling import Completion, Generator, SamplingParams

WARNINGS = 5
"""The first lost episodes give a warning each; then one at every power of two."""
STEPPED_PER_CORE = 4
"""Environments that are stepped concurrently, for each core."""


class OngoingConversation:
    """A conversation with an environment that is not over."""

    def __init__(self, rollout: Conversation, environment: Environment, close: Callable[[], None], number: int = 0) -> None:
        """rollout: with its first turn. close: closes the environment, once; called as soon as the episode is over, to free its
        resources. number: fixes the random draws of later turns."""
        self.rollout, self.environment, self.close, self.number = rollout, environment, close, number
        self.turns, self.inputs, self.status = [*rollout.turns], rollout.inputs, rollout.status
        self.outcome: Mapping[str, float] = {}
        self.lost: EnvironmentFailed | None = None
        self.observed: tuple[int, ...] = ()
        self.messages: tuple[Message, ...] = ()

    def step_environment(self, last: bool) -> Reply | EnvironmentFailed:
        """The environment's reply to the last turn, or its failure. last: no turn follows, whatever the reply is."""
        what = f"task {self.rollout.prompt.task!r}: its environment's step()"
        try:
            with plugin_errors(what):
                reply = self.environment.step(self.turns[-1].text)
        except EnvironmentFailed as lost:
            self.close()
            return lost
        if not isinstance(reply, Reply) or not is_finite(reply.reward):
            raise PluginError(f"{what} must give a mmrl.Reply with a finite reward, not {reply!r:.80}")
        outcome = reply.outcome
        if not isinstance(outcome, Mapping) or not all(isinstance(k, str) and is_finite(v) for k, v in outcome.items()):
            raise PluginError(f"{what} must give Reply.outcome as a dict of finite numbers by names, not {outcome!r:.80}")
        check_messages(what, reply.messages)
        if not reply.terminated and not reply.messages:
            raise PluginError(f"{what} neither ends the episode nor gives messages: give messages, or terminated=True")
        if reply.terminated or last:
            self.close()
        return reply

    def gold(self) -> str | None:
        """The gold completion of the next turn, by the environment; None also if the episode is lost."""
        what = f"task {self.rollout.prompt.task!r}: its environment's gold_turn()"
        try:
            with plugin_errors(what):
                text: str | None = self.environment.gold_turn()  # type: ignore[attr-defined]
        except EnvironmentFailed as lost:
            self.close()
            self.status, self.lost = Status.ENVIRONMENT_ERROR, lost
            return None
        if text is not None and not isinstance(text, str):
            raise PluginError(f"{what} must give a text or None, not {text!r:.60}")
        return text

    def add_reply(self, reply: Reply | EnvironmentFailed, policy: VLM) -> bool:
        """Add the environment's reply; returns whether the episode is over."""
        if isinstance(reply, EnvironmentFailed):
            self.status, self.lost = Status.ENVIRONMENT_ERROR, reply
            return True
        last, self.outcome = self.turns[-1], reply.outcome
        self.turns[-1] = replace(last, reward=float(reply.reward), terminated=bool(reply.terminated))
        if reply.terminated:
            return True
        self.inputs, self.observed = policy.extend(self.inputs, last.token_ids, reply.messages)
        self.messages = tuple(reply.messages)
        return False

    def add_turn(self, sample: Completion, text: str, version: int) -> None:
        """Add the policy's next turn."""
        self.turns.append(make_turn(self.observed, sample, text, version, self.messages))
        self.status = status_of(sample)

    def cut_off(self, version: int, status: Status) -> None:
        """End the episode for lack of turns or tokens, with a last turn that has the environment's reply and no completion."""
        self.close()
        silent = Completion(token_ids=(), logprobs=(), finished=False)
        self.turns.append(make_turn(self.observed, silent, "", version, self.messages))
        self.status = status

    def ended(self) -> Conversation:
        final_inputs = self.inputs if len(self.turns) > 1 else None
        return replace(self.rollout, turns=tuple(self.turns), status=self.status, final_inputs=final_inputs, outcome=self.outcome)


def make_turn(observed: tuple[int, ...], sample: Completion, text: str, version: int, messages: tuple[Message, ...] = ()) -> Turn:
    return Turn(
        observed_ids=observed,
        token_ids=sample.token_ids,
        logprobs=sample.logprobs,
        text=text,
        terminated=sample.finished,
        truncated=not sample.finished,
        policy_version=version,
        messages=messages,
    )


def status_of(sample: Completion) -> Status:
    return Status.FINISHED if sample.finished else Status.TRUNCATED_LENGTH


def has_environment(task: Task) -> bool:
    """Whether its episodes may have more than one turn."""
    return type(task).environment is not Task.environment


def _replies(episodes: Sequence[OngoingConversation], last: bool) -> list[Reply | EnvironmentFailed]:
    """The environments' replies; those with `waits` are stepped concurrently. last: no turn follows."""
    waiting = [e for e in episodes if getattr(e.environment, "waits", False)]
    if len(waiting) < 2:
        return [e.step_environment(last) for e in episodes]
    with ThreadPoolExecutor(min(len(waiting), STEPPED_PER_CORE * (os.cpu_count() or 1)), "environment") as pool:
        futures = {id(e): pool.submit(e.step_environment, last) for e in waiting}
        return [futures[id(e)].result() if id(e) in futures else e.step_environment(last) for e in episodes]


def _close(environment: Environment, task: str) -> None:
    try:
        with plugin_errors(f"task {task!r}: its environment's close()"):
            environment.close()
    except EnvironmentFailed as error:  # the episode is over, and what it earned counts
        warnings.warn(f"task {task!r}: an environment could not be closed: {error}", stacklevel=2)


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
        policy: VLM,
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

    def sleep(self) -> None:
        """Put the sampler to sleep; no environment is open between calls."""
        self.generator.sleep()

    def close(self) -> None:
        """Close the sampler; environments are closed with their episodes."""
        self.generator.close()

    def ready(self) -> None:
        """Make the sampler; environments are made with their episodes."""
        self.generator.ready()

    def encode(self, prompts: Sequence[Prompt]) -> list[PromptInputs]:
        """Prompts as the model reads them."""
        return [self.policy.encode(p) for p in prompts]

    def collect(
        self,
        prompts: Sequence[Prompt],
        inputs: Sequence[PromptInputs],
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
        inputs: Sequence[PromptInputs],
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
                if w is not None
            ]
            self._continue(episodes, sampling, version)
        ended = {id(e.rollout): e.ended() for e in episodes}
        for episode in episodes:
            self._warn_if_lost(episode)
        return [ended.get(id(r), r) for r in rollouts]

    def _warn_if_lost(self, episode: OngoingConversation) -> None:
        """Count and warn of a lost episode; see `WARNINGS`."""
        if episode.lost is None:
            return
        self._lost += 1
        self._ever += 1
        if self._ever <= WARNINGS or self._ever & (self._ever - 1) == 0:
            warnings.warn(
                f"task {episode.rollout.prompt.task!r}: an episode was lost, {self._ever} so far: {episode.lost}", stacklevel=2
            )

    def _make_environment(self, prompt: Prompt, opened: contextlib.ExitStack) -> tuple[Environment, Callable[[], None]] | None:
        """The environment of an episode and a function that closes it once; `opened` calls it at the latest."""
        task = self.tasks.get(prompt.task)
        if task is None or not has_environment(task):
            return None
        try:
            with plugin_errors(f"task {prompt.task!r}: environment()"):
                environment = task.environment(prompt)
        except EnvironmentFailed as lost:
            environment = NeverStarted(lost)
        if environment is None:
            return None
        close = functools.cache(functools.partial(_close, environment, prompt.task))
        opened.callback(close)
        if not self.policy.family.goes_on:
            raise UserError(f"task {prompt.task!r} has an environment, but {one_turn(self.policy.family)}", key="policy.model")
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
                episode.add_turn(sample, self.policy.decode(sample.token_ids), version)

    def demonstrate(
        self, prompts: Sequence[Prompt], inputs: Sequence[PromptInputs], completions: Sequence[str]
    ) -> list[Conversation]:
        """Rollouts that begin with a given completion each, and go on with their environments' `gold_turn`, if they have one.
        They are not sampled, so their logprobs are NaN."""
        rollouts = [
            self._rollout(p, i, self._gold(text), n, 0)
            for n, (p, i, text) in enumerate(zip(prompts, inputs, completions, strict=True))
        ]
        with contextlib.ExitStack() as opened:
            environments = [self._make_environment(prompt, opened) for prompt in prompts]
            both = zip(rollouts, environments, strict=True)
            demonstrations = [OngoingConversation(r, *w) for r, w in both if w is not None and hasattr(w[0], "gold_turn")]
            self._continue_demonstrations(demonstrations)
        for episode in demonstrations:
            self._warn_if_lost(episode)
        ended = {id(e.rollout): e.ended() for e in demonstrations}
        return [ended.get(id(r), r) for r in rollouts]

    def _continue_demonstrations(self, episodes: Sequence[OngoingConversation]) -> None:
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
                full = len(episode.inputs.ids) + len(self.policy.encode_completion(text or "")) > self.max_context
                if text is None or full:
                    episode.cut_off(0, Status.TRUNCATED_LENGTH if full else Status.TRUNCATED_TURNS)
                else:
                    episode.add_turn(self._gold(text), text, 0)
            episodes = [e for e in episodes if not e.status.is_truncated and not e.lost]

    def _gold(self, text: str) -> Completion:
        ids = self.policy.encode_completion(text)
        return Completion(token_ids=tuple(ids), logprobs=(math.nan,) * len(ids), finished=True)

    def _rollout(self, prompt: Prompt, inputs: PromptInputs, sample: Completion, group: int, version: int) -> Conversation:
        turn = make_turn(tuple(inputs.ids.tolist()), sample, self.policy.decode(sample.token_ids), version)
        return Conversation(prompt=prompt, group=group, turns=(turn,), status=status_of(sample), inputs=inputs)
