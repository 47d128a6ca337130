"""Rendering: each solid and its shadow is computed only in a window of pixels around it.

Solids of one kind with windows of similar size are computed together, for all environments. A pixel shows its smallest key, so
the result depends neither on the order nor on other environments. N environments, M solids, P solids of one group, windows of H x
W pixels, a picture of S x S.
"""

from __future__ import annotations

import functools
import math

import torch

from mmrl.api.simulators.noise import uniform
from mmrl_tabletop import cameras, textures
from mmrl_tabletop.cameras import View
from mmrl_tabletop.model import SHADELESS, Model, Solids
from mmrl_tabletop.physics import Contact
from mmrl_tabletop.scene import TABLE, Scene
from mmrl_tabletop.solids import BACKGROUND, CODE_BITS, LEVELS, MISSED, SHADOW, Rays, keys
from mmrl_tabletop.spawn import OVERLAYS, TRAINING_TEXTURES, UNSEEN_TEXTURES
from mmrl_tabletop.things import COLOURS

LIGHT = (-0.34, -0.30, 0.8913)
"""Direction to the light, length 1."""
SHADE = 0.55
"""Brightness in shadow."""
DROP = 44
"""Brightness levels that a receptacle loses in shadow."""
SHARES = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 1.0)
"""Sides of windows, as shares of the picture's side."""
KINDS = 5
TURNS = SHADOWS, PLATES, THINGS = range(3)
"""Order of rendering: shadows, receptacles (which read the shadows), all else."""
CHUNK = {"cpu": 2**19, "cuda": 2**25}
"""Pixels that are computed at once: limited by a CPU's cache and a GPU's memory."""
TILE = 256
"""Side in pixels of a table's picture for the moving camera."""
NOISE = 81
"""Stream of random numbers of a seed for the first camera; the next ones are for the other cameras."""
THICK = 0.03
"""Thickness of the table's board, metres."""
FLOOR, SIDE = (0.235, 0.25, 0.275), 0.62
"""Colour of the floor; brightness of the table's edge."""


class Renderer:
    """Renders all cameras at one size."""

    def __init__(
        self, names: tuple[str, ...], size: int, contact: Contact, noise: float, samples: int, device: torch.device
    ) -> None:
        """size: side of the pictures in pixels. noise: standard deviation in 255ths. samples: rays along each side of a pixel."""
        self.names, self.size, self.samples, self.noise, self.device = names, size, samples, noise, device
        self._model = Model(contact, device)
        self._light = torch.tensor(LIGHT, device=device)[:, None, None]
        self._number = torch.arange(max(64, size * samples), device=device)
        self._side = size * samples
        self._windows = sorted({min(self._side, math.ceil(self._side * s)) for s in SHARES})
        self._sizes = torch.tensor(self._windows, device=device)
        self._paint = _paint(device)
        pixels = torch.arange(self._side, device=device)
        self._pixel_S = (pixels + 0.5) * (2 / self._side) - 1
        self._views = {name: cameras.fixed(name, device) for name in names if name != "wrist"}
        self._tables = {name: _pictures(name, self._side, 3 if samples == 1 else 1, device) for name in self._views}
        if "wrist" in names:
            self._tables["wrist"] = _tiles(device)
        self._overlays = _overlays(size, device)

    def __call__(self, scene: Scene) -> dict[str, torch.Tensor]:
        """Camera -> uint8 [N, size, size, 3]."""
        count = max(1, CHUNK.get(self.device.type, CHUNK["cpu"]) // self._side**2)
        n = len(scene.seed)
        if not n:
            return {name: torch.zeros(0, self.size, self.size, 3, dtype=torch.uint8, device=self.device) for name in self.names}
        if n <= count:
            return self._drawn(scene)
        every = torch.arange(n, device=self.device)
        pieces = [self._drawn(scene.rows(ids)) for ids in every.split(count)]
        return {name: torch.cat([p[name] for p in pieces]) for name in self.names}

    def _drawn(self, scene: Scene) -> dict[str, torch.Tensor]:
        things = self._model(scene)
        return {name: self._picture(name, scene, things) for name in self.names}

    def _picture(self, name: str, scene: Scene, things: Solids) -> torch.Tensor:
        n, S = len(scene.seed), self._side
        view = self._views.get(name) or cameras.wrist(scene)
        keys_Q = torch.full((n * S * S,), BACKGROUND, dtype=torch.int32, device=self.device)
        blended, dimmed = self._draw(keys_Q, view, scene, things)
        colours = self._paint.index_select(0, keys_Q & (2**CODE_BITS - 1))
        if name == "wrist":
            lit, dark = self._below(view, scene)
        else:
            lit, dark = (t.index_select(0, scene.texture).view(-1) for t in self._tables[name])
        colours = torch.where(keys_Q < SHADOW, colours, torch.where(keys_Q == SHADOW, dark, lit))
        channels = colours.view(torch.uint8).view(n, S, S, 4)
        image = torch.stack([channels[..., i] for i in range(3)], -1)
        if self.samples > 1:
            image = _shrunk(image.float(), self.samples).round().to(torch.uint8)
        return self._changed(image, keys_Q, scene, self.names.index(name), blended, dimmed)

    def _changed(
        self, image: torch.Tensor, keys_Q: torch.Tensor, scene: Scene, camera: int, blended: bool, dimmed: bool
    ) -> torch.Tensor:
        """Applies brightness, blended textures and noise, if there are any."""
        n, size = len(scene.seed), self.size
        if not (blended or dimmed or self.noise):
            return image
        values = image.float()
        if dimmed:
            values = values * scene.light.view(-1, 1, 1, 1)
        if blended:
            seen = (keys_Q < SHADOW).view(n, self._side, self._side, 1).float()
            seen = _shrunk(seen, self.samples) if self.samples > 1 else seen
            seen = torch.where(scene.overlay_whole.view(-1, 1, 1, 1), 1.0, seen) * scene.overlay_share.view(-1, 1, 1, 1)
            values = values + (self._overlays[scene.overlay.clamp(min=0)] * 255 - values) * seen
        if self.noise:
            draw = (uniform(scene.seed, NOISE + camera, scene.steps, shape=(size, size)) * 2**21).int()
            channels = torch.stack([(draw >> (7 * i)) & 127 for i in range(3)], -1)
            values = values + (channels.float() - 63.5) * (self.noise * math.sqrt(12) / 128)
        return values.round().clamp(0, 255).to(torch.uint8)

    def _draw(self, keys_Q: torch.Tensor, view: View, scene: Scene, things: Solids) -> tuple[bool, bool]:
        """Writes the keys of everything except the table. Returns whether any scene has a blended texture, and whether any has
        another brightness: a device is waited for once, and tells all there is to know."""
        n, M = things.kind.shape
        K, P = scene.shape.shape[1], scene.plates.shape[1]
        at, frame = view.at[..., None], view.frame[..., None]
        away = things.centre - at
        seen = _sum(things.axes * frame[:, None], 2)
        place = _sum(away * frame, 1)
        # A shadow is the solid itself, projected along the light onto the table.
        down = _sum(self._light * frame, 1) / LIGHT[2]
        flat = torch.stack([seen, seen - things.axes[:, 2] * down[:, None]])
        places = torch.stack([place, place - things.centre[2] * down])
        windows = _windows(places, flat, things.half, view.tangent, self._side)

        origin = -_sum(away * things.axes, 1)
        light = _sum(self._light * things.axes, 1)
        tail = torch.stack([at[2], *frame[:, 2]]).expand(4, n, M)
        table_RC = torch.cat([origin, seen.flatten(0, 1), things.half, light, tail]).flatten(1).T

        plate = (self._number[:M] >= K) & (self._number[:M] < K + P)
        dark = things.present & ~plate & (self._number[:M] < M - SHADELESS)
        top, left, side = (w.flatten() for w in windows)
        turn = torch.stack([torch.where(plate, PLATES, THINGS).expand(n, M), torch.full_like(things.kind, SHADOWS)]).flatten()
        shown = torch.stack([things.present, dark]).flatten() & (side > 0)
        sizes = len(self._windows)
        fits = torch.bucketize(side, self._sizes).clamp(max=sizes - 1)
        last = len(TURNS) * KINDS * sizes
        groups = torch.where(shown, (turn * KINDS + things.kind.flatten().repeat(2)) * sizes + fits, last)
        order = groups.argsort(stable=True)
        tally = torch.zeros(last + 1, dtype=torch.int64, device=self.device).scatter_add_(0, groups, torch.ones_like(groups))
        changed = torch.stack([(scene.overlay >= 0).any(), (scene.light != 1).any()])
        *counts, blended, dimmed = torch.cat([tally, changed]).tolist()
        order = order[: 2 * n * M - counts[last]]
        row, top, left = order % (n * M), top[order], left[order]
        env, code = row // M, (things.colour.flatten()[row] * LEVELS).int()
        table_RC = table_RC[row]
        start = 0
        for group, count in enumerate(counts[:last]):
            if count:
                rest, fit = divmod(group, sizes)
                some = slice(start, start + count)
                where = table_RC[some], code[some], top[some], left[some], env[some]
                pixels, found = self._group(*divmod(rest, KINDS), self._windows[fit], *where, keys_Q, view.tangent)
                keys_Q.scatter_reduce_(0, pixels, found, "amin")
                start += count
        return bool(blended), bool(dimmed)

    def _group(
        self,
        turn: int,
        kind: int,
        side: int,
        table_PC: torch.Tensor,
        code_P: torch.Tensor,
        top_P: torch.Tensor,
        left_P: torch.Tensor,
        env_P: torch.Tensor,
        keys_Q: torch.Tensor,
        tangent: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(pixel, key) of every pixel of the windows of P solids of one kind, or of their shadows."""
        S = self._side
        within = self._number[:side]
        top_P, left_P = top_P.clamp(max=S - side), left_P.clamp(max=S - side)
        rows_PH, columns_PW = top_P[:, None] + within, left_P[:, None] + within
        X = (self._pixel_S[columns_PW] * tangent)[:, None]
        Y = (self._pixel_S[rows_PH] * -tangent)[:, :, None]
        pixels = ((env_P * S * S)[:, None] + rows_PH * S)[:, :, None] + columns_PW[:, None]
        c = [v[:, None, None] for v in table_PC.unbind(1)]
        o, f, r, u, half, light = ((c[i], c[i + 1], c[i + 2]) for i in range(0, 18, 3))
        high, fz, rz, uz = c[18:]
        d = f[0] + X * r[0] + Y * u[0], f[1] + X * r[1] + Y * u[1], f[2] + X * r[2] + Y * u[2]
        code = code_P[:, None, None]
        if turn == SHADOWS:
            t = -high / (fz + X * rz + Y * uz).clamp(max=-1e-3)  # where the ray hits the table
            point = o[0] + t * d[0], o[1] + t * d[1], o[2] + t * d[2]
            met = keys(kind, Rays(point, light, half, light, code, shaded=False))
            key = BACKGROUND + (((met - MISSED) >> 31) & (SHADOW - BACKGROUND))
        else:
            key = keys(kind, Rays(o, d, half, light, code, rim=turn == PLATES))
            if turn == PLATES:
                below = keys_Q.index_select(0, pixels.view(-1)).view_as(key)
                key = key - (below == SHADOW).int() * DROP
        return pixels.view(-1), key.reshape(-1)

    def _below(self, view: View, scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
        """The table as moving cameras see it, lit and in shadow: packed int32 [N * S * S]."""
        X, Y = self._pixel_S[None, None] * view.tangent, -self._pixel_S[None, :, None] * view.tangent
        f, r, u = view.frame[..., None, None]
        d = [f[i] + X * r[i] + Y * u[i] for i in range(3)]
        t = -view.at[2][:, None, None] / d[2].clamp(max=-1e-3)
        u, v = ((view.at[i][:, None, None] + t * d[i]) / (2 * TABLE) + 0.5 for i in range(2))
        off = (u < 0) | (u >= 1) | (v < 0) | (v >= 1) | (d[2] > -1e-3)
        column, row = ((w * TILE).clamp(0, TILE - 1).long() for w in (u, v))
        place = torch.where(off, TILE * TILE, row * TILE + column) + scene.texture[:, None, None] * (TILE * TILE + 1)
        lit, dark = (t.view(-1).index_select(0, place.view(-1)) for t in self._tables["wrist"])
        return lit, dark


@functools.lru_cache(maxsize=8)
def _pictures(camera: str, side: int, fine: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The tables as a fixed camera sees them, lit and in shadow: packed int32 [textures, side * side].

    fine: points along each side of a pixel; the pixel is their mean.
    """
    view = cameras.fixed(camera, device)
    S = side * fine
    pixels = (torch.arange(S, device=device) + 0.5) * (2 / S) - 1
    X, Y = pixels[None] * view.tangent, -pixels[:, None] * view.tangent
    f, r, u = view.frame
    d = [f[i] + X * r[i] + Y * u[i] for i in range(3)]
    t = -view.at[2] / d[2].clamp(max=-1e-3)
    x, y = view.at[0] + t * d[0], view.at[1] + t * d[1]
    on = ((x.abs() <= TABLE) & (y.abs() <= TABLE))[..., None]
    # the side of the table that faces the camera
    edge_t = (-TABLE - view.at[1]) / torch.where(d[1].abs() < 1e-6, 1e-6, d[1])
    edge_x, edge_z = view.at[0] + edge_t * d[0], view.at[2] + edge_t * d[2]
    side_on = ((edge_t > 0) & (edge_x.abs() <= TABLE) & (edge_z <= 0) & (edge_z > -THICK))[..., None] & ~on
    far = (y / 4).clamp(-0.3, 0.3)[..., None]
    floor = torch.tensor(FLOOR, device=device) * (1 - far)
    lit: list[torch.Tensor] = []
    dark: list[torch.Tensor] = []
    for number in range(TRAINING_TEXTURES + UNSEEN_TEXTURES):
        colour = textures.table(number, x / (2 * TABLE) + 0.5, y / (2 * TABLE) + 0.5)
        edge = textures.table(number, edge_x / (2 * TABLE) + 0.5, torch.zeros_like(edge_x)) * SIDE
        for shade, into in ((1.0, lit), (SHADE, dark)):
            picture = torch.where(on, colour * shade, torch.where(side_on, edge, floor))
            into.append(_packed(_shrunk(picture[None], fine)[0]).view(-1))
    return torch.stack(lit), torch.stack(dark)


def _windows(places: torch.Tensor, seen: torch.Tensor, half: torch.Tensor, tangent: float, S: int) -> tuple[torch.Tensor, ...]:
    """(top, left, side) of a square of pixels around each solid and each shadow, int64 [2, N, M]; side 0 if it isn't in the
    picture.

    places: [2, 3, N, M], the centre along the camera's axis, right and up. seen: [2, 3, 3, N, M], the same for the solid's axes.
    The projected corners of the solid's box bound the window if all are in front of the camera; otherwise the window is the whole
    picture.
    """
    spans = seen * half
    first, second, third = (spans[:, :, i] for i in range(3))
    corners = torch.stack([places - first, places + first])
    corners = torch.cat([corners - second, corners + second])
    depth, x, y = torch.cat([corners - third, corners + third]).unbind(2)
    ahead = depth.clamp(min=1e-3) * tangent
    pixels = torch.stack([-y / ahead, x / ahead])  # downwards and to the right
    pixels = (pixels + 1) * (S / 2) - 0.5
    low, high = pixels.amin(1).floor(), pixels.amax(1).ceil()
    before, some = depth.amin(0) > 0.05, depth.amax(0) > 0.05
    start = torch.where(before, low, 0.0).clamp(0, S).long()
    end = torch.where(before, high, S - 1.0).clamp(-1, S - 1).long()
    length = (end - start + 1) * some
    side = torch.where((length > 0).all(0), length.amax(0), 0)
    return start[0], start[1], side


@functools.lru_cache(maxsize=8)
def _overlays(size: int, device: torch.device) -> torch.Tensor:
    """The textures to blend in: float32 [OVERLAYS, size, size, 3]."""
    grid = (torch.arange(size, device=device) + 0.5) / size
    u, v = grid.expand(size, size), grid[:, None].expand(size, size)
    return torch.stack([textures.overlay(i, u, v) for i in range(OVERLAYS)])


def _paint(device: torch.device) -> torch.Tensor:
    """Code -> packed colour, int32: every colour at every brightness; the brightest have a highlight."""
    level = torch.linspace(0, 1, LEVELS, device=device)[:, None]
    shine = ((level - 0.93) / 0.07).clamp(0, 1) ** 2 * 0.55
    tones = []
    for colour in COLOURS.values():
        tone = torch.tensor(colour, device=device) * (0.12 + 0.98 * level)
        tones.append(_packed((tone + (1 - tone) * shine).clamp(0, 1)))
    every = torch.cat(tones)
    return torch.cat([every, torch.zeros(2**CODE_BITS - len(every), dtype=torch.int32, device=device)])


@functools.lru_cache(maxsize=2)
def _tiles(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The tables from above, lit and in shadow, the floor last: packed int32 [textures, TILE * TILE + 1]."""
    grid = (torch.arange(TILE, device=device) + 0.5) / TILE
    u, v = grid.expand(TILE, TILE), grid[:, None].expand(TILE, TILE)
    floor = _packed(torch.tensor([FLOOR], device=device))
    pictures = [textures.table(i, u, v) for i in range(TRAINING_TEXTURES + UNSEEN_TEXTURES)]
    lit, dark = (torch.stack([torch.cat([_packed(p * s).view(-1), floor]) for p in pictures]) for s in (1.0, SHADE))
    return lit, dark


def _packed(colour: torch.Tensor) -> torch.Tensor:
    """Red, green and blue of 0 to 1 as bytes of an int32, red lowest."""
    red, green, blue = (colour * 255 + 0.5).int().unbind(-1)
    return red | (green << 8) | (blue << 16)


def _shrunk(image: torch.Tensor, by: int) -> torch.Tensor:
    """The mean of squares of pixels. image: float32 [N, H, W, C]."""
    n, H, W, C = image.shape
    return image.view(n, H // by, by, W // by, by, C).mean((2, 4))


def _sum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum of three numbers, always in the same order."""
    x, y, z = values.unbind(dim)
    return x + y + z
