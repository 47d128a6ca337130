"""Realistic pages, generated from a seed: mail, a shop, settings and more, in many looks, sizes and languages.

Everything on them is generated, icons and pictures included; nothing is fetched. They work: switches flip, tabs open, rows
disappear. With other fonts the same page may differ slightly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from mmrl_gui import boards, forms, lists
from mmrl_gui.sheet import Page, Sheet, Thing
from mmrl_gui.themes import THEMES, draw_look
from mmrl_gui.words import LANGUAGES, Vocabulary

__all__ = ["KINDS", "LANGUAGES", "LEVELS", "SIZES", "THEMES", "Page", "Thing", "draw_page", "platform"]

LEVELS = ("easy", "middle", "hard")
SIZES: Mapping[str, tuple[int, int]] = {"small": (168, 224), "mobile": (360, 640), "desktop": (1280, 800)}
"""Name -> (width, height) in pixels; `small` is for tiny models."""
_MAKERS: Mapping[str, Callable[[Sheet], Page]] = {
    "mail": lists.mail,
    "files": lists.files,
    "chat": lists.chat,
    "contacts": lists.contacts,
    "settings": forms.settings,
    "wizard": forms.wizard,
    "sign-in": forms.sign_in,
    "shop": boards.shop,
    "dashboard": boards.dashboard,
    "calendar": boards.calendar,
    "player": boards.player,
    "posts": boards.posts,
}
KINDS = tuple(_MAKERS)
_PROGRAMS = frozenset(("files", "settings", "player", "chat"))
"""Kinds that are desktop programs on a wide screen; the others are web pages."""


def draw_page(
    draw: random.Random,
    kind: str,
    size: tuple[int, int],
    level: str = "middle",
    themes: Sequence[str] = THEMES,
    languages: Sequence[str] = ("en",),
) -> Page:
    """A page of a kind, of `KINDS`. size: (width, height) in pixels. level: easy, middle or hard: number and size of its
    elements."""
    look = draw_look(draw, size, draw.choice(tuple(themes)), level)
    return _MAKERS[kind](Sheet(draw, look, Vocabulary(draw.choice(tuple(languages))), level))


def platform(page: Page) -> str:
    """mobile, desktop or web, as in benchmarks."""
    return "mobile" if page.look.narrow else "desktop" if page.kind in _PROGRAMS else "web"
