"""Pictures against a slow reference that marches along every ray and asks whether a point is inside of a solid."""

from collections.abc import Callable

import pytest
import torch
from mmrl_tabletop import VARIANTS, cameras
from mmrl_tabletop.render import LIGHT
from mmrl_tabletop.solids import BACKGROUND, DEPTH, LEVELS, MISSED, SHADOW, Rays, brightness
from mmrl_tabletop.solids import keys as keys_of
from mmrl_tabletop.table import Table
from mmrl_tabletop.things import BALL, BOX, CONE, CYLINDER, PRISM

from mmrl.testing.cases import mostly_slow

S, FAR = 20, 99


def inside(kind: int, p: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
    """Whether points [..., 3] in a solid's frame are in it, by the meaning of its sizes."""
    x, y, z = p.unbind(-1)
    a, b, c = half
    within = z.abs() < c
    if kind == BOX:
        return within & (x.abs() < a) & (y.abs() < b)
    if kind == BALL:
        return x * x + y * y + z * z < c * c
    if kind == CYLINDER:
        return within & (x * x + y * y < a * a)
    if kind == CONE:
        return within & (x * x + y * y < (a * (c - z) / (2 * c)) ** 2)
    assert kind == PRISM
    return within & (x.abs() < a) & ((x / 2 + y * 0.75**0.5).abs() < a) & ((-x / 2 + y * 0.75**0.5).abs() < a)


def level(kind: int, p: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
    """A function that grows outwards through a solid's surface, for normals by differences."""
    x, y, z = p.unbind(-1)
    a, b, c = half
    sides = {
        BOX: lambda: torch.maximum(x.abs() - a, y.abs() - b),
        CYLINDER: lambda: (x * x + y * y).sqrt() - a,
        CONE: lambda: ((x * x + y * y).sqrt() - a * (c - z) / (2 * c)) / (1 + (a / (2 * c)) ** 2) ** 0.5,
        PRISM: lambda: torch.stack([x.abs(), (x / 2 + y * 0.75**0.5).abs(), (-x / 2 + y * 0.75**0.5).abs()]).amax(0) - a,
    }
    return (x * x + y * y + z * z).sqrt() - c if kind == BALL else torch.maximum(sides[kind](), z.abs() - c)


@pytest.mark.parametrize("kind", mostly_slow([BOX, BALL, CYLINDER, CONE, PRISM], everyday=2))
def test_rays_meet_solids_where_they_should(kind: int) -> None:
    """Depth against marching, brightness against the normal that differences give."""
    generator = torch.Generator().manual_seed(kind)
    n, T = 1500, 3000
    half = torch.tensor([0.05, 0.05 if kind != BOX else 0.08, 0.06], dtype=torch.double)
    eye = torch.nn.functional.normalize(torch.randn(n, 3, generator=generator, dtype=torch.double), dim=1) * 0.5
    to = (torch.rand(n, 3, generator=generator, dtype=torch.double) * 2 - 1) * 0.08
    d = (to - eye) * 1.3
    lamp = torch.nn.functional.normalize(torch.tensor([0.3, -0.5, 0.7], dtype=torch.double), dim=0)
    t = torch.linspace(0.05, 1.5, T, dtype=torch.double)
    hits = inside(kind, eye[:, None] + t[:, None] * d[:, None], half)
    first = torch.where(hits, t, torch.inf).amin(1)

    def three(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(v.float().view(-1, 1, 1) for v in values.unbind(-1))

    rays_ = Rays(
        three(eye), three(d), three(half.expand(n, 3)), three(lamp.expand(n, 3)), torch.zeros(n, 1, 1, dtype=torch.int32)
    )
    key = keys_of(kind, rays_).view(n)
    depth, shade, hit = (key >> 12).double() / DEPTH, key & 4095, key < MISSED
    assert 200 < int(hit.sum()) < n and (hit == first.isfinite()).float().mean() > 0.995
    both = hit & first.isfinite()
    assert ((depth - first).abs()[both] < 2 * 1.45 / T + 1e-4).float().mean() > 0.99
    point, small = (eye + depth[:, None] * d)[both], torch.eye(3, dtype=torch.double) * 1e-5
    slope = torch.stack([level(kind, point + s, half) - level(kind, point - s, half) for s in small], -1)
    cosine = (torch.nn.functional.normalize(slope, dim=1) @ lamp).float()
    assert ((brightness(cosine) - shade[both]).abs() <= 3).float().mean() > 0.97


@pytest.mark.parametrize("camera", mostly_slow(["front", "top", "wrist"], everyday=1))
def test_windows_leave_nothing_out(table: Callable[..., Table], camera: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole picture for a window the picture is the same, bit for bit."""
    for task, variant in (("put-on", "execution.robot-pose"), ("stack", "semantic.object"), ("pick", None)):
        one = table(12, task=task, size=40, cameras=(camera,), distractors=2)
        some_state(one, variant)
        every = torch.arange(12)
        state = one.snapshot(every)
        shown = one.restore(every, state).images[camera]
        with monkeypatch.context() as patch:

            def whole(places: torch.Tensor, seen: object, half: object, tangent: float, S: int) -> tuple[torch.Tensor, ...]:
                none = torch.zeros(2, *places.shape[2:], dtype=torch.int64)
                return none, none, none + S

            patch.setattr("mmrl_tabletop.render._windows", whole)
            assert torch.equal(one.restore(every, state).images[camera], shown)


def test_what_is_held_is_tilted_with_the_gripper(table: Callable[..., Table]) -> None:
    one = table(2)
    one.reset(torch.arange(2))
    for _ in range(6):
        one.step(one.expert(), torch.ones(2, dtype=torch.bool))
    one.step(torch.tensor([[0.0, 0, 0, 0.8, 0, 0, 1]] * 2), torch.ones(2, dtype=torch.bool))
    assert (one._scene.held == 0).all()
    things = one._renderer._model(one._scene)
    up = things.axes[2, :, 0, 0]
    assert things.axes[2, :, 0, -6].tolist() == pytest.approx(up.tolist()), "as the fingers"
    assert up.tolist() == pytest.approx([0, -0.2377, 0.9713], abs=1e-3), "a roll of 0.24 about x"


def reference(things, n: int, start: torch.Tensor, direction: torch.Tensor, t: torch.Tensor, which: list[int]) -> torch.Tensor:
    """[rays]: the number of the solid that each ray is in first, or FAR."""
    points = start[:, None] + t[:, None] * direction[:, None]  # [rays, T, 3]
    first = torch.full((len(start),), torch.inf, dtype=torch.double)
    found = torch.full((len(start),), FAR)
    for m in which:
        if not things.present[n, m]:
            continue
        axes, centre = things.axes[:, :, n, m].double(), things.centre[:, n, m].double()
        hit = inside(int(things.kind[n, m]), (points - centre) @ axes.T, things.half[:, n, m].double())
        at = torch.where(hit, t, torch.inf).amin(1)
        found = torch.where(at < first, m, found)
        first = torch.minimum(first, at)
    return found


def rays(view: cameras.View, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(where they start, where they go), [S * S, 3], from the top left to the bottom right."""
    row = n if view.at.shape[1] > 1 else 0
    at, (f, r, u) = view.at[:, row].double(), view.frame[:, :, row].double()
    steps = ((torch.arange(S, dtype=torch.double) + 0.5) / S * 2 - 1) * view.tangent
    d = f + steps[None, :, None] * r - steps[:, None, None] * u
    return at.expand(S * S, 3), d.view(-1, 3)


def some_state(table: Table, variant: str | None) -> None:
    """Three environments, in one of which something is held and turned."""
    n = table.num_envs
    table.reset(torch.arange(3, 3 + n), variant=variant)
    for step in range(7):
        action = table.expert()
        action[:, 3:6] = torch.tensor([0.4, -0.3, 0.5]) if step > 2 else action[:, 3:6]
        table.step(action, torch.ones(n, dtype=torch.bool))


@pytest.mark.parametrize(
    "variant", mostly_slow([None, "semantic.object", "semantic.receptacle", "execution.robot-pose"], everyday=1)
)
@pytest.mark.parametrize("camera", ["front", "top", "wrist"])
def test_pictures_are_those_of_the_reference(table: Callable[..., Table], camera: str, variant: str | None) -> None:
    one = table(3, task="put-on", size=S, cameras=(camera,), distractors=2)
    some_state(one, variant)
    renderer, scene = one._renderer, one._scene
    things, view = renderer._model(scene), renderer._views.get(camera) or cameras.wrist(scene)
    keys = torch.full((3 * S * S,), BACKGROUND, dtype=torch.int32)
    renderer._draw(keys, view, scene, things)
    keys = keys.view(3, S * S)
    M = things.kind.shape[1]
    wrong = seen = 0
    for n in range(3):
        start, direction = rays(view, n)
        low, high = (0.02, 1.6) if camera == "wrist" else (1.0, 3.4)
        t = torch.linspace(low, high, 1500, dtype=torch.double)
        expected = reference(things, n, start, direction, t, list(range(M)))
        colour = torch.where(expected < FAR, things.colour[n][expected.clamp(max=M - 1)], -1)
        drawn = torch.where(keys[n] < SHADOW, (keys[n] & 4095) // LEVELS, -1)
        wrong += int((colour != drawn).sum())
        seen += int((colour >= 0).sum())
        # shadows of all but receptacles and the upper arm, on pixels that show the table
        reach = -start[:, 2] / direction[:, 2].clamp(max=-1e-6)
        ground = start + reach[:, None] * direction
        K, P = scene.shape.shape[1], scene.plates.shape[1]
        casters = [m for m in range(M - 3) if not K <= m < K + P]
        up = torch.tensor(LIGHT, dtype=torch.double).expand(len(ground), 3)
        shaded = reference(things, n, ground, up, torch.linspace(0.0005, 0.75, 1500, dtype=torch.double), casters) < FAR
        table_seen = (expected == FAR) & (direction[:, 2] < -0.05) & (keys[n] >= SHADOW) & (reach < 20)
        wrong += int(((keys[n] == SHADOW) != shaded)[table_seen].sum())
        seen += int(shaded[table_seen].sum())
    assert seen > 150, "there is something to see"
    assert wrong <= 0.02 * seen + 3, f"{wrong} of {seen} pixels differ"


def test_sizes_cameras_and_samples(table: Callable[..., Table]) -> None:
    for size, samples in ((16, 1), (33, 1), (64, 2), (112, 1)):
        shown = table(2, size=size, samples=samples, cameras=("front", "wrist", "top")).reset(torch.arange(2)).images
        assert {name: tuple(image.shape) for name, image in shown.items()} == dict.fromkeys(
            ("front", "wrist", "top"), (2, size, size, 3)
        )


def test_more_samples_are_the_same_picture_but_smoother(table: Callable[..., Table]) -> None:
    plain, smooth = (table(4, size=64, samples=k).reset(torch.arange(4)).images["front"].float() for k in (1, 3))
    assert (plain - smooth).abs().mean() < 4 and (plain - smooth).abs().max() > 30


def test_chunks_change_nothing(table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table(13, size=32, cameras=("front", "wrist")).reset(torch.arange(13)).images
    monkeypatch.setattr("mmrl_tabletop.render.CHUNK", {"cpu": 5 * 32 * 32})
    pieces = table(13, size=32, cameras=("front", "wrist")).reset(torch.arange(13)).images
    assert all((whole[name] == pieces[name]).all() for name in whole)


def test_noise_is_the_seeds_and_the_steps(table: Callable[..., Table]) -> None:
    clean, noisy = table(64, size=32), table(64, size=32, noise=6.0)
    seeds = torch.arange(64)
    a, b = clean.reset(seeds).images["front"].float(), noisy.reset(seeds).images["front"].float()
    middle = (a > 30) & (a < 225)
    away = (b - a)[middle]
    assert abs(float(away.mean())) < 0.1 and abs(float(away.std()) - 6) < 0.1
    still = torch.zeros(64, 7)
    later = noisy.step(still, torch.ones(64, dtype=torch.bool)).observation.images["front"].float()
    assert (later != b).float().mean() > 0.5, "every step has noise of its own"
    assert (noisy.reset(seeds).images["front"] == b).all()


def test_light_changes_brightness_alone(table: Callable[..., Table]) -> None:
    plain, lit = table(16, size=32), table(16, size=32, light=0.5)
    a, b = (t.reset(torch.arange(16)).images["front"].float() for t in (plain, lit))
    gain = lit._scene.light.view(-1, 1, 1, 1)
    assert ((a * gain).clamp(0, 255) - b).abs().max() <= 0.51
    assert 0.5 <= gain.min() < 0.8 and 1.2 < gain.max() <= 1.5


def test_the_jaw_can_be_seen(table: Callable[..., Table]) -> None:
    one = table(1, size=64)
    opened = one.reset(torch.tensor([4])).images["front"].int()
    closed = one.step(torch.tensor([[0.0, 0, 0, 0, 0, 0, 1]]), torch.ones(1, dtype=torch.bool)).observation.images["front"].int()
    assert ((opened - closed).abs().amax(-1) > 60).sum() > 40


def test_turns_can_be_seen(table: Callable[..., Table]) -> None:
    one = table(1, size=64)
    before = one.reset(torch.tensor([4])).images["front"].int()
    for dim in (3, 4, 5):
        one.reset(torch.tensor([4]))
        action = torch.zeros(1, 7)
        action[0, dim] = 1
        after = one.step(action, torch.ones(1, dtype=torch.bool)).observation.images["front"].int()
        assert ((before - after).abs().amax(-1) > 30).sum() > 20, dim


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_shows_something_else(table: Callable[..., Table], variant: str) -> None:
    one = table(8, size=48, task="put-on")
    plain, other = one.reset(torch.arange(8)), one.reset(torch.arange(8), variant=variant)
    different = (plain.images["front"] != other.images["front"]).flatten(1).float().mean(1)
    if variant in ("semantic.instruction", "execution.moved"):
        assert (different == 0).all()
    else:
        assert (different > 0.005).all()
    assert (plain.instructions != other.instructions) == (
        variant in ("semantic.object", "semantic.receptacle", "semantic.instruction")
    )


def test_pictures_for_people(table: Callable[..., Table]) -> None:
    one = table(3, size=24, noise=9.0, cameras=("top",))
    one.reset(torch.arange(3))
    shown = one.render(torch.tensor([2, 0]))
    assert shown.shape == (2, 256, 256, 3) and shown.float().std() > 20
