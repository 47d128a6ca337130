"""Pages of cards and tables: a shop, a dashboard, a calendar, a music player, a list of posts."""

from __future__ import annotations

import math

from mmrl_gui.frame import app_bar, navigation, with_sides
from mmrl_gui.sheet import Page, Sheet
from mmrl_gui.words import GIVEN, PLACES, SONGS, goods, price


def shop(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    cart = sheet.icon_button("trolley", "cart") if draw.random() < 0.75 or look.narrow else sheet.button("cart", "b", "trolley")
    top = app_bar(sheet, "products", cart, deep=True)
    nav = navigation(
        sheet, [("home", "house"), ("orders", "box"), ("favourite", "heart"), ("account", "person")][: 3 if look.tiny else 4]
    )
    count = 2 if look.tiny else sheet.amount(3, 4, 5) if look.narrow else sheet.amount(4, 8, 11)
    listed = look.narrow and (look.tiny or draw.random() < 0.5)
    cards = []
    for kind, name in goods(draw, count):
        with sheet.within("card", name):
            cards.append(_listed(sheet, kind, name) if listed else _card(sheet, kind, name))
    columns = 1 if listed else 2 if look.narrow else 3 if sheet.level == "easy" else 4
    kinds = [sheet.words["today"], *draw.sample(PLACES, 2)] if look.narrow else draw.sample(PLACES, 4)
    chips = "".join(sheet.chip(kind, not k, one=True) for k, kind in enumerate(kinds))
    tools = sheet.icon_button("funnel", "filter") + (sheet.icon_button("two arrows", "sort") if sheet.level != "easy" else "")
    bar = (
        ""
        if look.tiny
        else f'<div class="h"><div class="h" style="overflow:hidden">{chips}</div><span class="grow"></span>{tools}</div>'
    )
    body = f'{bar}<div class="grid" style="grid-template-columns:repeat({columns},minmax(0,1fr))">{"".join(cards)}</div>'
    return sheet.page("shop", with_sides(sheet, top, nav, body))


def _card(sheet: Sheet, kind: str, name: str) -> str:
    heart = sheet.icon_button("heart", "favourite", pressed=sheet.draw.random() < 0.2)
    link, cost = sheet.link(name, "l bare"), sheet.say(price(sheet.draw), "b")
    buy = (
        sheet.button("buy", "b main wide sm cut")
        if sheet.level != "easy" and not sheet.look.narrow
        else sheet.icon_button("trolley", "buy", "ib framed")
    )
    foot = (
        f'<div class="h between">{cost}{heart}</div>{buy}'
        if "wide" in buy
        else f'<div class="h between">{cost}<span class="h" style="gap:0">{heart}{buy}</span></div>'
    )
    return f'<div class="card v">{sheet.picture(kind, "100%", "7.5em" if not sheet.look.narrow else "5.5em")}{link}{foot}</div>'


def _listed(sheet: Sheet, kind: str, name: str) -> str:
    drawn = sheet.picture(kind, "3.4em", "3.4em")
    words = f'<div class="v grow" style="gap:0">{sheet.link(name, "l bare")}{sheet.say(price(sheet.draw), "span", "mu sm")}</div>'
    heart = "" if sheet.look.tiny else sheet.icon_button("heart", "favourite", pressed=sheet.draw.random() < 0.2)
    return f'<div class="card h">{drawn}{words}{heart}{sheet.icon_button("trolley", "buy", "ib framed")}</div>'


def dashboard(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    tools = (
        ""
        if look.tiny
        else sheet.icon_button("download", "export")
        if look.narrow
        else sheet.button("export", "b main", "download")
    )
    top = app_bar(sheet, "overview", tools)
    nav = navigation(
        sheet,
        [
            ("overview", "bar chart"),
            ("orders", "box"),
            ("customers", "person"),
            ("invoices", "sheet of paper"),
            ("reports", "list"),
        ][: 3 if look.narrow else 5],
    )
    spans = "".join(sheet.chip(sheet.words[c], not k, c, one=True) for k, c in enumerate(("day", "week", "month")))
    figures = (
        ""
        if look.tiny
        else "".join(
            _figure(sheet, c) for c in draw.sample(["customers", "orders", "amount", "products"], 2 if look.narrow else 4)
        )
    )
    columns = 2 if look.narrow else 4
    cards = f'<div class="grid" style="grid-template-columns:repeat({columns},minmax(0,1fr))">{figures}</div>' if figures else ""
    chart = "" if look.narrow else f'<div class="panel">{_chart(sheet)}</div>'
    body = f'<div class="h">{spans}</div>{cards}{chart}<div class="panel" style="padding:var(--s)">{_table(sheet)}</div>'
    return sheet.page("dashboard", with_sides(sheet, top, nav, body))


def _figure(sheet: Sheet, concept: str) -> str:
    change = sheet.draw.randint(-20, 40)
    value = sheet.say(f"{sheet.draw.randint(100, 9900):,}".replace(",", " "), "div", "big")
    return (
        f'<div class="card v" style="gap:0">{sheet.say(sheet.words[concept], cls="mu sm")}{value}'
        f"{sheet.say(f'{change:+d}%', cls='sm mu')}</div>"
    )


def _chart(sheet: Sheet) -> str:
    """A line or bars; not clickable."""
    draw = sheet.draw
    level = [50 + 30 * math.sin(k / draw.uniform(1.5, 3)) + draw.uniform(-14, 14) for k in range(24)]
    if draw.random() < 0.5:
        line = "L".join(f"{k * 10 + 5:.0f} {100 - v:.0f}" for k, v in enumerate(level))
        inside = f'<path d="M{line}" fill="none" stroke="var(--ac)" stroke-width="2.5" vector-effect="non-scaling-stroke"/>'
    else:
        inside = "".join(
            f'<rect x="{k * 10 + 1}" y="{100 - v:.0f}" width="8" height="{v:.0f}" fill="var(--ac)"/>' for k, v in enumerate(level)
        )
    return (
        f'<svg viewBox="0 0 240 100" preserveAspectRatio="none" style="width:100%;height:8em;display:block" '
        f'aria-hidden="true">{inside}</svg>'
    )


def _table(sheet: Sheet) -> str:
    draw, look = sheet.draw, sheet.look
    heads = ["title", "status"] if look.narrow else ["title", "status", "date", "amount"]
    heads = heads[:1] if look.tiny else heads
    head = "".join(f'<th class="{"num" if h == "amount" else ""}">{sheet.say(sheet.words[h])}</th>' for h in heads)
    rows = []
    for title in sheet.words.titles(draw, sheet.amount(3, 5, 7) if look.narrow else sheet.amount(5, 6, 7)):
        with sheet.within("row", title):
            cells = [sheet.link(title, "l bare")]
            cells += [sheet.say(sheet.words[draw.choice(("sent", "drafts", "archive"))], cls="st")] if "status" in heads else []
            cells += [sheet.say(f"{draw.randint(1, 28)} {draw.choice(sheet.words.months)}", cls="mu")] if "date" in heads else []
            cells += [sheet.say(f"{draw.randint(9, 990)}.{draw.randint(0, 99):02d}")] if "amount" in heads else []
            tools = [("pencil", "edit"), ("trash", "delete"), ("download", "download")][
                : 1 if look.narrow or sheet.level == "easy" else 3 if sheet.level == "hard" else 2
            ]
            acts = "".join(
                sheet.icon_button(icon, concept, acts="data-removes" if concept == "delete" else "") for icon, concept in tools
            )
            marked = "".join(f'<td class="{"num" if h == "amount" else ""}">{c}</td>' for h, c in zip(heads, cells, strict=True))
            rows.append(f'<tr class="row-line">{marked}<td style="width:1px"><div class="h" style="gap:0">{acts}</div></td></tr>')
    return f"<table><tr>{head}<th></th></tr>{''.join(rows)}</table>"


def calendar(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    month = draw.choice(sheet.words.months)
    new = (
        "" if look.tiny else sheet.icon_button("plus", "newevent") if look.narrow else sheet.button("newevent", "b main", "plus")
    )
    name = sheet.say(
        f"{month[0].upper()}{month[1:3] if look.narrow else month[1:]} {draw.randint(2024, 2031)}",
        "h2" if look.narrow else "h1",
        "cut",
    )
    back, on = sheet.icon_button("left chevron", "previous"), sheet.icon_button("right chevron", "next")
    spans = (
        ""
        if look.narrow
        else "".join(sheet.chip(sheet.words[c], c == "month", c, one=True) for c in ("day", "week", "month", "year"))
    )
    today = "" if look.tiny else sheet.icon_button("calendar", "today") if look.narrow else sheet.button("today", "b")
    top = f'<header class="top">{name}<span class="grow"></span>{back}{today}{on}{spans}{new}</header>'
    first, days, now = draw.randrange(7), draw.randint(28, 31), draw.randint(1, 28)
    names = "".join(f'<span class="mu sm">{n}</span>' for n in sheet.words.weekdays)
    cells = "<span></span>" * first + "".join(sheet.day(d, d == now) for d in range(1, days + 1))
    tall = "" if look.narrow else f" tall{draw.randrange(2)}"
    grid = f'<div class="cal panel{tall}" style="display:grid;gap:2px;padding:var(--s)">{names}{cells}</div>'
    events = []
    for title in sheet.words.titles(draw, 1 if look.tiny else sheet.amount(2, 3, 4) + 3 * (not look.narrow)):
        with sheet.within("row", title):
            when = sheet.say(f"{draw.randint(7, 20)}:{draw.choice(('00', '15', '30', '45'))}", cls="mu sm")
            tools = sheet.icon_button("pencil", "edit") + sheet.icon_button("trash", "delete", acts="data-removes")
            events.append(f'<div class="row">{when}{sheet.link(title, "l bare grow")}{tools}</div>')
    side = f'<div class="list">{"".join(events)}</div>'
    if look.narrow:
        return sheet.page("calendar", f'{top}<div class="body"><main class="main-area">{grid}{side}</main></div>')
    body = (
        f'<div class="h" style="align-items:flex-start;gap:calc(var(--s)*3)"><div style="flex:3">{grid}</div>'
        f'<div style="flex:2">{side}</div></div>'
    )
    return sheet.page("calendar", f'{top}<div class="body"><main class="main-area">{body}</main></div>')


def player(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    songs = draw.sample(SONGS, min(len(SONGS) - 1, sheet.amount(5, 6, 8)))
    nav = navigation(
        sheet,
        [("library", "musical note"), ("playlists", "list"), ("artists", "person"), ("albums", "four squares")][
            : 3 if look.narrow else 4
        ],
    )
    rows = []
    for song in songs if not look.narrow else songs[:0] if look.tiny else songs[: 3 if look.height > 500 else 1]:
        with sheet.within("row", song):
            heart = sheet.icon_button("heart", "favourite", pressed=draw.random() < 0.3)
            more = sheet.icon_button("three dots", "more") if sheet.level != "easy" else ""
            long = sheet.say(f"{draw.randint(2, 6)}:{draw.randint(0, 59):02d}", cls="mu sm")
            rows.append(
                f'<div class="row">{sheet.picture("cover", "2.4em", "2.4em")}{sheet.link(song, "l bare grow")}{long}{heart}'
                f"{more}</div>"
            )
    title = sheet.say(draw.choice([s for s in SONGS if s not in songs]), "h1", "cut")
    by = sheet.say(draw.choice(GIVEN), "p", "mu")
    extras = [("shuffle", "shuffle"), ("repeat", "repeat")] if sheet.level != "easy" and not look.tiny else []
    around = [sheet.icon_button(icon, concept, pressed=draw.random() < 0.3) for icon, concept in extras]
    keys = [
        ("skip back", "lasttrack", "ib"),
        draw.choice((("play", "play", "ib round"), ("pause", "pause", "ib round"))),
        ("skip forward", "nexttrack", "ib"),
    ]
    drawn = [sheet.icon_button(icon, concept, cls) for icon, concept, cls in keys]
    controls = "".join((*around[:1], *drawn, *around[1:]))
    sound = (
        ""
        if look.narrow
        else f'<div class="h" style="width:11em"><span class="mu">{sheet.icon("loudspeaker")}</span>'
        f"{sheet.slider('volume', draw.randint(10, 90))}</div>"
    )
    line = f'<div class="bar grow"><i style="width:{draw.randint(5, 95)}%"></i></div>'
    if look.narrow:
        cover = (
            f'<div style="display:flex;justify-content:center">'
            f"{sheet.picture('cover', '5.5em' if look.tiny else '13em', '5.5em' if look.tiny else '13em')}</div>"
        )
        body = (
            f'{cover}<div style="text-align:center">{title}{by}</div>{line.replace(" grow", "")}<div class="h" '
            f'style="justify-content:center;gap:calc(var(--s)*2)">{controls}</div><div class="list">{"".join(rows)}</div>'
        )
        return sheet.page("player", with_sides(sheet, "", nav, body))
    cover = sheet.picture("cover", "11em", "11em")
    head = f'<div class="h" style="gap:calc(var(--s)*3)">{cover}<div class="v">{title}{by}</div></div>'
    top = app_bar(sheet, "music", "")
    foot = f'<footer class="top" style="border:0;border-top:1px solid var(--ln)">{controls}{line}{sound}</footer>'
    return sheet.page("player", with_sides(sheet, top, nav, f'{head}<div class="list">{"".join(rows)}</div>') + foot)


def posts(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    top = app_bar(sheet, "home", "" if look.tiny else sheet.icon_button("envelope", "messages"))
    nav = navigation(
        sheet,
        [("home", "house"), ("search", "magnifying glass"), ("notifications", "bell"), ("profile", "person")][
            : 3 if look.tiny else 4
        ],
    )
    drawn = []
    names = draw.sample(GIVEN, 1 if look.tiny else 2 if look.narrow else sheet.amount(2, 3, 3))
    for name, title in zip(names, sheet.words.titles(draw, len(names)), strict=True):
        with sheet.within("post", name):
            head = sheet.avatar(name) + sheet.link(name, "l bare") + '<span class="grow"></span>'
            head += "" if look.tiny else sheet.icon_button("three dots", "more")
            tools = sheet.icon_button("heart", "favourite", pressed=draw.random() < 0.3)
            tools += sheet.icon_button("speech bubble", "reply")
            if not look.tiny:
                tools += (
                    sheet.icon_button("share", "share") + '<span class="grow"></span>' + sheet.icon_button("bookmark", "save")
                )
            inside = sheet.say(title, "p") + sheet.picture(
                "view", "100%", "5em" if look.tiny else "9em" if look.narrow else "10em"
            )
            drawn.append(f'<div class="card v post"><div class="h">{head}</div>{inside}<div class="h">{tools}</div></div>')
    wide = "" if look.narrow else "max-width:36em;margin:0 auto;width:100%;"
    return sheet.page(
        "posts", with_sides(sheet, top, nav, f'<div class="v" style="{wide}gap:calc(var(--s)*2)">{"".join(drawn)}</div>')
    )
