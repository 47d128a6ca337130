"""A page under construction: its HTML, with notes of all clickable elements and all words on it."""

from __future__ import annotations

import contextlib
import functools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape
from importlib.resources import files

from mmrl_gui import icons, pictures
from mmrl_gui.themes import Look, style
from mmrl_gui.words import WORDS, Vocabulary

_NUMBER = re.compile(r'data-thing="(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A clickable element of a page."""

    number: int
    """Its index among the page's elements, in the order of the page."""
    role: str
    """button, link, tab, textbox, checkbox, radio, switch, slider, combobox, menuitem."""
    word: str
    """The text on it, or its use if there is none."""
    name: str
    """Its accessible name; that of an icon in a row or a card includes the row's or card's name."""
    text: bool
    """Whether it shows text; otherwise it is an icon, or a control without text."""
    icon: str = ""
    """Its icon, of `mmrl_gui.icons.ICONS`, if it shows one."""
    concept: str = ""
    """Its use, of `mmrl_gui.words.WORDS`, if it has a common one."""
    inside: str = ""
    """The name of its row or card; empty if it belongs to the whole page."""
    container: str = ""
    """row, card or post, if it is in one."""
    on: bool | None = None
    """State of a switch."""
    covered: bool = False
    """Whether something covers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A generated page."""

    kind: str
    """mail, shop, settings, ..."""
    html: str
    things: tuple[Thing, ...]
    said: tuple[str, ...]
    """The text on it outside its elements."""
    icons: tuple[tuple[str, str], ...]
    """(icon, name of its row or card) of every icon, also of those that can't be clicked."""
    language: str
    look: Look


@dataclass
class Sheet:
    """A page under construction. Its methods return HTML and note its elements."""

    draw: random.Random
    look: Look
    words: Vocabulary
    level: str
    """easy, middle or hard."""
    things: list[Thing] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    icons: list[tuple[str, str]] = field(default_factory=list)
    _inside: str = ""
    _container: str = ""
    _ids: int = 0

    @contextlib.contextmanager
    def within(self, container: str, label: str) -> Iterator[None]:
        """Elements that are made inside belong to a row, a card or a post of that name."""
        self._container, self._inside = container, label
        yield
        self._container = self._inside = ""

    def amount(self, easy: int, middle: int, hard: int) -> int:
        """About how many there are, by level."""
        most = {"easy": easy, "middle": middle, "hard": hard}[self.level]
        return max(1, min(most, 3) if self.look.tiny else most + self.draw.randint(-1, 1))

    def id(self, stem: str) -> str:
        self._ids += 1
        return f"{stem}{self._ids}"

    # -- words and pictures --------------------------------------------------------------------------------------------------

    def say(self, text: str, tag: str = "span", cls: str = "", attributes: str = "") -> str:
        """Text that can't be clicked."""
        self.said.append(text)
        return f'<{tag} class="{cls}" {attributes}>{escape(text)}</{tag}>'

    def icon(self, name: str, size: float = 1.25) -> str:
        self.icons.append((name, self._inside))
        return icons.svg(name, size, self.look.weight)

    def avatar(self, name: str) -> str:
        hue = self.draw.randrange(360)
        return f'<span class="av" style="background:hsl({hue} 45% 42%)" aria-hidden="true">{escape(name[:1])}</span>'

    def picture(self, kind: str, width: str, height: str) -> str:
        """A small picture. width, height: in CSS's units."""
        return f'<span class="th" style="width:{width};height:{height}">{pictures.svg(kind, self.draw)}</span>'

    # -- things --------------------------------------------------------------------------------------------------------------

    def button(self, concept: str, cls: str = "b", icon: str = "", acts: str = "", word: str = "") -> str:
        """A button with text. concept: its text, by language; or `word`, unchanged."""
        word = word or self.words[concept]
        mark = self._thing("button", word, text=True, icon=icon, concept=concept)
        return (
            f'<button type="button" class="{cls}" {mark} {acts}>{self.icon(icon, 1.15) if icon else ""}<span>'
            f"{escape(word)}</span></button>"
        )

    def icon_button(self, icon: str, concept: str, cls: str = "ib", acts: str = "", pressed: bool | None = None) -> str:
        """A button without text; its accessible name includes that of its row or card."""
        word = self.words[concept]
        called = f"{word}: {self._inside}" if self._inside else word
        mark = self._thing("button", word, name=called, icon=icon, concept=concept, on=pressed)
        state = "" if pressed is None else f'aria-pressed="{str(pressed).lower()}"'
        return (
            f'<button type="button" class="{cls}" aria-label="{escape(called)}" {state} {mark} {acts}>{self.icon(icon)}</button>'
        )

    def link(self, word: str, cls: str = "l", concept: str = "", acts: str = "") -> str:
        mark = self._thing("link", word, text=True, concept=concept)
        return f'<a class="{cls}" href="#" {mark} {acts}>{escape(word)}</a>'

    def entry(
        self, concept: str, icon: str = "", current: bool = False, shows: str = "", extra: str = "", bare: bool = False
    ) -> str:
        """An entry of a navigation. bare: only its icon."""
        word = self.words[concept]
        mark = self._thing("link", word, text=not bare, icon=icon, concept=concept)
        here = 'aria-current="page"' if current else ""
        shown = f'data-page data-shows="{shows}"' if shows else "data-page"
        label = f'aria-label="{escape(word)}"' if bare or extra else ""
        if bare:
            return f'<a class="n" href="#" {label} {here} {shown} {mark}>{self.icon(icon, 1.5)}</a>'
        drawn = self.icon(icon, 1.15) if icon else ""
        return f'<a class="n" href="#" {label} {here} {shown} {mark}>{drawn}<span class="cut">{escape(word)}</span>{extra}</a>'

    def tab(self, concept: str, selected: bool, shows: str = "") -> str:
        word = self.words[concept]
        mark = self._thing("tab", word, text=True, concept=concept)
        panel = f'data-shows="{shows}"' if shows else ""
        return (
            f'<button type="button" class="tab" role="tab" aria-selected="{str(selected).lower()}" {panel} {mark}>'
            f"{escape(word)}</button>"
        )

    def chip(self, word: str, pressed: bool = False, concept: str = "", one: bool = False) -> str:
        mark = self._thing("button", word, text=True, concept=concept, on=pressed)
        alone = 'data-one="1"' if one else ""
        return f'<button type="button" class="c" aria-pressed="{str(pressed).lower()}" {alone} {mark}>{escape(word)}</button>'

    def item(self, word: str, concept: str = "", acts: str = "", icon: str = "") -> str:
        """An entry of a menu."""
        mark = self._thing("menuitem", word, text=True, concept=concept, icon=icon)
        return (
            f'<button type="button" class="n" role="menuitem" {acts} {mark}>{self.icon(icon, 1.1) if icon else ""}'
            f"<span>{escape(word)}</span></button>"
        )

    def field(self, concept: str, value: str = "", hint: str = "", label: bool = True, kind: str = "text", id: str = "") -> str:
        """A text field under its label, or with its name inside if there is no label."""
        word = self.words[concept]
        hint = hint if label else word
        shown = "" if kind == "password" else value or hint
        mark = self._thing("textbox", word, text=bool(shown), concept=concept)
        box = (
            f'<input class="in" type="{kind}" aria-label="{escape(word)}" value="{escape(value)}" placeholder="{escape(hint)}" '
            f'autocomplete="off" spellcheck="false" {f"id={id}" if id else ""} {mark}>'
        )
        return f'<div class="field"><span class="sm mu">{escape(word)}</span>{box}</div>' if label else box

    def finder(self, concept: str = "search") -> str:
        """A search field."""
        glass = self.icon("magnifying glass", 1.05)
        return f'<div class="find grow"><span class="mu">{glass}</span>{self.field(concept, label=False)}</div>'

    def choice(self, concept: str, options: list[str]) -> str:
        """A field whose value is chosen from a closed menu."""
        word, id = self.words[concept], self.id("m")
        mark = self._thing("combobox", word, text=True, concept=concept)
        lines = "".join(
            f'<button type="button" class="n" role="option" data-thing data-sets="#b{id}"><span>{escape(o)}</span></button>'
            for o in options
        )
        return (
            f'<div class="field" style="position:relative"><span class="sm mu">{escape(word)}</span>'
            f'<button type="button" class="in sel" role="combobox" aria-haspopup="listbox" aria-label="{escape(word)}" '
            f'data-opens="#{id}" id="b{id}" {mark}><span>{escape(options[0])}</span>{self.icon("down chevron", 1)}</button>'
            f'<div class="menu" id="{id}" style="left:0;right:0;top:100%" hidden>{lines}</div></div>'
        )

    def switch(self, concept: str, on: bool) -> str:
        """The switch without its label, which is beside it."""
        word = self.words[concept]
        mark = self._thing("switch", word, concept=concept, on=on)
        return (
            f'<button type="button" class="sw" role="switch" aria-checked="{str(on).lower()}" '
            f'aria-label="{escape(word)}" {mark}></button>'
        )

    def check(self, word: str, on: bool, concept: str = "", role: str = "checkbox") -> str:
        """The box without its row or label, which is beside it. role: checkbox or radio."""
        mark = self._thing(role, word, concept=concept, on=on)
        shape = "ck ra" if role == "radio" else "ck"
        tick = self.icon("tick", 0.9) if role == "checkbox" else ""
        return (
            f'<button type="button" class="{shape}" role="{role}" aria-checked="{str(on).lower()}" '
            f'aria-label="{escape(word)}" {mark}>{tick}</button>'
        )

    def slider(self, concept: str, at: int) -> str:
        """at: percent."""
        word = self.words[concept]
        mark = self._thing("slider", word, concept=concept)
        return (
            f'<div class="sl" role="slider" tabindex="0" aria-label="{escape(word)}" aria-valuemin="0" aria-valuemax="100" '
            f'aria-valuenow="{at}" style="--at:{at}%" {mark}><i></i><b></b></div>'
        )

    def day(self, number: int, today: bool) -> str:
        """A day of a calendar."""
        mark = self._thing("button", str(number), text=True, on=today)
        return f'<button type="button" data-one="1" aria-pressed="{str(today).lower()}" {mark}>{number}</button>'

    # -- the page ------------------------------------------------------------------------------------------------------------

    def page(self, kind: str, body: str) -> Page:
        """The page of a body. Its elements are those in the body, numbered in its order."""
        order = [int(number) for number in _NUMBER.findall(body)]
        places = {old: new for new, old in enumerate(order)}
        body = _NUMBER.sub(lambda found: f'data-thing="{places[int(found[1])]}"', body)
        html = (
            f'<!DOCTYPE html><html lang="{self.words.language}"><head><meta charset="utf-8"><title>{kind}</title>'
            f'<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
            f"<style>{style(self.look)}</style></head><body>{body}<script>{script()}</script></body></html>"
        )
        return Page(
            kind=kind,
            html=html,
            things=tuple(replace(self.things[old], number=new) for new, old in enumerate(order)),
            said=tuple(self.said),
            icons=tuple(self.icons),
            language=self.words.language,
            look=self.look,
        )

    def _thing(
        self,
        role: str,
        word: str,
        *,
        name: str = "",
        text: bool = False,
        icon: str = "",
        concept: str = "",
        on: bool | None = None,
    ) -> str:
        number = len(self.things)
        self.things.append(
            Thing(
                number=number, role=role, word=word, name=name or word, text=text, icon=icon,
                concept=concept if concept in WORDS else "", inside=self._inside, container=self._container, on=on,
            )
        )  # fmt: skip
        return f'data-thing="{number}"'


@functools.cache
def script() -> str:
    """Effects of clicks: switches flip, tabs and menus open, dialogs close, rows disappear; other elements show their name."""
    return files("mmrl_gui").joinpath("page.js").read_text(encoding="utf-8")
