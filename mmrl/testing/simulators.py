"""The rules for simulators. A check of a capability is skipped for simulators that don't declare it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import PluginError, UserError
from mmrl.api.simulators.types import Observation
from mmrl.api.specs import SimulatorSpec
from mmrl.registry.simulator_methods import RENDERS, missing_methods
from mmrl.testing.checks import CheckFailed, Report, run_checks
from mmrl.testing.simulator_repeats import GENERATORS, REPEATS
from mmrl.testing.simulator_subject import STEPS, SimulatorSubject, assert_equal, rows, run

if TYPE_CHECKING:
    import torch

LONGEST = 300
"""Longest time limit that is checked, in steps."""


def check_simulator(
    spec: SimulatorSpec,
    make: Callable[..., Any] | None = None,
    n: int = 4,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Report:
    """Check a simulator with n environments (2 or more). make: makes a simulator that is not installed; by default the spec's
    target. It is called as `make(num_envs=, device=, **options)`, for screens as `make(**options)`."""
    from mmrl.registry import plugins
    from mmrl.registry.importing import FILLED, build_errors, check_options

    if spec.screens:
        from mmrl.testing.screens import check_screens

        return check_screens(spec, make, options)
    wanted = {**spec.options, **(options or {})}
    target = make or plugins.registry().target(spec)
    check_options(f"simulator {spec.id!r}", target, wanted, filled=FILLED["simulators"])

    def build(count: int) -> Any:
        with build_errors(f"simulator {spec.id!r}", target, wanted):
            return target(num_envs=count, device=device, **wanted)

    subject = SimulatorSubject(spec, build, n, device)
    subject.used = build(n)  # wrong options are the caller's UserError, not a failed check
    try:
        return Report(spec.id, "simulator", run_checks(subject, GATES, CHECKS))
    finally:
        subject.close()


def methods_are_there(subject: SimulatorSubject) -> None:
    """The simulator has reset, step and close, and the methods of its capabilities."""
    if lacks := missing_methods(subject.spec, subject.used):
        raise CheckFailed(lacks)


def observations_are_as_declared(subject: SimulatorSubject) -> None:
    """A reset gives n rows: images of declared cameras, uint8 [n, H, W, 3]; a state, float32 [n, S]; an instruction for each."""
    with subject.instance() as simulator:
        observation = simulator.reset(subject.seeds(subject.n))
        _check_observation(subject, observation, "reset()")
        if subject.spec.cameras and not observation.images and any(map(subject.can, RENDERS)):
            raise CheckFailed(f"reset() gave no image: the spec has the cameras {', '.join(subject.spec.cameras)}")


def transitions_are_as_declared(subject: SimulatorSubject) -> None:
    """A step gives N rows: finite float32 rewards, bool flags, and the spec's parts, float32 from 0 to 1. No environment is
    lost."""
    import torch

    from mmrl.rollout.simulators.shapes import check_parts, check_reward, check_transition

    with subject.instance() as simulator:
        seeds = subject.seeds(subject.n)
        simulator.reset(seeds)
        every = torch.ones_like(seeds, dtype=torch.bool)
        for step in range(STEPS):
            moved = simulator.step(subject.actions(simulator, seeds, step), every)
            with _faults():
                check_transition("step()", moved, subject.n, None, None)
            for name, value in rows(subject, moved).items():  # raises if an environment is lost
                _check_device(subject, f"{name} of step()", value)
            _check_observation(subject, moved.observation, "step()")
            if set(moved.parts) != set(subject.spec.parts):
                raise CheckFailed(
                    f"the parts of a step are {sorted(moved.parts)} and the spec's {sorted(subject.spec.parts)}: make them equal"
                )
            with _faults():
                check_parts("step()", moved.parts, every)
                check_reward("step()", moved.reward_N, every)


def frames_keep_their_size(subject: SimulatorSubject) -> str | None:
    """The images of a camera, and the state, have the same size in every observation."""
    with subject.instance() as simulator:
        seeds = subject.seeds(subject.n)
        first = simulator.reset(seeds)
        _check_observation(subject, run(subject, simulator, seeds, 1)[-1].observation, "a step after a reset", first)
        _check_observation(subject, simulator.reset(seeds + 5), "a second reset", first)
    return None if first.images or first.state is not None else "its observations have neither images nor a state"


def nan_is_refused(subject: SimulatorSubject) -> None:
    """NaN in the action of an active environment raises UserError."""
    _refused(subject, "an action with NaN", lambda actions, active: (actions * float("nan"), active))


def wrong_shapes_are_refused(subject: SimulatorSubject) -> None:
    """Actions with another number of rows or dims raise UserError."""
    _refused(subject, "an action with one dim too few", lambda actions, active: (actions[:, :-1], active))
    _refused(subject, "actions for one environment too few", lambda actions, active: (actions[:-1], active))
    _refused(subject, "a flat action", lambda actions, active: (actions.flatten(), active))


def actions_are_clipped(subject: SimulatorSubject) -> None:
    """Actions outside of [-1, 1] have the effect of the clipped actions."""
    import torch

    seeds = subject.seeds(subject.n)
    futures = []
    for factor in (1.0, 7.0):
        with subject.instance() as simulator:
            simulator.reset(seeds)
            signs = [torch.sign(subject.actions(simulator, seeds, step)) * factor for step in range(2)]
            active = torch.ones_like(seeds, dtype=torch.bool)
            futures.append([rows(subject, simulator.step(a, active)) for a in signs])
    assert_equal(futures[0], futures[1], "actions were 7 times too large", "clip them: actions_NA.clamp(-1, 1)")


def the_time_limit_is_the_engines(subject: SimulatorSubject) -> str | None:
    """The simulator doesn't set `truncated` when the time limit is reached: mmrl does."""
    import torch

    with subject.instance(2) as simulator:
        limit = getattr(simulator, "max_steps", 0) or subject.spec.max_steps
        if not 0 < limit <= LONGEST:
            return f"skipped: its limit is {limit} steps, and only limits from 1 to {LONGEST} are checked"
        seeds = subject.seeds(2)
        simulator.reset(seeds)
        actions = torch.zeros(2, subject.action(simulator).dims, device=subject.device)
        for step in range(1, limit + 2):
            moved = simulator.step(actions, torch.ones_like(seeds, dtype=torch.bool))
            if step >= limit and moved.truncated_N.all():
                raise CheckFailed(
                    f"truncated_N is True after {step} steps, the limit of an episode: leave it False unless the simulator "
                    "itself can't go on; mmrl applies the limit"
                )
            if moved.truncated_N.all():
                return f"it truncated its episodes after {step} steps"
    return None


def variants_reset(subject: SimulatorSubject) -> str | None:
    """Every variant of the spec can be started, with the same result each time, and an unknown variant raises UserError."""
    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        for variant in subject.spec.variants:
            shown = simulator.reset(seeds, variant=variant)
            _check_observation(subject, shown, f"reset() with variant {variant!r}")
            run(subject, simulator, seeds, 1)
            again = simulator.reset(seeds, variant=variant)
            assert_equal([rows(subject, shown)], [rows(subject, again)], f"variant {variant!r} was reset again", GENERATORS)
        try:
            simulator.reset(seeds, variant="no-such.variant")
        except UserError:
            pass
        else:
            raise CheckFailed("an unknown variant was accepted: raise UserError, or an evaluation measures the wrong environment")
        simulator.reset(seeds)
    return None if subject.spec.variants else "it has no variants"


def expert_is_in_range(subject: SimulatorSubject) -> str | None:
    """The expert's actions are float32 [N, A], finite and within [-1, 1], and `expert` changes nothing."""
    import torch

    if not subject.can("expert"):
        return "skipped: its spec has no capability `expert`"
    seeds = subject.seeds(subject.n)
    futures = []
    for with_expert in (False, True):
        with subject.instance() as simulator:
            simulator.reset(seeds)
            steps = []
            for step in range(STEPS):
                if with_expert:
                    actions = simulator.expert()
                    shape = (subject.n, subject.action(simulator).dims)
                    _check_tensor(subject, "expert()", "its result", actions, torch.float32, shape)
                    if not (actions.isfinite() & (actions.abs() <= 1)).all():
                        raise CheckFailed("expert() gives numbers outside of [-1, 1] or not finite: clip its actions")
                steps += [rows(subject, m) for m in run(subject, simulator, seeds, 1, start=step)]
            futures.append(steps)
    assert_equal(futures[0], futures[1], "expert() was called", "it must not change the state or draw from a generator")
    return None


def render_gives_pictures(subject: SimulatorSubject) -> str | None:
    """`render` gives uint8 [n, H, W, 3], in the order of env_ids_n."""
    import torch

    if not any(map(subject.can, RENDERS)):
        return f"skipped: its spec has no capability {' or '.join(f'`{name}`' for name in RENDERS)}"
    with subject.instance() as simulator:
        simulator.reset(subject.seeds(subject.n))
        shown = simulator.render(subject.numbers([1, 0]))
        _check_tensor(subject, "render()", "its result", shown, torch.uint8, (2, "H", "W", 3))
        if not (simulator.render(subject.numbers([0]))[0] == shown[1]).all():
            raise CheckFailed("render() of environment 0 alone gives another image than with others: keep the order of env_ids_n")
    return None


def close_may_come_twice(subject: SimulatorSubject) -> None:
    """A second `close` does nothing."""
    simulator = subject.make(subject.n)
    simulator.reset(subject.seeds(subject.n))
    simulator.close()
    try:
        simulator.close()
    except Exception as error:
        raise CheckFailed(f"the second close() raised {type(error).__name__}: {error}; remember that it is closed") from error


GATES = (methods_are_there, observations_are_as_declared, transitions_are_as_declared)
CHECKS = (
    frames_keep_their_size,
    *REPEATS,
    nan_is_refused,
    wrong_shapes_are_refused,
    actions_are_clipped,
    the_time_limit_is_the_engines,
    variants_reset,
    expert_is_in_range,
    render_gives_pictures,
    close_may_come_twice,
)


@contextmanager
def _faults() -> Iterator[None]:
    """Turn the PluginError of the run's own checks into CheckFailed."""
    try:
        yield
    except PluginError as error:
        raise CheckFailed(str(error)) from error


def _check_tensor(subject: SimulatorSubject, who: str, what: str, value: Any, dtype: Any, shape: tuple[int | str, ...]) -> None:
    from mmrl.rollout.simulators.shapes import check_tensor

    with _faults():
        check_tensor(who, what, value, dtype, shape)
    _check_device(subject, f"{what} of {who}", value)


def _check_device(subject: SimulatorSubject, name: str, value: torch.Tensor) -> None:
    import torch

    if value.device.type != torch.device(subject.device).type:
        raise CheckFailed(f"{name} is on {value.device}: keep everything on the requested device, {subject.device}")


def _check_observation(subject: SimulatorSubject, seen: Observation, who: str, like: Observation | None = None) -> None:
    """Check an observation of all environments as a run does, and also its cameras, device and finite state."""
    from mmrl.rollout.simulators.shapes import check_observation

    with _faults():
        check_observation(who, seen, subject.n, like)
    if strange := set(seen.images) - set(subject.spec.cameras):
        raise CheckFailed(f"{who} has images of the camera {sorted(strange)[0]!r}: add it to the spec's cameras")
    for name, value in rows(subject, seen).items():
        _check_device(subject, f"{name} of {who}", value)
    if seen.state is not None and not seen.state.isfinite().all():
        raise CheckFailed(f"state of {who} has numbers that are not finite: give finite numbers")


def _refused(subject: SimulatorSubject, what: str, change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    import torch

    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        simulator.reset(seeds)
        arguments = change(subject.actions(simulator, seeds, 0), torch.ones_like(seeds, dtype=torch.bool))
        try:
            simulator.step(*arguments)
        except UserError:
            return
        except Exception as error:
            raise CheckFailed(
                f"{what} raised {type(error).__name__}: {error!s:.120}; raise mmrl.UserError with one line"
            ) from error
        raise CheckFailed(f"{what} was accepted: raise mmrl.UserError, or training continues with a broken policy")
