"""Answers of a run file's policy to a few prompts, for previews: of a model here, or of one behind an endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Rollout
from mmrl.compute.devices import prepare_device, resolve_device
from mmrl.config.load import load_config
from mmrl.policies.endpoint import EndpointPolicy
from mmrl.policies.load import make_policy
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry import plugins
from mmrl.rollout.collector import make_collector
from mmrl.rollout.generate.sampling import SamplingParams


class PolicyAnswers:
    """The policy of a run file; its tasks and stages aren't read. Raises UserError for a policy that writes no text."""

    def __init__(self, run_file: Path) -> None:
        self.config = load_config(run_file)
        policy, seed = self.config.policy, derive(self.config.seed, "weights")
        if plugins.registry().get("policies", policy.kind).rates:
            raise UserError(
                f"the policy of {run_file} is a reward model, which writes no answers: mmrl eval {run_file} evaluates it"
            )
        device = resolve_device(policy)
        prepare_device(device, policy.dtype)
        made = make_policy(policy, device=device, seed=seed)
        if not isinstance(made, VLM | EndpointPolicy):
            raise UserError(f"the policy of {run_file}, a {policy.kind}, writes no answers: mmrl eval {run_file} evaluates it")
        self.policy = made

    def answer(self, task: Task, prompts: Sequence[Prompt]) -> list[Rollout]:
        """An answer to each prompt, as `[generate]` and `evaluate.temperature` say; of a task with environments, an episode."""
        label = prompts[0].task
        sampling = SamplingParams(
            max_tokens=self.config.generate.max_tokens,
            temperature=self.config.evaluate.temperature,
            seed=derive(self.config.seed, "preview", label),
            stop=self.config.generate.stop,
        )
        with contextlib.closing(make_collector(self.config, {label: task}, self.policy)) as collector:
            collector.ready()
            return collector.collect(prompts, collector.encode(prompts), 1, sampling, numbers=range(len(prompts)))
