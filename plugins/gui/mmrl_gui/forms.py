"""Pages of forms: settings, a form in steps, signing in."""

from __future__ import annotations

from mmrl_gui.frame import app_bar, navigation, with_sides
from mmrl_gui.sheet import Page, Sheet
from mmrl_gui.words import GIVEN, PLACES

_SECTIONS = (
    *(("general", "gear"), ("notifications", "bell"), ("privacy", "eye"), ("security", "padlock"), ("language", "globe")),
    *(("sound", "loudspeaker"), ("display", "sun"), ("battery", "battery")),
)
_SWITCHES = (
    *(
        ("wifi", "radio waves"),
        ("bluetooth", "bluetooth sign"),
        ("location", "map pin"),
        ("darkmode", "moon"),
        ("updates", "round arrow"),
    ),
    *(("notifications", "bell"), ("newsletter", "envelope"), ("shared", "person")),
)
_SLIDERS = (("volume", "loudspeaker"), ("brightness", "sun"), ("textsize", "magnifying glass"))


def settings(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    top = app_bar(
        sheet, "settings", sheet.icon_button("magnifying glass", "search") if look.narrow and not look.tiny else "", search=False
    )
    form = "side" if not look.narrow and draw.random() < 0.6 else "tabs"
    sections = draw.sample(_SECTIONS, 2 if look.tiny else 3 if look.narrow or form == "tabs" else 6)
    switches = draw.sample(_SWITCHES, min(8, sheet.amount(2, 4, 6) + (not look.narrow)))
    sliders = draw.sample(_SLIDERS, 1 if sheet.level == "easy" or look.tiny else 2)
    taken = {concept for concept, _ in switches}
    sections = [s for s in sections if s[0] not in taken] or sections[:1]
    tabs = "".join(sheet.tab(concept, not k, f"p{k}") for k, (concept, _) in enumerate(sections)) if form == "tabs" else ""
    lead = f'<div class="tabs" role="tablist">{tabs}</div>' if tabs else ""
    nav = navigation(sheet, sections) if form == "side" else ""
    first = "".join(_switch_row(sheet, concept, icon) for concept, icon in switches)
    second = "".join(_slider_row(sheet, concept, icon) for concept, icon in sliders)
    box = (
        f'<section class="panel" data-panel="p0" style="gap:var(--s)">{first}</section><section class="panel">{second}</section>'
    )
    box += "".join(_other(sheet, k) for k in range(1, len(sections))) if form == "tabs" else ""
    if sheet.level != "easy" and not look.tiny:
        box += f'<section class="panel">{sheet.choice("language", ["English", "Deutsch", "Français", "Polski"])}</section>'
    save = "" if look.tiny else f'<div class="h end">{sheet.button("cancel", "b")}{sheet.button("save", "b main")}</div>'
    wide = "max-width:46em;width:100%;margin:0 auto;" if not look.narrow else ""
    body = f'{lead}<div class="v" style="{wide}gap:calc(var(--s)*2)">{box}{save}</div>'
    if form == "side":
        return sheet.page("settings", with_sides(sheet, top, nav, body))
    return sheet.page("settings", f'{top}<div class="body"><main class="main-area">{body}</main></div>')


def _other(sheet: Sheet, number: int) -> str:
    """The content of another tab, hidden until it is opened."""
    lines = "".join(f'<div class="row"><span>{title}</span></div>' for title in sheet.words.titles(sheet.draw, 3))
    return f'<section class="panel" data-panel="p{number}" hidden>{lines}</section>'


def _switch_row(sheet: Sheet, concept: str, icon: str) -> str:
    label = f'<span class="grow cut">{sheet.words[concept]}</span>'
    lead = f'<span class="mu">{sheet.icon(icon)}</span>' if not sheet.look.tiny else ""
    return (
        f'<div class="h between" style="padding:var(--s) 0">{lead}{label}{sheet.switch(concept, sheet.draw.random() < 0.5)}</div>'
    )


def _slider_row(sheet: Sheet, concept: str, icon: str) -> str:
    at = sheet.draw.randint(8, 92)
    label = f'<span style="width:6.5em" class="cut">{sheet.words[concept]}</span>'
    lead = f'<span class="mu">{sheet.icon(icon)}</span>' if not sheet.look.tiny else ""
    return f'<div class="h">{lead}{label}{sheet.slider(concept, at)}</div>'


def wizard(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    top = app_bar(sheet, "checkout", sheet.icon_button("cross", "close"), search=False)
    steps: tuple[str, ...] = ("account", "delivery", "payment", "review")
    at = draw.randrange(1, 3)
    steps = steps[at : at + 1] if look.tiny else steps
    at = 0 if look.tiny else at
    marks = "".join(
        f'<span class="step{" on" if k == at else ""}"><b>{k + 1}</b>'
        f"{'' if look.narrow and k != at else sheet.say(sheet.words[step], cls='cut')}</span>"
        for k, step in enumerate(steps)
    )
    fields = ["name", "email", "phone", "address", "city", "notes"]
    count = 1 if look.tiny else 3 if sheet.level == "easy" else 4 if look.narrow else 6
    chosen = sorted(draw.sample(fields, count), key=fields.index)
    value = {"name": draw.choice(GIVEN), "city": draw.choice(PLACES)}
    inputs = "".join(sheet.field(f, value.get(f, "") if draw.random() < 0.5 else "") for f in chosen)
    if sheet.level != "easy" and not look.tiny:
        inputs += sheet.choice("country", draw.sample(["Portugal", "Norway", "Kenya", "Peru", "Japan", "Poland"], 4))
    columns = 1 if look.narrow else 2
    form = f'<div class="grid" style="grid-template-columns:repeat({columns},minmax(0,1fr))">{inputs}</div>'
    ways = draw.sample(["PayPal", "Visa", "IBAN", "Klarna"], 2 if look.narrow else 3)
    pay = "".join(
        f'<label class="h">{sheet.check(way, not k, role="radio")}<span>{way}</span></label>' for k, way in enumerate(ways)
    )
    pay = (
        f'<div class="h wrap" role="radiogroup" style="gap:calc(var(--s)*3)">{pay}</div>'
        if sheet.level != "easy" and not look.tiny
        else ""
    )
    agree = (
        ""
        if look.tiny
        else f'<div class="h">{sheet.check(sheet.words["terms"], False, "terms")}<span class="cut">'
        f"{sheet.words['terms']}</span></div>"
    )
    buttons = (
        f'<div class="h {"between" if draw.random() < 0.5 else "end"}">{sheet.button("back", "b")}'
        f"{sheet.button('next', 'b main')}</div>"
    )
    wide = "width:min(44em,100%);margin:0 auto" if not look.narrow else ""
    body = (
        f'<div class="h wrap between" style="gap:calc(var(--s)*2)">{marks}</div><section class="panel">{form}{pay}'
        f"{agree}</section>{buttons}"
    )
    return sheet.page(
        "wizard",
        f'{top}<div class="body"><main class="main-area"><div class="v" style="gap:calc(var(--s)*3);{wide}">{body}'
        f"</div></main></div>",
    )


def sign_in(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    mark = draw.choice(("globe", "key", "paper plane", "heart", "box", "moon"))
    logo = (
        f'<div style="color:var(--ac);display:flex;justify-content:center">{sheet.icon(mark, 2.6 if not look.tiny else 2)}</div>'
    )
    title = sheet.say(
        draw.choice(("Nordlicht", "Cumulus", "Pardo", "Tessera", "Quill")), "h1", attributes='style="text-align:center"'
    )
    labelled = draw.random() < 0.6
    fields = sheet.field("email", label=labelled and not look.tiny)
    secret = sheet.field("password", label=labelled and not look.tiny, kind="password")
    if sheet.level != "easy" and not look.tiny:
        secret = (
            f'<div class="h" style="align-items:flex-end"><div class="grow">{secret}</div>'
            f"{sheet.icon_button('eye', 'display')}</div>"
        )
    stay = (
        f'<div class="h">{sheet.check(sheet.words["remember"], draw.random() < 0.3, "remember")}<span>'
        f"{sheet.words['remember']}</span></div>"
    )
    forgot = sheet.link(sheet.words["forgot"], "l sm", "forgot")
    middle = f'<div class="h wrap between">{stay if not look.tiny else ""}{forgot}</div>'
    go = sheet.button("signin", "b main wide")
    new = sheet.button("signup", "b wide") if not look.tiny and (sheet.level != "easy" or draw.random() < 0.5) else ""
    others = ""
    if sheet.level == "hard" and not look.tiny:
        pairs = draw.sample(
            [("globe", "language"), ("question mark", "help"), ("telephone", "phone"), ("envelope", "messages")], 3
        )
        others = (
            f'<div class="h" style="justify-content:center">'
            f"{''.join(sheet.icon_button(i, c, 'ib framed') for i, c in pairs)}</div>"
        )
    inside = ("" if look.tiny else logo) + title + fields + secret + middle + go + new + others
    room = f"width:min(24em,100%);gap:calc(var(--s)*2);padding:calc(var(--s)*{1 if look.tiny else 4})"
    card = f'<div class="v {"" if look.tiny else "card"}" style="{room}">{inside}</div>'
    side = ""
    if not look.narrow and draw.random() < 0.5:
        side = f'<div style="width:45%;flex:none">{sheet.picture("view", "100%", "100%")}</div>'
    middle = f'<main class="main-area" style="align-items:center;justify-content:center">{card}</main>'
    return sheet.page("sign-in", f'<div class="body">{side}{middle}</div>')
