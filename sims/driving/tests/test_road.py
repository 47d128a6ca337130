"""Episodes: the expert, words, seeds, snapshots, observations and pictures."""

import hashlib

import pytest
import torch
from mmrl_driving.language import HELD_OUT, TEMPLATES, TRAINED
from mmrl_driving.render import MARK, OTHERS, OWN

from mmrl.api.simulators.noise import uniform


def drive(one, seeds, variant=None):
    """(solved, failed) bool [n] by the expert within the time limit."""
    one.reset(seeds, variant=variant)
    solved = torch.zeros(len(seeds), dtype=torch.bool)
    failed = solved.clone()
    for _ in range(one.max_steps):
        going = ~solved & ~failed
        moved = one.step(one.expert(), going)
        solved, failed = solved | (moved.success_N & going), failed | (moved.terminated_N & going)
        if not (~solved & ~failed).any():
            break
    return solved, failed


@pytest.mark.parametrize("task", ["crossing", "motorway"])
def test_the_expert_arrives(road, task: str) -> None:
    one = road(128, task=task, obs="state")
    solved, failed = drive(one, torch.arange(5000, 5128))
    assert solved.float().mean() > 0.97 and failed.float().mean() < 0.02
    for route in range(3):
        assert solved[one._scene.route == route].float().mean() > 0.93 and (one._scene.route == route).sum() > 25


@pytest.mark.slow
@pytest.mark.parametrize("task", ["crossing", "motorway"])
def test_variants_can_be_done(road, task: str) -> None:
    for variant in ("semantic.instruction", "execution.dense-traffic", "vision.night"):
        solved, failed = drive(road(128, task=task, obs="state", horizon=120), torch.arange(128), variant)
        assert solved.float().mean() > 0.92 and failed.float().mean() < 0.04, variant


def test_who_does_not_drive_or_drives_blindly_does_not_arrive(road) -> None:
    one = road(128, obs="state")
    for pedal, arrived in ((0.0, 0.3), (1.0, 0.3), (-1.0, 0.0)):
        one.reset(torch.arange(128))
        solved = torch.zeros(128, dtype=torch.bool)
        for _ in range(one.max_steps):
            solved |= one.step(torch.tensor([[0.0, pedal]]).expand(128, 2), ~solved & ~one._scene.failed).success_N
        assert solved.float().mean() <= arrived


def test_words_name_the_way(road) -> None:
    one = road(300, task="crossing", obs="state", traffic=0)
    seen = one.reset(torch.arange(300))
    assert len(set(seen.instructions)) == 3 * TRAINED
    for words, route in zip(seen.instructions, one._scene.route.tolist(), strict=True):
        assert words in [wording[route] for wording in TEMPLATES["crossing"][:TRAINED]]
    new = set(one.reset(torch.arange(300), variant="semantic.instruction").instructions)
    assert len(new) == 3 * HELD_OUT and not new & {w for t in TEMPLATES["crossing"][:TRAINED] for w in t}
    plain = road(300, obs="state", templates=1).reset(torch.arange(300)).instructions
    assert set(plain) == set(TEMPLATES["crossing"][0])


def play(one, seeds, steps: int = 12, variant=None):
    """Everything that is shown and known in each moment."""
    shown = one.reset(seeds, variant=variant)
    seen = [shown.state, *shown.images.values()]
    for step in range(steps):
        half = uniform(seeds, 5, step, shape=(2,)) * 2 - 1
        moved = one.step(one.expert() if step % 2 else half, torch.ones(len(seeds), dtype=torch.bool))
        seen += [moved.observation.state, *moved.observation.images.values(), moved.reward_N, *one._scene.as_mapping().values()]
    return [s.clone() for s in seen]


@pytest.mark.parametrize("task", ["crossing", "motorway"])
def test_alike_in_every_batch(road, task: str) -> None:
    seeds, options = torch.arange(100, 133), {"task": task, "cameras": ("top", "front")}
    every = play(road(33, **options), seeds)
    for some in ([32], [3, 1], list(range(32, -1, -3))):
        part = play(road(len(some), **options), seeds[some])
        assert all(torch.equal(a[some], b) for a, b in zip(every, part, strict=True)), some


def test_the_same_on_every_machine(road) -> None:
    one = road(32, task="crossing", obs="state")
    play(one, torch.arange(32), 20)
    numbers = b"".join(v.numpy().tobytes() for v in (one._scene.car, one._scene.others, one._scene.aside))
    assert hashlib.sha256(numbers).hexdigest()[:16] == "ddf87ebf1cd15d08"


def test_snapshots_are_exact(road) -> None:
    one, other = road(4, task="motorway"), road(6, task="motorway")
    play(one, torch.arange(4), 5)
    state = one.snapshot(torch.arange(4))
    actions = [uniform(torch.arange(4), 9, step, shape=(2,)) * 2 - 1 for step in range(8)]
    first = [one.step(a, torch.ones(4, dtype=torch.bool)) for a in actions]
    places = torch.tensor([5, 0, 3, 1])
    assert other.restore(places, state).instructions == first[0].observation.instructions
    for a, before in zip(actions, first, strict=True):
        full = torch.zeros(6, 2)
        full[places] = a
        moved = other.step(full, torch.isin(torch.arange(6), places))
        assert torch.equal(moved.observation.images["top"][places], before.observation.images["top"])
        assert torch.equal(moved.reward_N[places], before.reward_N)


def test_the_state_tells_what_is_there(road) -> None:
    """Of an episode that begins in the south: the route's points ahead, the way that is left, and other cars in their places."""
    one = road(64, obs="state")
    seen = one.reset(torch.arange(64)).state
    assert seen.shape == (64, 13 + 5 * 6) and road(2).reset(torch.arange(2)).state.shape == (2, 3)
    scene, target = one._scene, 25 / 3.6
    assert torch.allclose(seen[:, 0], scene.car[:, 3] / target) and (seen[:, 1] > 0.8).all() and (seen[:, 2] == 0).all()
    assert (seen[:, 6] == 0).all() and (seen[:, 5] == 0).all()
    ahead, left = seen[:, 7:10] * 20, seen[:, 10:13] * 20
    assert (ahead[:, 0] - 0.5 * target).abs().max() < 0.2 and left[:, 0].abs().max() < 0.6
    there = seen[:, 13:19]
    assert torch.equal(there, scene.present.float()) and there[0].tolist() == [1, 1, 1, 1, 0, 0]
    oncoming = seen[:, 13 + 18 + 6 + 2]  # ahead, left, speed ahead of the third: what comes towards the car is below 0
    assert seen[:, 13 + 18 + 2].max() < -0.5 and torch.isfinite(oncoming).all()
    for _ in range(10):
        moved = one.step(one.expert(), torch.ones(64, dtype=torch.bool))
    assert torch.equal(moved.observation.state[:, 2], moved.reward_N) and (moved.observation.state[:, 6] > 0).all()


def test_pictures_show_the_road_and_the_cars(road) -> None:
    one = road(8, size=96, cameras=("top", "front"))
    seen = one.reset(torch.arange(8))
    top, front = seen.images["top"], seen.images["front"]
    assert (top[:, 72, 48] == torch.tensor(OWN)).all(), "the car, a quarter above the lower edge"
    assert (front[:, 0, 0] == torch.tensor([158, 190, 222])).all() and (front[:, 95, 48, 1] < 110).all(), "sky, and asphalt"
    one._scene.car[:] = torch.tensor([1.75, -20.0, 1.5707964, 5.0])
    one._scene.others[:, :, 0] = 500.0
    one._scene.others[:, 0, :3] = torch.tensor([1.75, -10.0, 1.5707964])
    one._scene.others[:, 1, :3] = torch.tensor([-1.75, -10.0, -1.5707964])
    moved = one._observe(torch.arange(8)).images["top"]
    row = int(72 - 10 / 44 * 96)
    assert (moved[:, row, 48] == torch.tensor(OTHERS[0])).all(), "10 m ahead"
    assert (moved[:, row, int(48 - 3.5 / 44 * 96)] == torch.tensor(OTHERS[1])).all(), "in the lane to the left"
    assert (moved == torch.tensor(MARK)).all(-1).any()
    ahead = one._observe(torch.arange(8)).images["front"]
    blue = (ahead[..., 2].int() - ahead[..., 0] > 60) & (ahead[..., 0] < 60)
    columns = blue[0].any(0).nonzero()[:, 0]
    assert 40 < columns.float().mean() < 56, "a car in the same lane stands in the middle"
    dark = one.reset(torch.arange(8), variant="vision.night").images["top"]
    assert dark[:, 90].float().mean() < 45 and dark[:, 60, 48].max() > 80, "but for the headlights"
    assert one.render(torch.tensor([1, 0])).shape == (2, 256, 256, 3)
