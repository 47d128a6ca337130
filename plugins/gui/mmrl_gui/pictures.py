"""Small pictures on generated pages: goods of a shop, covers, landscapes; a few shapes each, in random colours."""

from __future__ import annotations

import random

_GOODS = {
    "mug": '<rect x="28" y="34" width="36" height="40" rx="5"/>'
    '<path d="M64 42h8a9 9 0 0 1 0 22h-8" fill="none" stroke-width="6" class="s"/>',
    "lamp": '<path d="M36 22h28l12 28H24z"/><path d="M47 50h6v24h-6zM34 74h32v6H34z" class="d"/>',
    "book": '<path d="M26 22h44a4 4 0 0 1 4 4v54H30a6 6 0 0 1-6-6V24z"/>'
    '<path d="M24 74a6 6 0 0 1 6-6h44v4H32v4h42v4H30a6 6 0 0 1-6-6z" class="d"/>',
    "plant": '<path d="M50 56C30 52 24 36 26 20c16 2 26 16 24 36zM50 56c18-4 26-16 26-32-16 2-28 14-26 32z"/>'
    '<path d="M34 56h32l-4 26H38z" class="d"/>',
    "bag": '<path d="M24 38h52l5 42H19z"/><path d="M37 46V32a13 13 0 0 1 26 0v14" fill="none" stroke-width="5" class="e"/>',
    "chair": '<path d="M32 18h36l3 34H29z"/><path d="M26 52h48v8H26zM29 60h6v24h-6zM65 60h6v24h-6z" class="d"/>',
    "bottle": '<path d="M43 14h14v14l8 12v42a4 4 0 0 1-4 4H39a4 4 0 0 1-4-4V40l8-12z"/><path d="M35 50h30v18H35z" class="d"/>',
    "watch": '<path d="M40 10h20l4 20H36zM36 70h28l-4 20H40z" class="d"/><circle cx="50" cy="50" r="25"/>'
    '<path d="M50 36v15l9 6" fill="none" stroke-width="4" class="e"/>',
    "shirt": '<path d="M36 20l-22 12 8 18 10-4v36h36V46l10 4 8-18-22-12c-4 10-24 10-28 0z"/>',
    "ball": '<circle cx="50" cy="50" r="31"/><path d="M19 50h62M50 19c-18 18-18 44 0 62M50 19c18 18 18 44 0 62" '
    'fill="none" stroke-width="4" class="e"/>',
}
KINDS = (*_GOODS, "cover", "view")


def svg(kind: str, draw: random.Random) -> str:
    """A picture that fills its container. kind: of `KINDS`."""
    hue = draw.randrange(360)
    if kind in _GOODS:
        paint = (
            f"<g fill='hsl({hue} 55% 52%)'>{_GOODS[kind]}</g>".replace('class="d"', f'fill="hsl({hue} 45% 34%)"')
            .replace('class="s"', f'stroke="hsl({hue} 55% 52%)"')
            .replace('class="e"', f'stroke="hsl({hue} 40% 28%)"')
        )
        inside = f'<rect width="100" height="100" fill="hsl({(hue + 30) % 360} 35% 90%)"/>{paint}'
    else:
        inside = _cover(draw, hue) if kind == "cover" else _view(draw, hue)
    return (
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="xMidYMid slice" width="100%" height="100%" '
        f'style="display:block" aria-hidden="true">{inside}</svg>'
    )


def _cover(draw: random.Random, hue: int) -> str:
    """Circles, bars or waves on one ground."""
    ground = f'<rect width="100" height="100" fill="hsl({hue} 50% 28%)"/>'
    other = (hue + draw.choice((40, 150, 200))) % 360
    form = draw.randrange(3)
    if form == 0:
        return ground + "".join(
            f'<circle cx="{draw.randint(10, 90)}" cy="{draw.randint(10, 90)}" r="{draw.randint(10, 36)}" '
            f'fill="hsl({other} 70% {draw.randint(45, 70)}%)" opacity=".75"/>'
            for _ in range(4)
        )
    if form == 1:
        turn = draw.choice((0, 30, 45, 90))
        bars = "".join(
            f'<rect x="{x}" y="-30" width="{draw.randint(5, 14)}" height="160" fill="hsl({other} 65% {draw.randint(40, 75)}%)"/>'
            for x in range(-20, 120, 20)
        )
        return ground + f'<g transform="rotate({turn} 50 50)">{bars}</g>'
    return ground + "".join(
        f'<path d="M0 {y}q25 -18 50 0t50 0v60H0z" fill="hsl({other} 60% {light}%)"/>'
        for y, light in ((45, 62), (62, 50), (80, 38))
    )


def _view(draw: random.Random, hue: int) -> str:
    """Hills under a sky."""
    sun = f'<circle cx="{draw.randint(15, 85)}" cy="{draw.randint(15, 40)}" r="{draw.randint(6, 12)}" fill="hsl(45 90% 70%)"/>'
    hills = "".join(
        f'<path d="M-5 {y}L{draw.randint(5, 45)} {y - draw.randint(12, 30)}L{draw.randint(50, 95)} {y + 4}L105 '
        f'{y - draw.randint(4, 20)}V105H-5z" fill="hsl({(hue + 20 * k) % 360} 35% {58 - 14 * k}%)"/>'
        for k, y in enumerate((58, 74, 90))
    )
    return f'<rect width="100" height="100" fill="hsl({(hue + 180) % 360} 55% 82%)"/>{sun}{hills}'
