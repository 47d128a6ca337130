"""The rules for simulators. What a check asks for that is a capability is only asked of simulators that claim it.

Every environment gets actions that are a function of its seed and of its own step, so that it can be compared with itself in
another batch. Comparisons are bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmrl.errors import UserError
from mmrl.simulation import ActionSpec, Observation, Transition
from mmrl.specs import SimulatorSpec
from mmrl.testing.checks import Fault, Report, run_checks
from mmrl.testing.sample import other_random_states, random_states

if TYPE_CHECKING:
    import torch

    Rows = dict[str, torch.Tensor]
    """What some environments show: name -> their rows; texts are numbers of texts."""

STEPS = 5
"""Steps for which futures are compared."""
LONGEST = 300
"""Steps after which a time limit is not looked for any more."""


@dataclass
class SimulatorSubject:
    """A simulator under test."""

    spec: SimulatorSpec
    make: Callable[[int], Any]
    """A fresh instance with so many environments."""
    n: int
    device: str
    texts: list[str] = field(default_factory=list)
    """Every instruction that was seen."""

    def can(self, capability: str) -> bool:
        return capability in self.spec.capabilities

    @contextmanager
    def instance(self, n: int | None = None) -> Iterator[Any]:
        """An instance that is closed at the end."""
        simulator = self.make(n or self.n)
        try:
            yield simulator
        finally:
            simulator.close()

    def action(self, simulator: Any) -> ActionSpec:
        found = getattr(simulator, "action", None) or self.spec.action
        if found is None:
            raise Fault("neither the instance nor the spec says what an action is: give SimulatorSpec an ActionSpec")
        return found

    def numbers(self, values: Sequence[int]) -> torch.Tensor:
        """int64 on the simulator's device."""
        import torch

        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def actions(self, simulator: Any, seeds_n: torch.Tensor, step: int) -> torch.Tensor:
        """float32 [n, A] in [-1, 1]."""
        from mmrl.noise import uniform

        return uniform(seeds_n, 1, step, shape=(self.action(simulator).dims,)) * 2 - 1

    def seeds(self, n: int) -> torch.Tensor:
        return self.numbers(range(11, 11 + n))


def check_simulator(
    spec: SimulatorSpec,
    make: Callable[..., Any] | None = None,
    n: int = 4,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Report:
    """Check a simulator with n environments (2 or more). `make` is for simulators that are not installed; by default the spec's
    target. It is called as `make(num_envs=, device=, **options)`."""
    from mmrl import plugins
    from mmrl.targets import check_options

    wanted = {**spec.options, **(options or {})}
    target = make or plugins.registry().target(spec)
    check_options(f"simulator {spec.id!r}", target, {"num_envs": n, "device": device, **wanted})

    def build(count: int) -> Any:
        return target(num_envs=count, device=device, **wanted)

    build(n).close()  # what is wrong with the options is the caller's UserError, not a finding
    return Report(spec.id, "simulator", run_checks(SimulatorSubject(spec, build, n, device), GATES, CHECKS))


def observations_are_as_declared(subject: SimulatorSubject) -> None:
    """A reset gives n rows: pictures of declared cameras, uint8 [n, H, W, 3]; a state, float32 [n, S]; a text for each."""
    with subject.instance() as simulator:
        seen = simulator.reset(subject.seeds(subject.n))
        if not isinstance(seen, Observation):
            raise Fault(f"reset gave a {type(seen).__name__}: return a mmrl.simulation.Observation")
        _check_observation(subject, seen, subject.n, "reset")
        if subject.spec.cameras and not seen.images and (subject.can("render-cpu") or subject.can("render-gpu")):
            raise Fault(f"reset shows no picture, though the spec has the cameras {', '.join(subject.spec.cameras)}")


def transitions_are_as_declared(subject: SimulatorSubject) -> None:
    """A step gives N rows: reward float32 and finite, three flags bool, and the spec's parts, float32 of 0 to 1."""
    import torch

    with subject.instance() as simulator:
        seeds = subject.seeds(subject.n)
        simulator.reset(seeds)
        for step in range(STEPS):
            moved = simulator.step(subject.actions(simulator, seeds, step), torch.ones_like(seeds, dtype=torch.bool))
            if not isinstance(moved, Transition):
                raise Fault(f"step gave a {type(moved).__name__}: return a mmrl.simulation.Transition")
            _check_observation(subject, moved.observation, subject.n, "step")
            _check_tensor(subject, "reward_N", moved.reward_N, torch.float32, (subject.n,))
            if not moved.reward_N.isfinite().all():
                raise Fault("reward_N is not finite: divide by nothing that may be 0")
            for name in ("terminated_N", "truncated_N", "success_N"):
                _check_tensor(subject, name, getattr(moved, name), torch.bool, (subject.n,))
            if set(moved.parts) != set(subject.spec.parts):
                raise Fault(f"the parts of a step are {sorted(moved.parts)} and the spec's {sorted(subject.spec.parts)}")
            for name, part in moved.parts.items():
                _check_tensor(subject, f"part {name!r}", part, torch.float32, (subject.n,))
                if not ((part >= 0) & (part <= 1)).all():
                    raise Fault(f"part {name!r} is {float(part.max()):g} or {float(part.min()):g}: parts are within 0 and 1")


def frames_keep_their_size(subject: SimulatorSubject) -> str | None:
    """A camera's pictures, and the state, are as large in every observation, whoever asks."""
    with subject.instance() as simulator:
        seeds = subject.seeds(subject.n)
        first = _sizes(simulator.reset(seeds))
        for where, later in (
            ("a step", _sizes(_run(subject, simulator, seeds, 1)[-1].observation)),
            ("a second reset", _sizes(simulator.reset(seeds + 5))),
        ):
            if later != first:
                raise Fault(f"a reset showed {first} and {where} {later}: one camera, one size")
    return None if first else "it shows neither pictures nor a state"


def seeds_make_a_difference(subject: SimulatorSubject) -> str | None:
    """Not all seeds start alike, in what is seen or in what follows."""
    if not subject.can("per-env-seed"):
        return "skipped: it has no seed for each environment"
    with subject.instance() as simulator:
        seen = _rows(subject, simulator.reset(subject.seeds(subject.n)))
    if all((values == values[:1]).all() for values in seen.values()):
        raise Fault(f"{subject.n} seeds gave {subject.n} equal starts: draw what a start is from its seed")
    return None


def same_seed_gives_same_future(subject: SimulatorSubject) -> None:
    """The same seeds and actions give the same, bit for bit: in a fresh instance, in one that was used, and whatever the global
    random generators are."""
    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        first = _future(subject, simulator, seeds)
        with other_random_states(1):
            _compare(first, _future(subject, simulator, seeds), "the same instance, reset again", GENERATORS)
    with other_random_states(2), subject.instance() as simulator:
        _compare(first, _future(subject, simulator, seeds), "a fresh instance", GENERATORS)


def global_random_state_is_untouched(subject: SimulatorSubject) -> None:
    """Making, resetting and stepping neither draw from nor seed the global random generators."""
    with other_random_states(3):  # whoever seeds them with a number of its own has done so before, and would leave them unchanged
        before = random_states()
        with subject.instance() as simulator:
            _future(subject, simulator, subject.seeds(subject.n))
        after = random_states()
    for library, state in after.items():
        if library in before and before[library] != state:
            raise Fault(f"it changed the global generator of {library}: {GENERATORS}")


def same_in_any_batch(subject: SimulatorSubject) -> str | None:
    """An environment does the same alone, among others, and at another place."""
    if not subject.can("per-env-seed"):
        return "skipped: it has no seed for each environment"
    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        first = _future(subject, simulator, seeds)
    with subject.instance(1) as simulator:
        alone = _future(subject, simulator, seeds[:1])
    _compare([{k: v[:1] for k, v in rows.items()} for rows in first], alone, "a batch of one", BATCH)
    with subject.instance() as simulator:
        turned = _future(subject, simulator, seeds.flip(0))
    _compare(first, [{k: v.flip(0) for k, v in rows.items()} for rows in turned], "the places turned round", BATCH)
    with subject.instance(subject.n + 3) as simulator:
        more = _future(subject, simulator, subject.seeds(subject.n + 3))
    _compare(first, [{k: v[: subject.n] for k, v in rows.items()} for rows in more], "a larger batch", BATCH)
    return None


def reset_leaves_the_others(subject: SimulatorSubject) -> str | None:
    """A reset of some environments gives their rows, and changes nothing of the others."""
    if not subject.can("partial-reset"):
        return "skipped: it only resets all"
    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        simulator.reset(seeds)
        reference = [_rows(subject, moved) for moved in _run(subject, simulator, seeds, STEPS)]
    with subject.instance() as simulator:
        simulator.reset(seeds)
        _run(subject, simulator, seeds, 2)
        fresh_seed = subject.numbers([97])
        shown = simulator.reset(fresh_seed, subject.numbers([1]))
        if len(shown) != 1:
            raise Fault(f"a reset of one environment of {subject.n} shows {len(shown)} rows: give the rows that were asked for")
        later = [_rows(subject, m) for m in _run(subject, simulator, seeds, STEPS - 2, start=2)]
    others = [i for i in range(subject.n) if i != 1]
    _compare(
        [{k: v[others] for k, v in rows.items()} for rows in reference[2:]],
        [{k: v[others] for k, v in rows.items()} for rows in later],
        "another environment was reset",
        "write only the rows of env_ids_n",
    )
    if subject.can("per-env-seed"):
        with subject.instance(1) as simulator:
            _compare(
                [_rows(subject, simulator.reset(fresh_seed))], [_rows(subject, shown)], "one that was reset in a batch", BATCH
            )
    return None


def inactive_stay_as_they_are(subject: SimulatorSubject) -> None:
    """An environment that isn't active goes on later as if there had been no step, even where its action was NaN."""
    import torch

    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        simulator.reset(seeds)
        reference = [_rows(subject, moved) for moved in _run(subject, simulator, seeds, STEPS)]
    with subject.instance() as simulator:
        simulator.reset(seeds)
        _run(subject, simulator, seeds, 2)
        active = torch.ones_like(seeds, dtype=torch.bool)
        active[0] = False
        for step in range(2, 4):
            actions = subject.actions(simulator, seeds, step)
            actions[0] = float("nan")
            try:
                moved = simulator.step(actions, active)
            except UserError as error:
                raise Fault(
                    f"the NaN of an environment that isn't active was refused ({error}): only active ones count"
                ) from error
            _compare(
                [{k: v[1:] for k, v in reference[step].items()}],
                [{k: v[1:] for k, v in _rows(subject, moved).items()}],
                "another environment was not active",
                "an environment must not see the others",
            )
        later = [_rows(subject, m) for m in _run(subject, simulator, seeds, STEPS - 2, start=2)]
    _compare(
        [{k: v[:1] for k, v in rows.items()} for rows in reference[2:]],
        [{k: v[:1] for k, v in rows.items()} for rows in later],
        "it was not active for two steps",
        "keep the old state where active_N is False, step counts and noise included",
    )


def snapshots_come_back(subject: SimulatorSubject) -> str | None:
    """A restored state has the same future, here, in another instance and at another place; later steps don't change it."""
    if not subject.can("snapshot"):
        return "skipped: it takes no snapshots"
    seeds, every = subject.seeds(subject.n), subject.numbers(range(subject.n))
    cure = "copy every tensor that a step reads, counters and grasps included, and copy again when restoring"
    with subject.instance() as simulator:
        simulator.reset(seeds)
        _run(subject, simulator, seeds, 2)
        state = simulator.snapshot(every)
        part = simulator.snapshot(every[:1])
        first = [_rows(subject, m) for m in _run(subject, simulator, seeds, STEPS, start=2)]
        shown = _rows(subject, simulator.restore(every, state))
        again = [_rows(subject, m) for m in _run(subject, simulator, seeds, STEPS, start=2)]
    _compare(first, again, "the state was restored", cure)
    with subject.instance() as simulator:
        simulator.reset(seeds + 50)
        _compare([shown], [_rows(subject, simulator.restore(every, state))], "the state was restored in another instance", cure)
        elsewhere = [_rows(subject, m) for m in _run(subject, simulator, seeds, STEPS, start=2)]
        _compare(first, elsewhere, "the state was restored in another instance", cure)
        simulator.reset(seeds + 50)
        simulator.restore(every[-1:], part)
        moved = seeds.clone()
        moved[-1] = seeds[0]
        placed = [_rows(subject, m) for m in _run(subject, simulator, moved, STEPS, start=2)]
    _compare(
        [{k: v[:1] for k, v in rows.items()} for rows in first],
        [{k: v[-1:] for k, v in rows.items()} for rows in placed],
        "the state was restored at another place",
        cure,
    )
    return None


def nan_is_refused(subject: SimulatorSubject) -> None:
    """NaN in the action of an active environment is a UserError."""
    _refused(subject, "an action with NaN", lambda actions, active: (actions * float("nan"), active))


def wrong_shapes_are_refused(subject: SimulatorSubject) -> None:
    """Actions with another number of rows or of dims are a UserError."""
    _refused(subject, "an action with one dim too few", lambda actions, active: (actions[:, :-1], active))
    _refused(subject, "actions for one environment too few", lambda actions, active: (actions[:-1], active))
    _refused(subject, "a flat action", lambda actions, active: (actions.flatten(), active))


def actions_are_clipped(subject: SimulatorSubject) -> None:
    """Actions beyond -1 and 1 do what -1 and 1 do."""
    import torch

    seeds = subject.seeds(subject.n)
    futures = []
    for factor in (1.0, 7.0):
        with subject.instance() as simulator:
            simulator.reset(seeds)
            signs = [torch.sign(subject.actions(simulator, seeds, step)) * factor for step in range(2)]
            active = torch.ones_like(seeds, dtype=torch.bool)
            futures.append([_rows(subject, simulator.step(a, active)) for a in signs])
    _compare(futures[0], futures[1], "actions were 7 times too large", "clip them: actions_NA.clamp(-1, 1)")


def the_time_limit_is_the_engines(subject: SimulatorSubject) -> str | None:
    """`truncated` doesn't say that an episode took too long."""
    import torch

    with subject.instance(2) as simulator:
        limit = getattr(simulator, "max_steps", 0) or subject.spec.max_steps
        if not 0 < limit <= LONGEST:
            return f"skipped: its limit of {limit} steps is none, or more than {LONGEST}"
        seeds = subject.seeds(2)
        simulator.reset(seeds)
        actions = torch.zeros(2, subject.action(simulator).dims, device=subject.device)
        for step in range(1, limit + 2):
            moved = simulator.step(actions, torch.ones_like(seeds, dtype=torch.bool))
            if step >= limit and moved.truncated_N.all():
                raise Fault(
                    f"truncated_N is True after {step} steps, the limit of an episode: the engine counts, leave it False unless "
                    "the simulator itself can't go on"
                )
            if moved.truncated_N.all():
                return f"it cut itself off after {step} steps"
    return None


def variants_reset(subject: SimulatorSubject) -> str | None:
    """Every variant of the spec can be started, the same each time, and an unknown one is a UserError."""
    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        for variant in subject.spec.variants:
            shown = simulator.reset(seeds, variant=variant)
            _check_observation(subject, shown, subject.n, f"variant {variant!r}")
            _run(subject, simulator, seeds, 1)
            again = simulator.reset(seeds, variant=variant)
            _compare([_rows(subject, shown)], [_rows(subject, again)], f"variant {variant!r} was reset again", GENERATORS)
        try:
            simulator.reset(seeds, variant="no-such.variant")
        except UserError:
            pass
        else:
            raise Fault(
                "a variant that the spec doesn't have was taken: raise UserError, or an evaluation measures the wrong world"
            )
        simulator.reset(seeds)
    return None if subject.spec.variants else "it has no variants"


def expert_is_in_range(subject: SimulatorSubject) -> str | None:
    """The expert's actions are float32 [N, A], finite, within -1 and 1, and asking changes nothing."""
    import torch

    if not subject.can("expert"):
        return "skipped: it has no expert"
    seeds = subject.seeds(subject.n)
    futures = []
    for asked in (False, True):
        with subject.instance() as simulator:
            simulator.reset(seeds)
            found = []
            for step in range(STEPS):
                if asked:
                    wanted = simulator.expert()
                    _check_tensor(subject, "expert()", wanted, torch.float32, (subject.n, subject.action(simulator).dims))
                    if not (wanted.isfinite() & (wanted.abs() <= 1)).all():
                        raise Fault("expert() gives numbers beyond -1 and 1, or none at all: clip what it wants")
                found += [_rows(subject, m) for m in _run(subject, simulator, seeds, 1, start=step)]
            futures.append(found)
    _compare(futures[0], futures[1], "the expert was asked", "it must not change the state, or draw from a generator")
    return None


def render_gives_pictures(subject: SimulatorSubject) -> str | None:
    """`render` gives uint8 [n, H, W, 3] of the environments that were asked for."""
    import torch

    if not (subject.can("render-cpu") or subject.can("render-gpu")):
        return "skipped: it doesn't render"
    with subject.instance() as simulator:
        simulator.reset(subject.seeds(subject.n))
        shown = simulator.render(subject.numbers([1, 0]))
        _check_tensor(subject, "render()", shown, torch.uint8, (2, *shown.shape[1:3], 3))
        if not (simulator.render(subject.numbers([0]))[0] == shown[1]).all():
            raise Fault("render() of environment 0 alone is another picture than among others: keep to the order of env_ids_n")
    return None


def close_may_come_twice(subject: SimulatorSubject) -> None:
    """A second `close` does nothing."""
    simulator = subject.make(subject.n)
    simulator.reset(subject.seeds(subject.n))
    simulator.close()
    try:
        simulator.close()
    except Exception as error:
        raise Fault(f"the second close() raised {type(error).__name__}: {error}; remember that it is closed") from error


GATES = (observations_are_as_declared, transitions_are_as_declared)
CHECKS = (
    frames_keep_their_size,
    seeds_make_a_difference,
    same_seed_gives_same_future,
    global_random_state_is_untouched,
    same_in_any_batch,
    reset_leaves_the_others,
    inactive_stay_as_they_are,
    snapshots_come_back,
    nan_is_refused,
    wrong_shapes_are_refused,
    actions_are_clipped,
    the_time_limit_is_the_engines,
    variants_reset,
    expert_is_in_range,
    render_gives_pictures,
    close_may_come_twice,
)
GENERATORS = (
    "draw from mmrl.noise with the seed of each environment, from no generator and no clock, and keep nothing between resets"
)
BATCH = (
    "draw from mmrl.noise with the seed of each environment; sums over many numbers and library functions may round differently "
    "in other batches"
)


def _check_tensor(subject: SimulatorSubject, name: str, value: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    import torch

    if not isinstance(value, torch.Tensor) or value.dtype != dtype or tuple(value.shape) != shape:
        what = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise Fault(f"{name} is {what}: it must be {dtype} {list(shape)}")
    if value.device.type != torch.device(subject.device).type:
        raise Fault(f"{name} is on {value.device}: everything stays on the device that was asked for, {subject.device}")


def _check_observation(subject: SimulatorSubject, seen: Observation, n: int, where: str) -> None:
    import torch

    if strange := set(seen.images) - set(subject.spec.cameras):
        raise Fault(f"{where} shows the camera {sorted(strange)[0]!r}, which is not in the spec's cameras")
    for name, image in seen.images.items():
        size = tuple(image.shape[1:3]) if isinstance(image, torch.Tensor) and image.dim() == 4 else (0, 0)
        _check_tensor(subject, f"camera {name!r} of {where}", image, torch.uint8, (n, *size, 3))
    if seen.state is not None:
        width = seen.state.shape[-1] if isinstance(seen.state, torch.Tensor) and seen.state.dim() else 0
        _check_tensor(subject, f"state of {where}", seen.state, torch.float32, (n, width))
        if not seen.state.isfinite().all():
            raise Fault(f"state of {where} is not finite")
    if len(seen.instructions) != n or not all(isinstance(text, str) for text in seen.instructions):
        raise Fault(f"instructions of {where} are {list(seen.instructions)!r:.80}: give {n} texts")


def _run(subject: SimulatorSubject, simulator: Any, seeds_n: torch.Tensor, steps: int, start: int = 0) -> list[Transition]:
    """Steps of all environments with the actions that belong to their seeds, from number `start` on."""
    import torch

    active = torch.ones_like(seeds_n, dtype=torch.bool)
    return [simulator.step(subject.actions(simulator, seeds_n, start + i), active) for i in range(steps)]


def _future(subject: SimulatorSubject, simulator: Any, seeds_n: torch.Tensor) -> list[Rows]:
    """What a start and the steps after it show."""
    start = _rows(subject, simulator.reset(seeds_n))
    return [start, *(_rows(subject, moved) for moved in _run(subject, simulator, seeds_n, STEPS))]


def _rows(subject: SimulatorSubject, shown: Observation | Transition) -> Rows:
    """Everything that was shown, copied."""
    seen = shown.observation if isinstance(shown, Transition) else shown
    found = {f"camera {name!r}": image for name, image in seen.images.items()}
    if seen.state is not None:
        found["state"] = seen.state
    subject.texts += [text for text in dict.fromkeys(seen.instructions) if text not in subject.texts]
    found["instructions"] = subject.numbers([subject.texts.index(text) for text in seen.instructions])
    if isinstance(shown, Transition):
        found |= {name: getattr(shown, name) for name in ("reward_N", "terminated_N", "truncated_N", "success_N")}
        found |= {f"part {name!r}": part for name, part in shown.parts.items()}
    return {name: value.clone() for name, value in found.items()}


def _sizes(seen: Observation) -> dict[str, tuple[int, ...]]:
    found = {name: tuple(image.shape[1:]) for name, image in seen.images.items()}
    return found if seen.state is None else found | {"state": tuple(seen.state.shape[1:])}


def _compare(first: list[Rows], again: list[Rows], when: str, cure: str) -> None:
    """Bit for bit, but for signs of zero."""
    for step, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, value in one.items():
            if name not in other or value.shape != other[name].shape or not (value == other[name]).all():
                raise Fault(f"{name} is another one at moment {step} when {when}: {cure}")


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
            raise Fault(f"{what} raised {type(error).__name__}: {error!s:.120}; raise mmrl.UserError with one line") from error
        raise Fault(f"{what} was taken: raise mmrl.UserError, or a broken policy trains on")
