"""Rules for simulators: starts and trajectories depend on seeds and actions, and on nothing else."""

from __future__ import annotations

from mmrl.api.errors import UserError
from mmrl.testing.checks import CheckFailed
from mmrl.testing.sample import other_random_states, random_states
from mmrl.testing.simulator_subject import STEPS, SimulatorSubject, assert_equal, future, only, rows, run

GENERATORS = (
    "draw from mmrl.api.simulators.noise with the seed of each environment, use no random generator and no clock, and keep "
    "nothing between resets"
)
BATCH = (
    "draw from mmrl.api.simulators.noise with the seed of each environment; sums over many numbers and library functions may "
    "round differently in other batches"
)


def seeds_make_a_difference(subject: SimulatorSubject) -> str | None:
    """Different seeds give different first observations."""
    if not subject.can("per-env-seed"):
        return "skipped: its spec has no capability `per-env-seed`"
    with subject.instance() as simulator:
        start = rows(subject, simulator.reset(subject.seeds(subject.n)))
    if all((values == values[:1]).all() for values in start.values()):
        raise CheckFailed(f"{subject.n} seeds gave {subject.n} equal starts: draw the start from the seed")
    return None


def same_seed_gives_same_future(subject: SimulatorSubject) -> None:
    """The same seeds and actions give the same trajectories, bit for bit: in a new instance, in one that was used, and for any
    state of the global random generators."""
    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        first = future(subject, simulator, seeds)
        with other_random_states(1):
            assert_equal(first, future(subject, simulator, seeds), "the same instance was reset again", GENERATORS)
    with other_random_states(2), subject.new_instance() as simulator:
        assert_equal(first, future(subject, simulator, seeds), "a new instance was used", GENERATORS)


def global_random_state_is_untouched(subject: SimulatorSubject) -> None:
    """Making, resetting and stepping a simulator neither draw from nor seed the global random generators."""
    with other_random_states(3):  # after an earlier check, seeding with a fixed number again would change nothing
        before = random_states()
        with subject.new_instance() as simulator:
            future(subject, simulator, subject.seeds(subject.n))
        after = random_states()
    for library, state in after.items():
        if library in before and before[library] != state:
            raise CheckFailed(f"it changed the global generator of {library}: {GENERATORS}")


def same_in_any_batch(subject: SimulatorSubject) -> str | None:
    """An environment does the same alone, in other batches, and at another index."""
    if not subject.can("per-env-seed"):
        return "skipped: its spec has no capability `per-env-seed`"
    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        first = future(subject, simulator, seeds)
    with subject.instance(1) as simulator:
        alone = future(subject, simulator, seeds[:1])
    assert_equal(only(first, [0]), alone, "it was alone in its batch", BATCH)
    with subject.instance() as simulator:
        flipped = future(subject, simulator, seeds.flip(0))
    assert_equal(first, only(flipped, range(subject.n)[::-1]), "the order of environments was reversed", BATCH)
    with subject.instance(subject.n + 3) as simulator:
        more = future(subject, simulator, subject.seeds(subject.n + 3))
    assert_equal(first, only(more, range(subject.n)), "the batch was larger", BATCH)
    return None


def reset_leaves_the_others(subject: SimulatorSubject) -> str | None:
    """A reset of some environments returns their rows and doesn't change the others."""
    if not subject.can("partial-reset"):
        return "skipped: its spec has no capability `partial-reset`"
    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        simulator.reset(seeds)
        reference = [rows(subject, moved) for moved in run(subject, simulator, seeds, STEPS)]
    with subject.instance() as simulator:
        simulator.reset(seeds)
        run(subject, simulator, seeds, 2)
        fresh_seed = subject.numbers([97])
        shown = simulator.reset(fresh_seed, subject.numbers([1]))
        if len(shown) != 1:
            raise CheckFailed(
                f"a reset of one environment of {subject.n} gave {len(shown)} rows: return only the rows of env_ids_n"
            )
        later = [rows(subject, m) for m in run(subject, simulator, seeds, STEPS - 2, start=2)]
    others = [i for i in range(subject.n) if i != 1]
    assert_equal(
        only(reference[2:], others), only(later, others), "another environment was reset", "write only the rows of env_ids_n"
    )
    if subject.can("per-env-seed"):
        with subject.instance(1) as simulator:
            assert_equal([rows(subject, simulator.reset(fresh_seed))], [rows(subject, shown)], "it was reset in a batch", BATCH)
    return None


def inactive_stay_as_they_are(subject: SimulatorSubject) -> None:
    """An inactive environment continues later as if there had been no step, even if its action was NaN."""
    import torch

    seeds = subject.seeds(subject.n)
    with subject.instance() as simulator:
        simulator.reset(seeds)
        reference = [rows(subject, moved) for moved in run(subject, simulator, seeds, STEPS)]
    with subject.instance() as simulator:
        simulator.reset(seeds)
        run(subject, simulator, seeds, 2)
        active = torch.ones_like(seeds, dtype=torch.bool)
        active[0] = False
        for step in range(2, 4):
            actions = subject.actions(simulator, seeds, step)
            actions[0] = float("nan")
            try:
                moved = simulator.step(actions, active)
            except UserError as error:
                raise CheckFailed(
                    f"NaN in the action of an inactive environment was refused ({error}): check only active environments"
                ) from error
            assert_equal(
                only([reference[step]], range(1, subject.n)),
                only([rows(subject, moved)], range(1, subject.n)),
                "another environment was not active",
                "environments must be independent of each other",
            )
        later = [rows(subject, m) for m in run(subject, simulator, seeds, STEPS - 2, start=2)]
    assert_equal(
        only(reference[2:], [0]),
        only(later, [0]),
        "it was not active for two steps",
        "keep the old state where active_N is False, step counts and noise included",
    )


def snapshots_come_back(subject: SimulatorSubject) -> str | None:
    """A restored state continues the same way: in this instance, in another one and at another index. Later steps don't change a
    snapshot."""
    if not subject.can("snapshot"):
        return "skipped: its spec has no capability `snapshot`"
    seeds, every = subject.seeds(subject.n), subject.numbers(range(subject.n))
    cure = "copy every tensor that a step reads, counters and grasps included, and copy again when restoring"
    with subject.instance() as simulator:
        simulator.reset(seeds)
        run(subject, simulator, seeds, 2)
        state = simulator.snapshot(every)
        part = simulator.snapshot(every[:1])
        first = [rows(subject, m) for m in run(subject, simulator, seeds, STEPS, start=2)]
        shown = rows(subject, simulator.restore(every, state))
        again = [rows(subject, m) for m in run(subject, simulator, seeds, STEPS, start=2)]
    assert_equal(first, again, "the state was restored", cure)
    with subject.new_instance() as simulator:
        simulator.reset(seeds + 50)
        assert_equal(
            [shown], [rows(subject, simulator.restore(every, state))], "the state was restored in another instance", cure
        )
        elsewhere = [rows(subject, m) for m in run(subject, simulator, seeds, STEPS, start=2)]
        assert_equal(first, elsewhere, "the state was restored in another instance", cure)
        simulator.reset(seeds + 50)
        simulator.restore(every[-1:], part)
        moved = seeds.clone()
        moved[-1] = seeds[0]
        placed = [rows(subject, m) for m in run(subject, simulator, moved, STEPS, start=2)]
    assert_equal(only(first, [0]), only(placed, [-1]), "the state was restored at another index", cure)
    return None


REPEATS = (
    seeds_make_a_difference,
    same_seed_gives_same_future,
    global_random_state_is_untouched,
    same_in_any_batch,
    reset_leaves_the_others,
    inactive_stay_as_they_are,
    snapshots_come_back,
)
