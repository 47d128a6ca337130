"""The frame of pages: a bar at the top, a navigation at the side or at the bottom, a dialog over the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmrl_gui.sheet import Sheet


def app_bar(sheet: Sheet, title: str, tools: str, deep: bool = False, search: bool = True) -> str:
    """The bar on top: a way to the menu, the page's title, its tools. title: a concept. deep: sometimes in a strong colour."""
    draw, look = sheet.draw, sheet.look
    lead = ""
    if look.narrow and not look.tiny and draw.random() < 0.6:
        lead = sheet.icon_button(*draw.choice((("three lines", "menu"), ("left arrow", "back"))))
    name = sheet.say(sheet.words[title], "h1" if not look.tiny else "h2", "cut", "data-heading")
    middle = '<span class="grow"></span>'
    if search and not look.narrow and draw.random() < 0.7:
        middle = (
            f'<div class="grow h" style="justify-content:center"><div style="width:min(26em,90%)">{sheet.finder()}</div></div>'
        )
    account = ""
    if not look.narrow:
        pairs = [("bell", "notifications"), ("gear", "settings"), ("question mark", "help"), ("person", "profile")]
        account = "".join(sheet.icon_button(icon, concept) for icon, concept in draw.sample(pairs, sheet.amount(1, 2, 3)))
    strong = " deep" if deep and draw.random() < 0.4 else ""
    return f'<header class="top{strong}">{lead}{name}{middle}{tools}{account}</header>'


def navigation(sheet: Sheet, entries: Sequence[tuple[str, str]], badge: str = "") -> str:
    """Lines for the side, or for the foot of a narrow page, there sometimes icons alone. entries: (concept, icon). badge: a
    number beside the first."""
    drawn = []
    bare = sheet.look.tiny or (sheet.look.narrow and sheet.draw.random() < 0.3)
    for number, (concept, icon) in enumerate(entries):
        extra = sheet.say(badge, cls="bd") if badge and not number and not sheet.look.narrow else ""
        drawn.append(sheet.entry(concept, icon, not number, extra=extra, bare=bare))
    return "".join(drawn)


def with_sides(sheet: Sheet, top: str, nav: str, body: str) -> str:
    """A page with its navigation: at the side where there is room, else at the foot."""
    main = f'<main class="main-area" style="position:relative">{body}</main>'
    if not sheet.look.narrow:
        return f'{top}<div class="body"><nav class="side">{nav}</nav>{main}</div>'
    return f'{top}<div class="body">{main}</div><nav class="foot">{nav}</nav>'


def dialog(sheet: Sheet, question: str, buttons: str) -> str:
    """A dialog over the page: everything that was drawn before its buttons is covered. question: a concept. The buttons come
    last in `sheet.things`."""
    own = buttons.count("data-thing=")
    sheet.things[:-own] = [replace(thing, covered=True) for thing in sheet.things[:-own]]
    asked = sheet.say(sheet.words[question], "h2")
    return f'<div class="veil"><div class="dialog" role="dialog">{asked}<div class="h end">{buttons}</div></div></div>'
