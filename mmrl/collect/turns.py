"""Language worlds: conversations. A single answer to a picture is an episode of one turn."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

from mmrl.data.seeds import derive
from mmrl.generate.local import LocalGenerator, Sample, Sampling
from mmrl.interfaces import Task, World
from mmrl.policies.critic import Critic
from mmrl.policies.reading import PromptInputs
from mmrl.policies.vlm import VLM
from mmrl.targets import PluginError, calling, is_finite
from mmrl.types import Message, Prompt, Reply, Rollout, Status, Turn, replace


class Episode:
    """A conversation with a world, while it goes on."""

    def __init__(self, rollout: Rollout, world: World) -> None:
        """rollout: with its first turn."""
        self.rollout, self.world = rollout, world
        self.turns, self.inputs, self.status = [*rollout.turns], rollout.inputs, rollout.status
        self.observed: tuple[int, ...] = ()
        self.messages: tuple[Message, ...] = ()

    def step(self, policy: VLM) -> bool:
        """Let the world answer to the last turn; whether the episode is over."""
        last, what = self.turns[-1], f"task {self.rollout.prompt.task!r}: its world's step()"
        with calling(what):
            reply = self.world.step(last.text)
        if not isinstance(reply, Reply) or not is_finite(reply.reward):
            raise PluginError(f"{what} must give a mmrl.Reply with a finite reward, not {reply!r:.80}")
        self.turns[-1] = replace(last, reward=float(reply.reward), terminated=bool(reply.terminated))
        if reply.terminated:
            return True
        if not reply.messages:
            raise PluginError(f"{what} neither ends the episode nor says anything: give messages, or terminated=True")
        self.inputs, self.observed = policy.extend(self.inputs, last.token_ids, reply.messages)
        self.messages = tuple(reply.messages)
        return False

    def answer(self, sample: Sample, text: str, version: int) -> None:
        """The policy's next turn."""
        self.turns.append(turn_of(self.observed, sample, text, version, self.messages))
        self.status = status_of(sample)

    def cut_off(self, version: int) -> None:
        """No turn is left: what the world said is observed and nothing follows."""
        silent = Sample(token_ids=(), logprobs=(), finished=False)
        self.turns.append(turn_of(self.observed, silent, "", version, self.messages))
        self.status = Status.TRUNCATED_TURNS

    def ended(self) -> Rollout:
        later = self.inputs if len(self.turns) > 1 else None
        return replace(self.rollout, turns=tuple(self.turns), status=self.status, later=later)


def turn_of(observed: tuple[int, ...], sample: Sample, text: str, version: int, messages: tuple[Message, ...] = ()) -> Turn:
    return Turn(
        observed_ids=observed,
        token_ids=sample.token_ids,
        logprobs=sample.logprobs,
        text=text,
        terminated=sample.finished,
        truncated=not sample.finished,
        version=version,
        messages=messages,
    )


def status_of(sample: Sample) -> Status:
    return Status.FINISHED if sample.finished else Status.TRUNCATED_LENGTH


def _close(world: World, task: str) -> None:
    with calling(f"task {task!r}: its world's close()"):
        world.close()


class TurnCollector:
    """Encodes each prompt once, samples its group, and keeps what was sampled."""

    def __init__(
        self, policy: VLM, generator: LocalGenerator, tasks: Mapping[str, Task] | None = None, max_turns: int = 8
    ) -> None:
        """tasks: label -> task, whose worlds answer. max_turns: after so many an episode is cut off."""
        self.policy, self.generator = policy, generator
        self.critic: Critic | None = None
        """Unused: values of words are measured in the update's own passes."""
        self.advised = False
        self.tasks, self.max_turns = tasks or {}, max_turns

    @property
    def batch_size(self) -> int:
        return self.generator.batch_size

    def figures(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Worlds are closed with their episodes."""

    def ready(self) -> None:
        """Nothing is missing."""

    def encode(self, prompts: Sequence[Prompt]) -> list[PromptInputs]:
        """Prompts as the model reads them."""
        return [self.policy.encode(p) for p in prompts]

    def collect(
        self, prompts: Sequence[Prompt], inputs: Sequence[PromptInputs], group_size: int, sampling: Sampling, version: int = 0
    ) -> list[Rollout]:
        """N = len(prompts) * group_size finished episodes, a group's next to each other."""
        groups = self.generator.generate(inputs, group_size, sampling)
        rollouts = [
            self._rollout(prompt, encoded, sample, group, version)
            for group, (prompt, encoded, samples) in enumerate(zip(prompts, inputs, groups, strict=True))
            for sample in samples
        ]
        with contextlib.ExitStack() as opened:
            episodes = [
                Episode(rollout, world) for rollout in rollouts if (world := self._world(rollout.prompt, opened)) is not None
            ]
            self._go_on(episodes, sampling, version)
        ended = {id(e.rollout): e.ended() for e in episodes}
        return [ended.get(id(r), r) for r in rollouts]

    def _world(self, prompt: Prompt, opened: contextlib.ExitStack) -> World | None:
        """The world of an episode, closed with `opened`."""
        task = self.tasks.get(prompt.task)
        if task is None or type(task).world is Task.world:
            return None
        with calling(f"task {prompt.task!r}: world()"):
            world = task.world(prompt)
        if world is not None:
            opened.callback(_close, world, prompt.task)
        return world

    def _go_on(self, episodes: Sequence[Episode], sampling: Sampling, version: int) -> None:
        """Let the worlds answer and the policy go on, all episodes side by side, until each is over."""
        for number in range(1, self.max_turns + 1):
            episodes = [e for e in episodes if not e.step(self.policy)]
            if not episodes:
                return
            if number == self.max_turns:
                for episode in episodes:
                    episode.cut_off(version)
                return
            again = replace(sampling, seed=derive(sampling.seed, "turn", number))
            samples = self.generator.generate([e.inputs for e in episodes], 1, again)
            for episode, (sample,) in zip(episodes, samples, strict=True):
                episode.answer(sample, self.policy.decode(sample.token_ids), version)

    def demonstrate(self, prompts: Sequence[Prompt], inputs: Sequence[PromptInputs], completions: Sequence[str]) -> list[Rollout]:
        """Rollouts that hold a given completion each; nobody sampled them, so their logprobs are NaN."""
        samples = [self.policy.encode_completion(text) for text in completions]
        return [
            self._rollout(p, i, Sample(token_ids=tuple(ids), logprobs=(math.nan,) * len(ids), finished=True), n, 0)
            for n, (p, i, ids) in enumerate(zip(prompts, inputs, samples, strict=True))
        ]

    def _rollout(self, prompt: Prompt, inputs: PromptInputs, sample: Sample, group: int, version: int) -> Rollout:
        turn = turn_of(tuple(inputs.ids.tolist()), sample, self.policy.decode(sample.token_ids), version)
        return Rollout(prompt=prompt, group=group, turns=(turn,), status=status_of(sample), inputs=inputs)
