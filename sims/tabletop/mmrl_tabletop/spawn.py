"""The start of an episode, sampled from its seed, in the training distribution or in a variant of it.

The variants are those of the RL4VLA suite (Liu et al., What Can RL Bring to VLA Generalization?, 2025), applied to this table.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmrl.api.simulators.noise import uniform
from mmrl.api.simulators.reproducible import length
from mmrl_tabletop import language
from mmrl_tabletop.scene import Scene
from mmrl_tabletop.settings import FLAT_SHAPES, Settings
from mmrl_tabletop.things import (
    MARK,
    MAT,
    PLATE,
    PLATE_RADIUS,
    SEEN_PLATES,
    SHAPES,
    TRAY,
    UNSEEN_COLOURS,
    UNSEEN_PLATES,
    UNSEEN_SHAPES,
    colour_ids,
    shape_ids,
)

Spread = Callable[[torch.Tensor], torch.Tensor]

PLACES, YAWS, PAIRS, FIRST_SHAPES, UNSEEN, PLATES, POSE, WORDS, LOOKS, OVERLAY, MOVED = range(1, 12)
"""Streams of random numbers of a seed."""
INNER = 0.23
"""Training places everything within this distance of the middle along x and y, metres."""
GOAL_INNER = 0.17
"""Goals of pushes are within this distance of the middle, so that the gripper can get behind the object."""
WIDE = 0.27
"""Distance for a second receptacle or distractor, as the table is already full."""
OUTER = (0.25, 0.31)
"""`execution.position` places the task's objects in this ring."""
WAY = 3
"""Number of places that stay free between a target and its goal."""
GAP = 0.05
"""Least gap between two placed objects, metres."""
CANDIDATES = 64
"""Positions sampled for an object; the first with enough room is chosen, else the one with the most."""
MOVE_AT = 3
"""Step of the episode after which `execution.moved` moves the target."""
TRAINING_TEXTURES, UNSEEN_TEXTURES, OVERLAYS = 6, 5, 6
"""Numbers of table pictures (training, unseen) and of textures to blend in."""


def spawn(settings: Settings, seed_n: torch.Tensor, variant: str | None) -> Scene:
    """The first states of n episodes. seed_n: int64."""
    n, device = len(seed_n), seed_n.device
    K, P, named = settings.objects, settings.receptacles, settings.named
    number = torch.arange(K, device=device)
    extra = variant == "semantic.distractor-object"
    present_nK = (number < K - 1 + int(extra)).expand(n, K).clone()
    shape_nK, colour_nK = _kinds(settings, seed_n, variant)
    kind_nP, tint_nP, there_nP = _receptacles(settings, seed_n, variant)

    def pose(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * uniform(seed_n, POSE, shape=(6,))

    gripper_n6 = pose(-1, 1) * torch.tensor([0.15, 0.15, 0.05, 0, 0, 0], device=device)
    gripper_n6 = gripper_n6 + torch.tensor([0, 0, 0.27, 0, 0, 0], device=device)
    if variant == "execution.robot-pose":
        draw_n6 = pose(-1, 1)
        far_n2 = torch.where(draw_n6[:, :2] < 0, -1.0, 1.0) * (0.18 + 0.1 * draw_n6[:, :2].abs())
        turn_n = torch.where(draw_n6[:, 5] < 0, -1.0, 1.0) * (0.3 + 0.3 * draw_n6[:, 5].abs())
        tilt_n2 = 0.3 * draw_n6[:, 3:5]
        gripper_n6 = torch.cat([far_n2, 0.25 + 0.05 * draw_n6[:, 2:3], tilt_n2, turn_n[:, None]], 1)

    places, sizes = _order(settings)
    far = variant == "execution.position"
    found: list[torch.Tensor] = []
    for i, (is_plate, slot) in enumerate(places):
        ring = far and ((not is_plate and slot < named) or (is_plate and slot < settings.has_goal and settings.task != "push"))
        inner = GOAL_INNER if is_plate and settings.task == "push" else INNER
        inner = WIDE if slot >= (settings.has_goal if is_plate else named + 1) else inner
        there_n = there_nP[:, slot] if is_plate else present_nK[:, slot]
        put_n2 = _free(seed_n, i, found, sizes, _outer if ring else _square(inner))
        found.append(torch.where(there_n[:, None], put_n2, 9.0 + i))
        if settings.task == "push" and (is_plate, slot) == (False, 0):
            found += _way(found[0], found[1])
    if settings.task == "push":
        del found[2 : 2 + WAY]
    at = dict(zip(places, found, strict=True))
    low, high = (0.4, 0.75) if far else (-0.35, 0.35)
    yaw_nK = low + (high - low) * uniform(seed_n, YAWS, shape=(K,))
    half_S = torch.tensor([s.half[2] for s in SHAPES], device=device) * settings.radius
    z_nK = half_S[shape_nK]
    xy_nK2 = torch.stack([at[False, k] for k in range(K)], 1)

    words = language.HELD_OUT if variant == "semantic.instruction" else settings.templates
    first = language.TRAINED if variant == "semantic.instruction" else 0
    looks_n4 = uniform(seed_n, LOOKS, shape=(4,))
    blended, whole = (str(variant).startswith(k) for k in (("vision.texture", "vision.whole"), "vision.whole"))
    textures, after = (UNSEEN_TEXTURES, TRAINING_TEXTURES) if variant == "vision.images" else (settings.textures, 0)
    zero_n = torch.zeros(n, device=device)
    whole_n = torch.zeros(n, dtype=torch.int64, device=device)
    share = 0.3 if str(variant).endswith("03") else 0.5
    return Scene(
        seed=seed_n.clone(),
        steps=whole_n,
        moves_at=whole_n + (MOVE_AT if variant == "execution.moved" else -1),
        gripper=gripper_n6,
        closed=torch.zeros(n, dtype=torch.bool, device=device),
        held=whole_n - 1,
        grasp=torch.zeros(n, 3, device=device),
        held_steps=whole_n,
        objects=torch.cat([xy_nK2, z_nK[..., None], yaw_nK[..., None]], -1),
        shape=shape_nK,
        colour=colour_nK,
        present=present_nK,
        support=torch.full((n, K), -1, dtype=torch.int64, device=device),
        plates=torch.stack([at[True, p] for p in range(P)], 1),
        plate_kind=kind_nP,
        plate_colour=tint_nP,
        plate_present=there_nP,
        template=first + _choice(uniform(seed_n, WORDS), words),
        texture=after + _choice(looks_n4[:, 0], textures),
        light=1 + settings.light * (looks_n4[:, 1] - 0.5) * 2,
        overlay=_choice(looks_n4[:, 2], OVERLAYS) if blended else whole_n - 1,
        overlay_share=zero_n + share if blended else zero_n,
        overlay_whole=torch.full((n,), whole, device=device),
        potential=zero_n,
        reference=torch.zeros(n, 0, 4, device=device),
        phase=whole_n,
    )


def elsewhere(scene: Scene, settings: Settings) -> torch.Tensor:
    """[N, 2]: another place for the target, free of everything."""
    others = [scene.objects[:, k, :2] for k in range(1, settings.objects)]
    others += [scene.plates[:, p] for p in range(settings.receptacles)]
    there = [scene.present[:, k] for k in range(1, settings.objects)] + [
        scene.plate_present[:, p] for p in range(settings.receptacles)
    ]
    found = [scene.objects[:, 0, :2]]  # not its current place
    found += [torch.where(t[:, None], xy, 9.0 + i) for i, (t, xy) in enumerate(zip(there, others, strict=True))]
    R = settings.radius
    sizes = [R] * settings.objects + [PLATE_RADIUS] * settings.receptacles + [R]
    return _free(scene.seed, 99, found, sizes, _square(INNER))


def _order(settings: Settings) -> tuple[list[tuple[bool, int]], list[float]]:
    """(whether it is a receptacle, its place) in the order of placement, the task's objects first; and their radii."""
    goal = [(True, 0)] if settings.has_goal else []
    rest = [(False, k) for k in range(settings.objects)] + [(True, settings.receptacles - 1)]
    order = goal + rest
    sizes = [PLATE_RADIUS if plate else settings.radius for plate, _ in order]
    if settings.task == "push":
        sizes[2:2] = [0.6 * settings.radius] * WAY
    return order, sizes


def _way(goal_n2: torch.Tensor, target_n2: torch.Tensor) -> list[torch.Tensor]:
    """Places that stay free for a push: behind the target, where the gripper goes down, and between target and goal."""
    dx, dy = (goal_n2 - target_n2).unbind(1)
    away = length(dx, dy).clamp(min=1e-6)
    ahead_n2 = torch.stack([dx / away, dy / away], 1)
    return [target_n2 - 0.13 * ahead_n2, target_n2 + 0.35 * (goal_n2 - target_n2), target_n2 + 0.65 * (goal_n2 - target_n2)]


def _free(seed_n: torch.Tensor, turn: int, found: list[torch.Tensor], sizes: list[float], spread: Spread) -> torch.Tensor:
    """[n, 2]: the first candidate with enough distance from earlier placed objects.

    spread: maps numbers of 0 to 1, [n, CANDIDATES, 2], to places. sizes: radii of `found`, then of this object.
    """
    candidates = spread(uniform(seed_n, PLACES, turn, shape=(CANDIDATES, 2)))
    room = torch.full(candidates.shape[:2], GAP, device=seed_n.device)
    for other_n2, size in zip(found, sizes, strict=False):
        dx, dy = (candidates - other_n2[:, None]).unbind(-1)
        room = torch.minimum(room, length(dx, dy) - size - sizes[len(found)])
    best_n = room.argmax(1)  # the first of equals
    return candidates.gather(1, best_n[:, None, None].expand(-1, 1, 2))[:, 0]


def _square(half: float) -> Spread:
    """Uniform over a square around the middle."""
    return lambda u: (2 * u - 1) * half


def _outer(u: torch.Tensor) -> torch.Tensor:
    """Maps to the ring between two squares: one of its four sides, and a place along it."""
    low, high = OUTER
    side = (u[..., 0] * 4).floor()
    deep = low + (high - low) * (u[..., 0] * 4 - side)
    along = (2 * u[..., 1] - 1) * high
    sign = torch.where(side < 2, 1.0, -1.0)
    upright = (side == 0) | (side == 2)
    return torch.stack([torch.where(upright, along, sign * deep), torch.where(upright, sign * deep, along)], -1)


def _kinds(settings: Settings, seed_n: torch.Tensor, variant: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(shape, colour) of every object, int64 [n, K]: no two objects share both."""
    device, K = seed_n.device, settings.objects
    shapes = torch.tensor(shape_ids(settings.shapes), device=device)
    colours = torch.tensor(colour_ids(settings.colours), device=device)
    S, C = len(shapes), len(colours)
    flat = torch.tensor(shape_ids(tuple(s for s in settings.shapes if s in FLAT_SHAPES)) or (0,), device=device)
    if settings.alike:
        pair = uniform(seed_n, PAIRS, shape=(S * C,)).argsort(1)[:, :K]
        which_shape, which_colour = pair // C, pair % C
    else:
        order = uniform(seed_n, PAIRS, shape=(C,)).argsort(1)
        number = torch.arange(K, device=device)
        which_colour = order[:, number % C]
        first = _choice(uniform(seed_n, FIRST_SHAPES, shape=(min(K, C),)), S)
        which_shape = (first[:, number % C] + number // C) % S
    shape_nK, colour_nK = shapes[which_shape], colours[which_colour]
    if settings.task == "stack":  # the second object is flat; its pair of shape and colour is not used again
        base = flat[_choice(uniform(seed_n, FIRST_SHAPES, 1), len(flat))]
        swap = (shape_nK == base[:, None]) & (colour_nK == colour_nK[:, 1:2])
        shape_nK = torch.where(swap, shape_nK[:, 1:2], shape_nK)
        shape_nK = torch.cat([shape_nK[:, :1], base[:, None], shape_nK[:, 2:]], 1)
    if variant == "semantic.object":
        draw = uniform(seed_n, UNSEEN, shape=(2,))
        strange = torch.tensor(shape_ids(UNSEEN_SHAPES), device=device)[_choice(draw[:, 0], len(UNSEEN_SHAPES))]
        tint = torch.tensor(colour_ids(UNSEEN_COLOURS), device=device)[_choice(draw[:, 1], len(UNSEEN_COLOURS))]
        shape_nK = torch.cat([strange[:, None], shape_nK[:, 1:]], 1)
        colour_nK = torch.cat([tint[:, None], colour_nK[:, 1:]], 1)
    return shape_nK, colour_nK


def _receptacles(settings: Settings, seed_n: torch.Tensor, variant: str | None) -> tuple[torch.Tensor, ...]:
    """(kind, colour, whether it is present) of every receptacle, [n, P].

    For a task without a receptacle, the variants of receptacles place one beside the objects.
    """
    n, device = len(seed_n), seed_n.device
    P, goal = settings.receptacles, settings.has_goal
    draw = uniform(seed_n, PLATES, shape=(4,))
    seen = torch.tensor(colour_ids(SEEN_PLATES), device=device)
    unseen = torch.tensor(colour_ids(UNSEEN_PLATES), device=device)
    first = _choice(draw[:, 0], len(seen))
    strange_kind = torch.tensor((TRAY, MAT), device=device)[_choice(draw[:, 1], 2)]
    strange_tint = unseen[_choice(draw[:, 2], len(unseen))]
    kind = torch.full((n, P), PLATE, dtype=torch.int64, device=device)
    tint = torch.stack([seen[(first + p) % len(seen)] for p in range(P)], 1)
    there = torch.zeros(n, P, dtype=torch.bool, device=device)
    if goal:
        there[:, 0] = True
    if settings.task == "push":
        kind[:, 0] = MARK
    if variant == "semantic.receptacle":
        place = 0 if settings.task == "put-on" else P - 1
        kind[:, place], tint[:, place], there[:, place] = strange_kind, strange_tint, True
        if settings.task == "push":
            kind[:, 0], there[:, P - 1] = MARK, False
            tint[:, 0] = strange_tint
    if variant == "semantic.distractor-receptacle":
        there[:, P - 1] = True
        if settings.task == "push":
            kind[:, P - 1] = MARK
    return kind, tint, there


def _choice(u: torch.Tensor, count: int) -> torch.Tensor:
    """Maps a number between 0 and 1 to one of `count` integers, int64."""
    return (u * count).long().clamp(max=count - 1)
