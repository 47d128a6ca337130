"""All hooks. The docstrings are the reference; `docs/plugins.md` leads to an example of each.

Hooks are called with keyword arguments, at load time or around a step, never per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from mmrl.api.specs import (
    AlarmSpec,
    AlgorithmSpec,
    FamilySpec,
    PolicySpec,
    SamplingRuleSpec,
    SimulatorSpec,
    StageSpec,
    TaskSpec,
    TrackerSpec,
    VerifierSpec,
)

if TYPE_CHECKING:
    import click

    from mmrl.api.interfaces import RunInfo

CONTRACT = 2
"""Version of these hooks, specs and interfaces. It increases when existing plugins must change. A plugin declares the version
that it was written for as `MMRL_CONTRACT` beside its hooks."""

hookspec = pluggy.HookspecMarker("mmrl")
hookimpl = pluggy.HookimplMarker("mmrl")


@hookspec
def mmrl_tasks() -> Sequence[TaskSpec]:  # type: ignore[empty-body]
    """The tasks that this plugin brings."""


@hookspec
def mmrl_verifiers() -> Sequence[VerifierSpec]:  # type: ignore[empty-body]
    """The verifiers that this plugin brings."""


@hookspec
def mmrl_simulators() -> Sequence[SimulatorSpec]:  # type: ignore[empty-body]
    """The simulators that this plugin brings."""


@hookspec
def mmrl_policies() -> Sequence[PolicySpec]:  # type: ignore[empty-body]
    """The kinds of policy that this plugin brings."""


@hookspec
def mmrl_families() -> Sequence[FamilySpec]:  # type: ignore[empty-body]
    """The families of vision-language models that this plugin brings."""


@hookspec
def mmrl_algorithms() -> Sequence[AlgorithmSpec]:  # type: ignore[empty-body]
    """The algorithms that this plugin brings."""


@hookspec
def mmrl_sampling_rules() -> Sequence[SamplingRuleSpec]:  # type: ignore[empty-body]
    """The sampling rules that this plugin brings: they change a step's groups before the update."""


@hookspec
def mmrl_stages() -> Sequence[StageSpec]:  # type: ignore[empty-body]
    """The kinds of stages that this plugin brings: they decide what a training step does."""


@hookspec
def mmrl_alarms() -> Sequence[AlarmSpec]:  # type: ignore[empty-body]
    """The alarms that this plugin brings: they warn or stop a run when its metrics go wrong."""


@hookspec
def mmrl_trackers() -> Sequence[TrackerSpec]:  # type: ignore[empty-body]
    """The trackers that this plugin brings: they log metrics to places other than the run folder."""


@hookspec
def mmrl_commands(cli: click.Group) -> None:
    """Add commands to `mmrl`; import heavy packages inside the command, not here."""


@hookspec
def mmrl_run_started(run: RunInfo, config: Mapping[str, Any]) -> None:
    """A run begins or is resumed; `config` is the resolved run file as plain data."""


@hookspec
def mmrl_step_finished(run: RunInfo, step: int, metrics: Mapping[str, float]) -> None:
    """A step is done and its metrics are written."""


@hookspec
def mmrl_run_finished(run: RunInfo, status: str) -> None:
    """A run ended. status: `finished`, `stopped` (by the user) or `failed`."""
