"""Instructions for elements of generated pages that fit exactly one element.

There are three ways to describe an element: by its text, by its icon, by its use. Each is used only if, by the page's own notes,
nothing else on it, clickable or not, could be meant.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from mmrl_gui.sheet import Page, Thing

WAYS = {"easy": ("name", "icon"), "middle": ("name", "icon", "use"), "hard": ("icon", "use", "name")}
"""Level -> ways of description."""
_DO = {
    "settings": "Open the settings",
    "search": "Start a search",
    "home": "Go to the start page",
    "profile": "Open your profile",
    "help": "Get help",
    "share": "Share this",
    "upload": "Upload a file",
    "print": "Print this",
    "back": "Go back one step",
    "next": "Go on to the next step",
    "add": "Add a new entry",
    "close": "Close this page",
    "menu": "Open the menu",
    "refresh": "Load the list anew",
    "undo": "Undo the last change",
    "copy": "Copy what is selected",
    "cut": "Cut out what is selected",
    "rename": "Rename what is selected",
    "delete": "Delete what is selected",
    "send": "Send the message",
    "reply": "Answer this message",
    "compose": "Write a new message",
    "inbox": "Show the mail that came in",
    "sent": "Show the mail that was sent",
    "drafts": "Show the unfinished mail",
    "spam": "Show the junk mail",
    "bin": "Look into the bin",
    "cart": "Look into the shopping cart",
    "filter": "Filter the list",
    "sort": "Sort the list",
    "favourite": "Show the favourites",
    "orders": "Show the orders",
    "account": "Open the account",
    "signin": "Log in",
    "signup": "Register as a new user",
    "forgot": "Recover a lost password",
    "export": "Export the data",
    "customers": "Show the customers",
    "invoices": "Show the invoices",
    "reports": "Show the reports",
    "notifications": "Show what is new",
    "messages": "Show the messages",
    "calls": "Show the calls",
    "contacts": "Show the contacts",
    "newevent": "Plan a new event",
    "today": "Jump to the current date",
    "previous": "Go to the month before",
    "week": "Show one week",
    "day": "Show one day",
    "month": "Show one month",
    "year": "Show one year",
    "play": "Start the music",
    "pause": "Stop the music for a while",
    "nexttrack": "Skip to the next song",
    "lasttrack": "Go back to the previous song",
    "shuffle": "Play in random order",
    "repeat": "Play it again and again",
    "playlists": "Show the playlists",
    "artists": "Show the artists",
    "albums": "Show the albums",
    "library": "Show the library",
    "call": "Make a telephone call",
    "videocall": "Start a video call",
    "attach": "Attach a file",
    "emoji": "Choose a smiley",
    "record": "Record a voice message",
    "newfolder": "Make a new folder",
    "gridview": "Show the files as tiles",
    "listview": "Show the files as a list",
    "download": "Download what is selected",
    "save": "Keep the changes",
    "cancel": "Leave everything as it was",
    "recent": "Show what was used lately",
    "photos": "Show the photos",
    "music": "Show the music",
    "shared": "Show what others share",
    "archive": "Put what is selected into the archive",
    "confirm": "Say yes",
    "display": "Show the password",
    "language": "Change the language",
    "overview": "Show the overview",
}
"""Use of an element of the whole page -> instruction."""
_DO_IN = {
    "delete": "Delete {0}",
    "archive": "Put {0} into the archive",
    "edit": "Edit {0}",
    "download": "Download {0}",
    "share": "Share {0}",
    "more": "Show what else can be done with {0}",
    "buy": "Put {0} into the cart",
    "call": "Telephone {0}",
    "videocall": "Make a video call to {0}",
    "email": "Write a mail to {0}",
}
_POST = {
    "reply": "Comment on the post of {0}",
    "share": "Share the post of {0}",
    "save": "Save the post of {0}",
    "more": "Show what else can be done with the post of {0}",
}
_ALIKE = (
    ("left arrow", "left chevron", "backward arrow", "skip back"),
    ("right arrow", "right chevron", "skip forward"),
    ("down arrow", "down chevron", "download"),
    ("up arrow", "upload"),
    ("three lines", "list"),
    ("round arrow", "repeat"),
    ("loudspeaker", "crossed-out loudspeaker"),
    ("envelope", "speech bubble"),
    ("sheet of paper", "two sheets"),
    ("sun", "gear"),
    ("video camera", "camera"),
    ("question mark", "letter i"),
    ("box", "price tag"),
    ("trolley", "bag"),
)
"""Icons that could be confused: if a page has two of them, neither is described by its icon."""
_SAME_USE = (
    ("back", "previous", "lasttrack", "undo"),
    ("next", "nexttrack"),
    ("close", "cancel"),
    ("bin", "delete"),
    ("cart", "buy"),
    ("compose", "messages", "email", "add", "newevent"),
    ("profile", "account"),
    ("signin", "signup"),
    ("home", "overview"),
    ("today", "day"),
    ("save", "confirm", "archive"),
    ("inbox", "messages"),
    ("sent", "send"),
    ("shared", "share"),
    ("spam", "bin"),
)
"""Uses that could be confused."""
_FIELDS, _CHECKS = ("textbox", "combobox"), ("checkbox", "radio", "switch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """An instruction, and its element."""

    thing: Thing
    text: str
    """The instruction."""
    way: str
    """name, icon or use: the way of description."""


def wishes(page: Page, thing: Thing, draw: random.Random, level: str) -> list[Wish]:
    """All unambiguous instructions for an element; empty if another is too similar."""
    press = "Tap" if page.look.narrow else draw.choice(("Click", "Click", "Click on", "Press", "Select"))
    makers = {"name": _by_name, "icon": _by_icon, "use": _by_use}
    found = ((way, makers[way](page, thing, draw, press)) for way in WAYS[level])
    return [Wish(thing=thing, text=f"{text}.", way=way) for way, text in found if text]


def _by_name(page: Page, thing: Thing, draw: random.Random, press: str) -> str:
    word = f"'{thing.word}'"
    if thing.role in _FIELDS:
        others = _others(page, thing, lambda o: o.role in _FIELDS and fold(o.word) == fold(thing.word))
        kind = "field" if thing.role == "textbox" else "list"
        return (
            ""
            if others
            else draw.choice((f"{press} the {kind} {word}", f"Go to the {kind} {word}", f"Activate the {word} {kind}"))
        )
    if thing.role in (*_CHECKS, "slider"):
        if _others(page, thing, lambda o: o.role == thing.role and fold(o.word) == fold(thing.word)):
            return ""
        return _switched(thing, word)
    if not thing.text:
        return ""
    clash = _others(page, thing, lambda o: o.role not in _CHECKS and fold(thing.word) in (fold(o.word), fold(o.name)))
    if not clash and not _is_said(page, thing.word):
        plain = [f"{press} {word}", f"{press} {word}", f"{press} the {_kind(thing)} {word}"]
        return draw.choice([*plain, f"Open {word}"] if thing.role == "link" else plain)
    within = _others(page, thing, lambda o: o.inside == thing.inside and fold(o.word) == fold(thing.word))
    if thing.inside and thing.word != thing.inside and not within and _is_clear(page, thing):
        return f"{press} {word} {_where(thing)}"
    return ""


def _switched(thing: Thing, word: str) -> str:
    if thing.role == "slider":
        return f"Use the slider {word}"
    if thing.role == "radio":
        return f"Choose {word}"
    if thing.role == "switch":
        return f"Turn {'off' if thing.on else 'on'} {word}"
    return f"{'Untick' if thing.on else 'Tick'} the box of {word}"


def _by_icon(page: Page, thing: Thing, draw: random.Random, press: str) -> str:
    if not thing.icon or thing.text:
        return ""
    like = next((group for group in _ALIKE if thing.icon in group), (thing.icon,))
    here = [icon for icon, inside in page.icons if icon in like and inside == thing.inside]
    anywhere = [icon for icon, _ in page.icons if icon in like]
    if len(anywhere) == 1:
        return f"{press} the {thing.icon} icon"
    if thing.inside and len(here) == 1 and _is_clear(page, thing):
        return f"{press} the {thing.icon} icon {_where(thing)}"
    return ""


def _by_use(page: Page, thing: Thing, draw: random.Random, press: str) -> str:
    if thing.role in (*_CHECKS, *_FIELDS, "slider") or not thing.concept:
        return ""
    group = {thing.concept, *(c for same in _SAME_USE if thing.concept in same for c in same)}
    if _others(page, thing, lambda o: o.inside == thing.inside and o.concept in group):
        return ""
    if not thing.inside:
        fits = thing.concept not in ("delete", "copy", "cut", "rename", "archive", "download", "share") or page.kind == "files"
        if page.kind == "calendar" and thing.concept == "next":
            return "Go to the month after"
        return _DO.get(thing.concept, "") if fits else ""
    if not _is_clear(page, thing):
        return ""
    return _of_container(thing)


def _of_container(thing: Thing) -> str:
    label = f"'{thing.inside}'"
    if thing.concept == "favourite":
        if thing.container == "post":
            return f"{'Take back the like of' if thing.on else 'Like'} the post of {label}"
        return f"Remove {label} from the favourites" if thing.on else f"Mark {label} as a favourite"
    text = (_POST if thing.container == "post" else _DO_IN).get(thing.concept, "")
    return text.format(label)


def _where(thing: Thing) -> str:
    of = {"row": "in the row of", "card": "on the card of", "post": "in the post of"}[thing.container]
    return f"{of} '{thing.inside}'"


def _kind(thing: Thing) -> str:
    return {"link": "link", "tab": "tab", "menuitem": "menu entry"}.get(thing.role, "button")


def _is_clear(page: Page, thing: Thing) -> bool:
    """Whether the name of the row or the card occurs nowhere else."""
    elsewhere = _others(page, thing, lambda o: o.inside != thing.inside and fold(thing.inside) in (fold(o.word), fold(o.inside)))
    return not elsewhere and not _is_said(page, thing.inside)


def _is_said(page: Page, word: str) -> bool:
    """Whether a word occurs on the page outside clickable elements, alone or in a list with commas."""
    return any(fold(word) in (fold(said), *map(fold, said.rstrip("?").split(","))) for said in page.said)


def _others(page: Page, thing: Thing, alike: Callable[[Thing], bool]) -> list[Thing]:
    return [other for other in page.things if other is not thing and alike(other)]


def fold(text: str) -> str:
    """The form in which words are compared."""
    return " ".join(text.split()).casefold()
