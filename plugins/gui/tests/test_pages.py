"""Pages drawn here: sound HTML of their own, the same everywhere; instructions that fit one thing alone."""

import random
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from mmrl_gui import icons, words
from mmrl_gui.pages import KINDS, LEVELS, SIZES, draw_page, platform
from mmrl_gui.phrases import _ALIKE, _DO, _DO_IN, _POST, _SAME_USE, fold, wishes
from mmrl_gui.sheet import Page, Thing

LEAVES = frozenset(("meta", "link", "input", "path", "circle", "rect", "br"))


def some(count=216, **options):
    """Pages of every kind, size, level and language."""
    for i in range(count):
        size, level = list(SIZES.values())[i // 12 % 3], LEVELS[i // 36 % 3]
        yield draw_page(random.Random(i), KINDS[i % len(KINDS)], size, level, languages=words.LANGUAGES, **options)


class Reader(HTMLParser):
    """What an HTML page holds: its elements with their attributes, and the text in each."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts, self.wrong = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", **dict(attrs)}
        self.elements.append(element)
        if tag not in LEAVES:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append({"tag": tag, "text": "", **dict(attrs)})

    def handle_endtag(self, tag):
        if tag in LEAVES:
            return
        if not self.open or self.open[-1]["tag"] != tag:
            self.wrong.append(tag)
        else:
            self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1]["tag"] in ("style", "script", "title"):
            return
        if data.strip():
            self.texts.append((data.strip(), self.open[-1]))
        for element in self.open:
            element["text"] += data


# -- the pages --------------------------------------------------------------------------------------------------------------


def test_every_page_is_sound_and_holds_nothing_from_elsewhere():
    for page in some():
        read = Reader(page.html)
        assert not read.wrong and not read.open, (page.kind, read.wrong)
        assert not re.search(r"https?:|url\(|@import|<img|<iframe|srcset", page.html)
        marked = [e for e in read.elements if e.get("data-thing")]
        assert [int(e["data-thing"]) for e in marked] == sorted(range(len(page.things))), page.kind
        for element, thing in zip(marked, page.things, strict=True):
            name = element.get("aria-label") or " ".join(element["text"].split())
            assert name == thing.name and name.strip(), (page.kind, thing)
            assert (element.get("role") or {"a": "link", "button": "button", "input": "textbox"}[element["tag"]]) == thing.role


def test_pages_are_drawn_from_the_seed_alone_and_differ():
    pages = [page.html for page in some()]
    assert pages == [page.html for page in some()] and len(set(pages)) == len(pages)
    code = (
        "import hashlib, random; from mmrl_gui.pages import *\n"
        "pages = [draw_page(random.Random(i), k, (360, 640)).html for i, k in enumerate(KINDS)]\n"
        "print([hashlib.sha256(page.encode()).hexdigest() for page in pages])"
    )
    outs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": str(h), "PATH": ""}, check=True, capture_output=True, text=True
        ).stdout
        for h in (1, 2)
    }
    assert len(outs) == 1


def test_all_looks_come_up():
    found = list(some(360))
    assert {p.look.theme for p in found} == {"light", "dark"} and {p.language for p in found} == set(words.LANGUAGES)
    assert len({p.look.font for p in found}) == 6 and len({p.look.text for p in found}) >= 7
    assert {platform(p) for p in found} == {"mobile", "desktop", "web"}
    roles = {t.role for p in found for t in p.things}
    assert roles == {"button", "link", "tab", "textbox", "checkbox", "radio", "switch", "slider", "combobox"}
    assert len({t.icon for p in found for t in p.things if not t.text}) > 40
    assert any(t.covered for p in found for t in p.things)


def test_harder_pages_hold_more():
    def mean(level):
        pages = [draw_page(random.Random(i), k, SIZES["desktop"], level) for i in range(10) for k in KINDS]
        return sum(len(p.things) for p in pages) / len(pages)

    easy, middle, hard = map(mean, LEVELS)
    assert easy * 1.2 < middle and middle * 1.2 < hard


def test_only_the_themes_and_languages_that_are_asked_for():
    assert {p.look.theme for p in some(30, themes=("dark",))} == {"dark"}
    page = draw_page(random.Random(0), "settings", (360, 640), languages=("pl",))
    assert "Ustawienia" in page.said and page.language == "pl"


def test_the_words_are_whole_and_every_use_is_known():
    for concept, written in words.WORDS.items():
        assert list(written) == list(words.LANGUAGES) and all(w.strip() == w and w for w in written.values()), concept
    uses = {*_DO, *_DO_IN, *_POST, *(c for group in _SAME_USE for c in group)}
    assert uses <= set(words.WORDS), uses - set(words.WORDS)
    assert {i for group in _ALIKE for i in group} - set(icons.ICONS) <= {"camera"} | {"bag"}
    for page in some(60):
        assert all(t.icon in icons.ICONS for t in page.things if t.icon)
        assert all(t.concept in words.WORDS for t in page.things if t.concept)


# -- the instructions -------------------------------------------------------------------------------------------------------


def asked(page: Page, level: str):
    draw = random.Random(1)
    return [wish for thing in page.things for wish in wishes(page, thing, draw, level)]


def test_no_instruction_fits_two_things():
    """The page's HTML is read anew, without its notes: an icon that is named without its row stands there once; a word that is
    quoted stands there once."""
    checked = {"name": 0, "icon": 0}
    for page in some(120):
        read = Reader(page.html)
        for wish in asked(page, "middle"):
            if wish.way == "icon" and "in the" not in wish.text and "on the card" not in wish.text:
                drawn = icons.ICONS[wish.thing.icon]
                assert page.html.count(drawn) == 1, (page.kind, wish.text)
                checked["icon"] += 1
            if wish.way == "name" and wish.thing.role in ("link", "button", "tab") and f"'{wish.thing.word}'." in wish.text:
                there = [e for text, e in read.texts if fold(text) == fold(wish.thing.word)]
                assert len(there) == 1, (page.kind, wish.text)
                checked["name"] += 1
    assert min(checked.values()) > 200, checked


def test_every_level_asks_in_its_ways():
    ways = {level: {w.way for page in some(36) for w in asked(page, level)} for level in LEVELS}
    assert ways == {"easy": {"name", "icon"}, "middle": {"name", "icon", "use"}, "hard": {"name", "icon", "use"}}


def thing(number, **fields):
    return Thing(number=number, role="button", **{"word": "Delete", "name": "Delete", "text": False, **fields})


def page_of(*things, said=(), icons_drawn=None):
    base = draw_page(random.Random(0), "mail", (360, 640))
    drawn = icons_drawn if icons_drawn is not None else [(t.icon, t.inside) for t in things if t.icon]
    return replace(base, things=tuple(things), said=tuple(said), icons=tuple(drawn))


def texts(page, number, level="middle"):
    return {w.way: w.text for w in wishes(page, page.things[number], random.Random(0), level)}


def test_what_is_alike_is_told_apart_by_its_row_or_not_at_all():
    trash = {"icon": "trash", "concept": "delete"}
    alone = page_of(thing(0, **trash))
    assert texts(alone, 0)["icon"] == "Tap the trash icon."
    rows = [thing(i, name=f"Delete: {label}", inside=label, container="row", **trash) for i, label in enumerate(("A", "B"))]
    assert texts(page_of(*rows), 0) == {"icon": "Tap the trash icon in the row of 'A'.", "use": "Delete 'A'."}
    same = [replace(row, inside="A") for row in rows]
    assert texts(page_of(*same), 0) == {}
    assert texts(page_of(*rows, said=("x, A",)), 0) == {}, "the name of the row stands elsewhere, too"
    drawn_besides = page_of(thing(0, **trash), icons_drawn=[("trash", ""), ("trash", "")])
    assert "icon" not in texts(drawn_besides, 0)
    lookalike = page_of(thing(0, icon="left arrow"), thing(1, icon="left chevron", word="x", name="x"))
    assert "icon" not in texts(lookalike, 0)


def test_what_is_written_twice_is_not_asked_for_by_its_words():
    save = {"word": "Save", "name": "Save", "text": True, "concept": "save"}
    assert texts(page_of(thing(0, **save)), 0)["name"].startswith("Tap ")
    assert "name" not in texts(page_of(thing(0, **save), thing(1, word="save", name="SAVE", text=True)), 0)
    assert "name" not in texts(page_of(thing(0, **save), said=("Save",)), 0)
    assert "use" not in texts(page_of(thing(0, **save), thing(1, word="OK", name="OK", text=True, concept="confirm")), 0)


def test_switches_are_asked_for_by_what_they_are_not():
    for on, verb in ((True, "off"), (False, "on")):
        page = page_of(thing(0, word="Wi-Fi", name="Wi-Fi", on=on))
        page = replace(page, things=(replace(page.things[0], role="switch"),))
        assert texts(page, 0) == {"name": f"Turn {verb} 'Wi-Fi'."}


@pytest.mark.parametrize("name", icons.ICONS)
def test_every_icon_is_drawn_within_its_square(name):
    numbers = [float(v) for v in re.findall(r'(?:cx|cy|x|y)="([\d.]+)"', icons.ICONS[name])]
    starts = [float(v) for pair in re.findall(r"[ML](-?[\d.]+) ?(-?[\d.]+)", icons.ICONS[name]) for v in pair]
    assert numbers + starts and all(0 <= v <= 24 for v in numbers + starts)
