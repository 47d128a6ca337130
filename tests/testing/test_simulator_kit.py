"""Every check of simulators against a planted fault: the fault is found, by that check, with cause and cure."""

from __future__ import annotations

import dataclasses
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmrl import SimulatorSpec, UserError
from mmrl.api.simulators.noise import uniform
from mmrl.api.simulators.types import ActionSpec, Observation, Simulation, Transition
from mmrl.registry.plugins import registry
from mmrl.testing import check_id, check_plugin
from mmrl.testing import simulators as checks
from mmrl.testing.attack import attacks_on
from mmrl.testing.simulators import check_simulator

SPEC = SimulatorSpec(
    id="walk/line",
    target="-:-",
    cameras=("front",),
    action=ActionSpec(dims=2),
    max_steps=6,
    parts=("near",),
    variants=("far",),
    capabilities=frozenset(("partial-reset", "per-env-seed", "snapshot", "expert", "render-cpu")),
)


class Walk:
    """A point on a line that is pushed about; a simulator without faults."""

    size = 8

    def __init__(self, *, num_envs: int, device: str = "cpu") -> None:
        self.n = num_envs
        self.every = torch.arange(num_envs)
        self.place = torch.zeros(num_envs)
        self.steps = torch.zeros(num_envs, dtype=torch.int64)
        self.seed = self.every.clone()
        self.made()

    def made(self) -> None:
        """A place for faults."""

    def start(self, seeds_n: torch.Tensor, variant: str | None) -> torch.Tensor:
        return uniform(seeds_n, 1) * (3 if variant == "far" else 1)

    def known(self, variant: str | None) -> None:
        if variant not in (None, "far"):
            raise UserError(f"no variant {variant!r}")

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        ids = self.every if env_ids_n is None else env_ids_n
        self.known(variant)
        self.put(ids, self.start(seeds_n, variant), torch.zeros(len(ids), dtype=torch.int64), seeds_n)
        return self.see(ids)

    def put(self, ids: torch.Tensor, place: torch.Tensor, steps: torch.Tensor, seed: torch.Tensor) -> None:
        self.place, self.steps, self.seed = self.place.clone(), self.steps.clone(), self.seed.clone()
        self.place[ids], self.steps[ids], self.seed[ids] = place, steps, seed

    def see(self, ids: torch.Tensor) -> Observation:
        return Observation(images=self.pictures(ids), state=self.place[ids][:, None], instructions=self.words(ids))

    def pictures(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "front": (self.place[ids].abs() * 50)
            .clamp(0, 255)
            .to(torch.uint8)
            .view(-1, 1, 1, 1)
            .expand(-1, self.size, self.size, 3)
        }

    def words(self, ids: torch.Tensor) -> list[str]:
        return ["go left" if seed % 2 else "go right" for seed in self.seed[ids].tolist()]

    def refuse(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> None:
        if actions_NA.shape != (self.n, 2) or actions_NA[active_N].isnan().any():
            raise UserError("actions must be finite [N, 2]")

    def clip(self, actions_NA: torch.Tensor) -> torch.Tensor:
        return actions_NA.clamp(-1, 1)

    def drift(self) -> torch.Tensor:
        return uniform(self.seed, 2, self.steps) * 0.1

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        self.refuse(actions_NA, active_N)
        moved = self.place + self.clip(actions_NA).nan_to_num()[:, 0] + self.drift()
        before, self.place = self.place, torch.where(active_N, moved, self.place)
        self.steps = self.steps + active_N.long()
        return self.transition(before)

    def transition(self, before: torch.Tensor, **changes: Any) -> Transition:
        none = torch.zeros(self.n, dtype=torch.bool)
        fields = dict(
            observation=self.see(self.every),
            reward_N=self.place - before,
            terminated_N=none,
            truncated_N=none,
            success_N=self.place > 1,
            parts={"near": (self.place > 0.5).float()},
        )
        return Transition(**fields | changes)

    def expert(self) -> torch.Tensor:
        return torch.ones(self.n, 2) * 0.5

    def snapshot(self, env_ids_n: torch.Tensor) -> Any:
        return self.place[env_ids_n], self.steps[env_ids_n], self.seed[env_ids_n]

    def restore(self, env_ids_n: torch.Tensor, state: Any) -> Observation:
        self.put(env_ids_n, *state)
        return self.see(env_ids_n)

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        return self.pictures(env_ids_n)["front"]

    def close(self) -> None:
        pass


def with_(**members: Any) -> type[Walk]:
    return type("Faulty", (Walk,), members)


def changed(**changes: Callable[[Walk], Any]) -> type[Walk]:
    """A transition with other fields."""

    class Faulty(Walk):
        def transition(self, before: torch.Tensor, **_: Any) -> Transition:
            return super().transition(before, **{name: value(self) for name, value in changes.items()})

    return Faulty


def seen(**changes: Callable[[Walk, torch.Tensor], Any]) -> type[Walk]:
    """An observation with other fields."""

    class Faulty(Walk):
        def see(self, ids: torch.Tensor) -> Observation:
            good = super().see(ids)
            fields = {name: getattr(good, name) for name in ("images", "state", "instructions")}
            return Observation(**fields | {name: value(self, ids) for name, value in changes.items()})

    return Faulty


class InPlace(Walk):
    """Snapshots are views, and steps write into them."""

    def snapshot(self, env_ids_n: torch.Tensor) -> Any:
        return (self.place, self.steps, self.seed) if len(env_ids_n) == self.n else super().snapshot(env_ids_n)

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        mine = self.place
        moved = super().step(actions_NA, active_N)
        self.place = mine.copy_(self.place)
        return moved


class Closed(Walk):
    open = True

    def close(self) -> None:
        if not self.open:
            raise RuntimeError("closed already")
        self.open = False


class Asked(Walk):
    def expert(self) -> torch.Tensor:
        self.steps = self.steps + 1
        return super().expert()


class Cut(Walk):
    def transition(self, before: torch.Tensor, **_: Any) -> Transition:
        return super().transition(before, truncated_N=self.steps >= 6)


class Ticking(Walk):
    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        moved = super().step(actions_NA, active_N)
        self.steps = self.steps + (~active_N).long()
        return moved


def mean_drift(self: Walk) -> torch.Tensor:
    return Walk.drift(self) + self.place.mean() * 0.01


def all_start(self: Walk, ids: torch.Tensor, place: torch.Tensor, steps: torch.Tensor, seed: torch.Tensor) -> None:
    Walk.put(self, ids, place, steps, seed)
    self.steps = torch.zeros_like(self.steps) if len(ids) < self.n and int(seed[0]) == 97 else self.steps


FAULTS = {
    "no close": ("methods_are_there", with_(close=None), "`Faulty` has no close: a simulator has reset, step, close"),
    "no reset": ("methods_are_there", with_(reset=None), "`Faulty` has no reset: a simulator has reset, step, close"),
    "neither step nor close": ("methods_are_there", with_(step=None, close=None), "`Faulty` has no close, step: a simulator has"),
    "no restore": (
        "methods_are_there",
        with_(restore=None),
        "has no restore: a simulator has reset, step, close (and snapshot/restore with the capability `snapshot`,",
    ),
    "no expert": ("methods_are_there", with_(expert=None), "has no expert: "),
    "no render": ("methods_are_there", with_(render=None), "has no render: "),
    "no Observation": (
        "observations_are_as_declared",
        with_(see=lambda self, ids: {"front": 1}),
        "reset() gave a dict in place of a mmrl.api.simulators.types.Observation",
    ),
    "an undeclared camera": (
        "observations_are_as_declared",
        seen(images=lambda self, ids: {"back": self.pictures(ids)["front"]}),
        "has images of the camera 'back': add it to the spec's cameras",
    ),
    "no picture": ("observations_are_as_declared", seen(images=lambda self, ids: {}), "reset() gave no image"),
    "channels first": (
        "observations_are_as_declared",
        seen(images=lambda self, ids: {"front": self.pictures(ids)["front"].permute(0, 3, 1, 2)}),
        "camera 'front' is torch.uint8 [4, 3, 8, 8], and must be torch.uint8 [4, H, W, 3]",
    ),
    "pictures of floats": (
        "observations_are_as_declared",
        seen(images=lambda self, ids: {"front": self.pictures(ids)["front"].float()}),
        "reset(): camera 'front' is torch.float32",
    ),
    "a flat state": (
        "observations_are_as_declared",
        seen(state=lambda self, ids: self.place[ids]),
        "reset(): state is torch.float32 [4], and must be torch.float32 [4, S]",
    ),
    "a state of doubles": (
        "observations_are_as_declared",
        seen(state=lambda self, ids: self.place[ids][:, None].double()),
        "state is torch.float64 [4, 1], and must be torch.float32 [4, S]",
    ),
    "an infinite state": (
        "observations_are_as_declared",
        seen(state=lambda self, ids: self.place[ids][:, None] / 0),
        "state of reset() has numbers that are not finite",
    ),
    "one text for all": (
        "observations_are_as_declared",
        seen(instructions=lambda self, ids: ["go"]),
        "reset() gave the instructions ['go'], not 4 texts",
    ),
    "all rows for some": (
        "reset_leaves_the_others",
        with_(see=lambda self, ids: Walk.see(self, self.every)),
        "a reset of one environment of 4 gave 4 rows",
    ),
    "no Transition": (
        "transitions_are_as_declared",
        with_(transition=lambda self, before: None),
        "step() gave a NoneType in place of a mmrl.api.simulators.types.Transition",
    ),
    "a double reward": (
        "transitions_are_as_declared",
        changed(reward_N=lambda self: self.place.double()),
        "step(): reward_N is torch.float64 [4], and must be torch.float32 [4]",
    ),
    "an infinite reward": (
        "transitions_are_as_declared",
        changed(reward_N=lambda self: self.place / 0),
        "step() gave a reward that is not finite: check it for divisions by 0",
    ),
    "flags of numbers": ("transitions_are_as_declared", changed(success_N=lambda self: self.place), "success_N is torch.float32"),
    "a part too few": (
        "transitions_are_as_declared",
        changed(parts=lambda self: {}),
        "the parts of a step are [] and the spec's ['near']",
    ),
    "a part of 2": (
        "transitions_are_as_declared",
        changed(parts=lambda self: {"near": torch.full((self.n,), 2.0)}),
        "step(): part 'near' is 2, and must be from 0 to 1",
    ),
    "a part below 0": (
        "transitions_are_as_declared",
        changed(parts=lambda self: {"near": torch.full((self.n,), -0.01)}),
        "step(): part 'near' is -0.01, and must be from 0 to 1",
    ),
    "a part of NaN": (
        "transitions_are_as_declared",
        changed(parts=lambda self: {"near": torch.full((self.n,), torch.nan)}),
        "step(): part 'near' is nan, and must be from 0 to 1",
    ),
    "lost by number": (
        "transitions_are_as_declared",
        changed(lost_N=lambda self: torch.zeros(self.n)),
        "step(): lost_N is torch.float32 [4], and must be torch.bool [4]",
    ),
    "one loss for all": (
        "transitions_are_as_declared",
        changed(lost_N=lambda self: torch.zeros(1, dtype=torch.bool)),
        "step(): lost_N is torch.bool [1], and must be torch.bool [4]",
    ),
    "one that breaks": (
        "transitions_are_as_declared",
        changed(lost_N=lambda self: self.every == 2),
        "lost_N: environments [2] failed in a step",
    ),
    "growing pictures": (
        "frames_keep_their_size",
        with_(pictures=lambda self, ids: {"front": torch.zeros(len(ids), 8 + int(self.steps.max()), 8, 3, dtype=torch.uint8)}),
        "a step after a reset: camera 'front' is torch.uint8 [4, 9, 8, 3], and must be torch.uint8 [4, 8, 8, 3]",
    ),
    "the seed is ignored": (
        "seeds_make_a_difference",
        with_(start=lambda self, seeds, variant: seeds * 0.0, words=lambda self, ids: ["go"] * len(ids), drift=lambda self: 0.0),
        "4 seeds gave 4 equal starts",
    ),
    "torch's generator": (
        "same_seed_gives_same_future",
        with_(start=lambda self, seeds, variant: torch.rand(len(seeds))),
        "differs at step 0 when the same instance was reset again: draw from mmrl.api.simulators.noise",
    ),
    "a counter": (
        "same_seed_gives_same_future",
        with_(
            made=lambda self: setattr(self, "count", 0),
            drift=lambda self: setattr(self, "count", self.count + 1) or self.count * 0.1,
        ),
        "differs at step 1 when the same instance was reset again",
    ),
    "a global seed": (
        "global_random_state_is_untouched",
        with_(made=lambda self: torch.manual_seed(4)),
        "the global generator of torch",
    ),
    "random's seed": (
        "global_random_state_is_untouched",
        with_(made=lambda self: random.seed(4)),
        "the global generator of random",
    ),
    "the mean of all": (
        "same_in_any_batch",
        with_(drift=mean_drift),
        "when it was alone in its batch: draw from mmrl.api.simulators.noise with the seed of each",
    ),
    "numbered by place": (
        "same_in_any_batch",
        with_(drift=lambda self: uniform(self.every, 2, self.steps)),
        "differs at step 1 when the order of environments was reversed",
    ),
    "a reset of all counters": (
        "reset_leaves_the_others",
        with_(put=all_start),
        "when another environment was reset: write only the rows of env_ids_n",
    ),
    "clocks that run on": ("inactive_stay_as_they_are", Ticking, "when it was not active for two steps: keep the old state"),
    "NaN of the inactive refused": (
        "inactive_stay_as_they_are",
        with_(refuse=lambda self, actions, active: Walk.refuse(self, actions, torch.ones_like(active))),
        "NaN in the action of an inactive environment was refused",
    ),
    "a forgotten counter": (
        "snapshots_come_back",
        with_(restore=lambda self, ids, state: Walk.restore(self, ids, (state[0], state[1] * 0, state[2]))),
        "when the state was restored: copy every tensor",
    ),
    "a view for a snapshot": ("snapshots_come_back", InPlace, "when the state was restored: copy every tensor"),
    "NaN taken": (
        "nan_is_refused",
        with_(refuse=lambda self, actions, active: Walk.refuse(self, actions.nan_to_num(), active)),
        "an action with NaN was accepted: raise mmrl.UserError",
    ),
    "a bare ValueError": (
        "wrong_shapes_are_refused",
        with_(refuse=lambda self, actions, active: Walk.refuse(self, actions, active) if actions.shape == (self.n, 2) else [][1]),
        "an action with one dim too few raised IndexError",
    ),
    "any action goes": (
        "wrong_shapes_are_refused",
        with_(
            refuse=lambda self, a, active: (
                Walk.refuse(self, a, active) if a.dim() == 2 and len(a) == self.n and a.shape[1] == 2 else None
            )
        ),
        "an action with one dim too few was accepted",
    ),
    "no clip": (
        "actions_are_clipped",
        with_(clip=lambda self, actions: actions),
        "when actions were 7 times too large: clip them",
    ),
    "a time limit": ("the_time_limit_is_the_engines", Cut, "truncated_N is True after 6 steps, the limit of an episode"),
    "any variant": ("variants_reset", with_(known=lambda self, variant: None), "an unknown variant was accepted"),
    "a missing variant": (
        "variants_reset",
        with_(known=lambda self, variant: {}[variant] if variant else None),
        "raised KeyError",
    ),
    "a strong expert": (
        "expert_is_in_range",
        with_(expert=lambda self: torch.full((self.n, 2), 3.0)),
        "numbers outside of [-1, 1]",
    ),
    "an expert of another arm": (
        "expert_is_in_range",
        with_(expert=lambda self: torch.zeros(self.n, 7)),
        "expert(): its result is torch.float32 [4, 7], and must be torch.float32 [4, 2]",
    ),
    "an expert that acts": ("expert_is_in_range", Asked, "when expert() was called: it must not change the state"),
    "a rendering of floats": (
        "render_gives_pictures",
        with_(render=lambda self, ids: self.pictures(ids)["front"].float()),
        "render(): its result is torch.float32",
    ),
    "a rendering in another order": (
        "render_gives_pictures",
        with_(render=lambda self, ids: self.pictures(ids.sort().values)["front"]),
        "keep the order of env_ids_n",
    ),
    "closed for good": ("close_may_come_twice", Closed, "the second close() raised RuntimeError: closed already"),
}


def failed(report: Any) -> dict[str, str]:
    return {r.name: r.message for r in report.results if not r.ok}


def test_a_simulator_without_faults_passes() -> None:
    report = check_simulator(SPEC, Walk)
    assert failed(report) == {} and len(report.results) == len(checks.GATES) + len(checks.CHECKS)
    assert not any(r.note for r in report.results)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    name, cls, message = FAULTS[fault]
    found = failed(check_simulator(SPEC, cls))
    assert message in found.get(name, f"nothing by {name} but {found}")
    if name in {gate.__name__ for gate in checks.GATES}:
        assert set(found) == {name}, "what follows a gate would only repeat it"


class Line:
    """Somebody has just begun."""

    def __init__(self, *, num_envs: int, device: str = "cpu") -> None: ...

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> None: ...


def test_an_unfinished_simulator_is_a_finding_and_no_traceback() -> None:
    spec = SimulatorSpec(id="walk/line", target="-:-", action=ActionSpec(dims=2))
    report = check_simulator(spec, Line)
    (result,) = report.results
    left = len(checks.GATES) + len(checks.CHECKS) - 1
    assert result.note == f"{left} checks that follow were not run"
    assert str(report) == (
        "simulator 'walk/line' fails methods_are_there: `Line` has no close, step: a simulator has reset, step, close "
        "(and snapshot/restore with the capability `snapshot`, expert with the capability `expert`, "
        f"render with the capability `render-cpu` or `render-gpu`) ({left} checks that follow were not run)"
    )


def test_every_check_has_a_planted_fault() -> None:
    assert {name for name, _, _ in FAULTS.values()} == {c.__name__ for c in (*checks.GATES, *checks.CHECKS)}


class Bare(Walk):
    """It can do nothing besides stepping: no picture, no snapshot, one seed for all."""

    def see(self, ids: torch.Tensor) -> Observation:
        return Observation(images={}, state=self.place[ids][:, None], instructions=["go"] * len(ids))

    def drift(self) -> torch.Tensor:
        return uniform(self.every, 2, self.steps)

    snapshot = restore = render = expert = None


class Forgetful(Bare):
    def snapshot(self, env_ids_n: torch.Tensor) -> Any:
        raise NotImplementedError

    restore = snapshot


def test_only_what_is_promised_is_asked_for() -> None:
    spec = SimulatorSpec(id="walk/bare", target="-:-", action=ActionSpec(dims=2), parts=("near",))
    report = check_simulator(spec, Bare)
    assert failed(report) == {}
    skipped = {r.name for r in report.results if r.note.startswith("skipped: ")}
    assert skipped == {
        *("seeds_make_a_difference", "same_in_any_batch", "reset_leaves_the_others", "snapshots_come_back"),
        *("the_time_limit_is_the_engines", "expert_is_in_range", "render_gives_pictures"),
    }
    (note,) = (r.note for r in report.results if r.name == "render_gives_pictures")
    assert note == "skipped: its spec has no capability `render-cpu` or `render-gpu`"
    promised = dataclasses.replace(spec, capabilities=frozenset(("snapshot",)))
    assert "raised NotImplementedError" in failed(check_simulator(promised, Forgetful))["snapshots_come_back"]


BARE = """
    from mmrl import SimulatorSpec, hookimpl
    from mmrl.api.simulators.types import ActionSpec
    from test_simulator_kit_walk import Bare

    class Sized(Bare):
        def __init__(self, *, num_envs: int, device: str = "cpu", size: int = 8) -> None:
            super().__init__(num_envs=num_envs, device=device)
            self.pixels = range(size)

    @hookimpl
    def mmrl_simulators():
        given = {"target": "mmrl_walk:Sized", "action": ActionSpec(dims=2), "parts": ("near",)}
        return [SimulatorSpec(id="walk/bare", **given),
                SimulatorSpec(id="walk/promised", capabilities=frozenset({"snapshot", "expert"}), **given)]
"""


def test_a_run_asks_for_the_methods_that_the_kit_asks_for(site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_simulator_kit_walk", sys.modules[__name__])
    site("mmrl-walk", {"mmrl_walk.py": BARE}, {"walk": "mmrl_walk"})
    assert failed(check_id("walk/bare")[0]) == {}
    assert (
        registry().make_simulator(Simulation(simulator="walk/bare"), 2, "cpu").reset(torch.arange(2)).instructions == ["go"] * 2
    )
    lacks = "`Sized` has no expert, restore, snapshot: a simulator has reset, step, close (and snapshot/restore with"
    assert lacks in failed(check_id("walk/promised")[0])["methods_are_there"]
    with pytest.raises(UserError, match=re.escape(f"simulator 'walk/promised': {lacks}")):
        registry().make_simulator(Simulation(simulator="walk/promised"), 2, "cpu")


def test_an_option_of_a_wrong_type_is_the_callers(site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_simulator_kit_walk", sys.modules[__name__])
    site("mmrl-walk", {"mmrl_walk.py": BARE}, {"walk": "mmrl_walk"})
    with pytest.raises(UserError, match=re.escape("simulator 'walk/bare': size = 'big' must be a whole number")):
        check_id("walk/bare", options={"size": "big"})
    tried = [a for a in attacks_on("walk/bare")["options"]() if "size" in a.name and "text" in a.name]
    assert tried and not any(a.fault for a in tried)


def test_options_that_do_not_fit_are_the_callers(site: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="simulator 'walk/line' has no option 'colour'"):
        check_simulator(SPEC, Walk, options={"colour": 1})


def test_an_action_that_nobody_declares_is_a_fault() -> None:
    spec = SimulatorSpec(id="walk/dumb", target="-:-", parts=("near",))
    assert (
        "neither the instance nor the spec has an action space"
        in failed(check_simulator(spec, Bare))["transitions_are_as_declared"]
    )


PLUGIN = """
    from mmrl import SimulatorSpec, hookimpl
    from mmrl.api.simulators.types import ActionSpec
    from test_simulator_kit_walk import Walk

    @hookimpl
    def mmrl_simulators():
        action = ActionSpec(dims=2)
        return [SimulatorSpec(id="walk/line", target="mmrl_walk:Walk", action=action, cameras=("front",), parts=("near",)),
                SimulatorSpec(id="walk/lost", target="mmrl_walk:Walk", action=action, cameras=("front",))]
"""


def test_ids_and_plugins_lead_to_the_checks(site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_simulator_kit_walk", sys.modules[__name__])
    site("mmrl-walk", {"mmrl_walk.py": PLUGIN}, {"walk": "mmrl_walk"})
    (report,) = check_id("walk/line")
    assert (report.id, report.kind, failed(report)) == ("walk/line", "simulator", {})
    (report,) = check_id("walk/lost")
    assert "the parts of a step are ['near'] and the spec's []" in failed(report)["transitions_are_as_declared"]
    with pytest.raises(UserError, match="simulator 'walk/line' has no option 'hue'"):
        check_id("walk/line", options={"hue": 1})
    with pytest.raises(UserError, match=r"no simulator 'walk/lin'\. Did you mean 'walk/line'"):
        check_id("walk/lin")
    with pytest.raises(AssertionError, match="simulator 'walk/lost' fails transitions_are_as_declared: the parts of a step"):
        check_plugin("walk")
    assert [r.id for r in check_plugin("walk", skip=["walk/lost"])] == ["walk/line"]
    with pytest.raises(AssertionError, match="simulator 'walk/line' can't be built: simulator 'walk/line' has no option 'hue'"):
        check_plugin("walk", options={"walk/line": {"hue": 1}})


TWICE = """
    from mmrl import SimulatorSpec, VerifierSpec, hookimpl
    from mmrl.api.simulators.types import ActionSpec

    @hookimpl
    def mmrl_simulators():
        action = ActionSpec(dims=2)
        return [SimulatorSpec(id="walk/line", target="test_simulator_kit_walk:Walk", action=action, cameras=("front",))]

    @hookimpl
    def mmrl_verifiers():
        return [VerifierSpec(id="walk/line", target="mmrl_walk:look", model=True)]

    def look(cases):
        return [0.0] * len(cases)
"""


def test_a_simulator_is_checked_where_a_model_has_its_id(site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_simulator_kit_walk", sys.modules[__name__])
    site("mmrl-walk", {"mmrl_walk.py": TWICE}, {"walk": "mmrl_walk"})
    verifier, simulator = check_id("walk/line")
    assert (verifier.kind, [r.name for r in verifier.results]) == ("verifier", ["it_is_a_model"])
    assert simulator.kind == "simulator" and "the spec's []" in failed(simulator)["transitions_are_as_declared"]
