"""A conversation with an environment that is not over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mmrl.api.episodes import Conversation
from mmrl.api.errors import EnvironmentFailed
from mmrl.api.interfaces import Environment
from mmrl.api.media.content import State
from mmrl.api.types import Message, Reply, Status, Turn
from mmrl.policies.vlm.routes import Routes
from mmrl.rollout.begun import WritingPolicy
from mmrl.rollout.environments import gold_turn, named_state, step_environment, truncate_environment
from mmrl.rollout.generate.sampling import Completion


class OngoingConversation:
    """A conversation with an environment that is not over."""

    def __init__(self, rollout: Conversation, environment: Environment, close: Callable[[], None], number: int = 0) -> None:
        """rollout: with its first turn. close: closes the environment, once; called as soon as the episode is over, to free its
        resources. number: fixes the random draws of later turns."""
        self.rollout, self.environment, self.close, self.number = rollout, environment, close, number
        self.turns, self.inputs, self.status = [*rollout.turns], rollout.inputs, rollout.status
        self.routes: Routes | None = rollout.routes
        self.media_rows = [media_rows(self.inputs)]
        self.outcome: Mapping[str, float] = {}
        self.reply = Reply()
        """The last of the environment."""
        self.truncated = False
        """Whether the environment was told that the episode ends early."""
        self.lost: EnvironmentFailed | None = None
        self.observed: tuple[int, ...] = ()
        self.messages: tuple[Message, ...] = ()
        self.state: State | None = None
        """That in which the next turn begins, if the environment names it."""

    def step_environment(self, last: bool) -> Reply | EnvironmentFailed:
        """The environment's reply to the last turn, or its failure. last: no turn follows, whatever the reply is."""
        task = self.rollout.prompt.task
        try:
            if len(self.turns) == 1:
                self.turns[0] = replace(self.turns[0], state=named_state(self.environment, task))
            reply = step_environment(self.environment, self.turns[-1].text, task)
            if last and not reply.terminated:
                reply, self.truncated = truncate_environment(self.environment, reply, task), True
            goes_on = not (reply.terminated or last)
            self.state = named_state(self.environment, task) if goes_on else None
        except EnvironmentFailed as lost:
            self.close()
            return lost
        if not goes_on:
            self.close()
        return reply

    def gold(self) -> str | None:
        """The gold completion of the next turn, by the environment; None also if the episode is lost."""
        try:
            return gold_turn(self.environment, self.rollout.prompt.task)
        except EnvironmentFailed as lost:
            self.close()
            self.status, self.lost = Status.ENVIRONMENT_ERROR, lost
            return None

    def add_reply(self, reply: Reply | EnvironmentFailed, policy: WritingPolicy) -> bool:
        """Add the environment's reply; returns whether the episode is over."""
        if isinstance(reply, EnvironmentFailed):
            self.status, self.lost = Status.ENVIRONMENT_ERROR, reply
            return True
        self._paid(reply)
        if reply.terminated:
            return True
        self.inputs, self.observed = policy.extend(self.inputs, self.turns[-1].token_ids, reply.messages)
        self.messages = tuple(reply.messages)
        self.media_rows.append(media_rows(self.inputs))
        return False

    def _paid(self, reply: Reply) -> None:
        """The last turn earns what the environment says."""
        self.reply, self.outcome = reply, reply.outcome
        self.turns[-1] = replace(self.turns[-1], reward=float(reply.reward), terminated=bool(reply.terminated))

    def add_turn(self, sample: Completion, text: str, version: int) -> None:
        """Add the policy's next turn."""
        self.turns.append(replace(make_turn(self.observed, sample, text, version, self.messages), state=self.state))
        self.status = status_of(sample)
        if self.routes and sample.routes:
            self.routes = self.routes.then(sample.routes)
        if sample.lost:
            self.close()
            self.lost = EnvironmentFailed(sample.lost)

    def cut_off(self, version: int, status: Status) -> None:
        """End the episode for lack of turns or tokens, with a last turn that has the environment's reply and no completion."""
        if not self.truncated:
            try:
                self._paid(truncate_environment(self.environment, self.reply, self.rollout.prompt.task))
            except EnvironmentFailed as lost:
                self.status, self.lost = Status.ENVIRONMENT_ERROR, lost
                return self.close()
        self.close()
        silent = Completion(token_ids=(), logprobs=(), finished=False)
        self.turns.append(make_turn(self.observed, silent, "", version, self.messages))
        self.status = status

    def ended(self) -> Conversation:
        final_inputs = self.inputs if len(self.turns) > 1 else None
        inputs: dict[str, Any] = {"final_inputs": final_inputs, "media_rows": tuple(self.media_rows), "routes": self.routes}
        return replace(self.rollout, turns=tuple(self.turns), status=self.status, outcome=self.outcome, **inputs)


def media_rows(inputs: Any) -> Mapping[str, int]:
    """See `Conversation.media_rows`; empty for inputs of a plugin's policy that don't say."""
    found: Mapping[str, int] = getattr(inputs, "media_rows", {})
    return found


def make_turn(observed: tuple[int, ...], sample: Completion, text: str, version: int, messages: tuple[Message, ...] = ()) -> Turn:
    """A turn of a sampled completion. version: of the weights, unless the sampler says which."""
    return Turn(
        observed_ids=observed,
        token_ids=sample.token_ids,
        logprobs=sample.logprobs,
        text=text,
        terminated=sample.finished,
        truncated=not sample.finished,
        policy_version=sample.versions[0][0] if sample.versions else version,
        token_versions=sample.versions if len(sample.versions) > 1 else (),
        messages=messages,
    )


def status_of(sample: Completion) -> Status:
    if sample.lost:
        return Status.ENVIRONMENT_ERROR
    return Status.FINISHED if sample.finished else Status.TRUNCATED_LENGTH
