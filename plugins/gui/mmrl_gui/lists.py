"""Pages of rows: a mailbox, a file manager, a conversation, contacts."""

from __future__ import annotations

from mmrl_gui.frame import app_bar, dialog, navigation, with_sides
from mmrl_gui.sheet import Page, Sheet
from mmrl_gui.words import ENDINGS, GIVEN, PLACES


def mail(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    acts = "" if look.tiny else sheet.icon_button("magnifying glass", "search") + sheet.icon_button("round arrow", "refresh")
    folders = [
        ("inbox", "envelope"),
        ("sent", "paper plane"),
        ("drafts", "pencil"),
        ("spam", "warning triangle"),
        ("bin", "trash"),
    ]
    top = app_bar(sheet, "inbox", acts, deep=True)
    write = sheet.button("compose", "b main", "pencil", word=sheet.words["compose"]) if not look.narrow else ""
    nav = navigation(sheet, folders[: 3 if look.narrow else 5], badge=str(draw.randint(2, 40)))
    fold = draw.random() < 0.5
    count = sheet.amount(4, 6, 8) if look.narrow else sheet.amount(9, 13, 17)
    titles = sheet.words.titles(draw, count)
    rows = []
    for title, sender in zip(titles, _senders(sheet, count), strict=True):
        with sheet.within("row", title):
            rows.append(_mail_row(sheet, title, sender, fold))
    under = sheet.icon_button("pencil", "compose", "ib round float") if look.narrow and not look.tiny else ""
    bar = _bulk(sheet) if sheet.level == "hard" and not look.tiny else ""
    body = bar + f'<div class="list">{"".join(rows)}</div>' + under
    layer = _asked(sheet) if sheet.level == "hard" and draw.random() < 0.2 else ""
    return sheet.page("mail", with_sides(sheet, top, write + nav if not look.narrow else nav, body) + layer)


def _senders(sheet: Sheet, count: int) -> list[str]:
    return [sheet.draw.choice(GIVEN) for _ in range(count)]


def _mail_row(sheet: Sheet, title: str, sender: str, fold: bool) -> str:
    draw, look = sheet.draw, sheet.look
    lead = "" if look.tiny else sheet.avatar(sender) if fold else sheet.check(title, draw.random() < 0.2)
    link = sheet.link(title, "l bare grow")
    when = sheet.say(f"{draw.randint(0, 23)}:{draw.randint(0, 59):02d}", cls="mu sm")
    star = sheet.icon_button("star", "favourite", pressed=draw.random() < 0.25)
    more = "data-removes"
    tools = (
        star + sheet.icon_button("trash", "delete", acts=more)
        if not look.tiny
        else sheet.icon_button("trash", "delete", acts=more)
    )
    if look.narrow:
        who = sheet.say(sender, cls="sm mu cut")
        return f'<div class="row">{lead}<div class="v grow" style="gap:0">{who}{link}</div>{tools}</div>'
    tools += sheet.icon_button("box", "archive", acts=more) if sheet.level != "easy" else ""
    who = sheet.say(sender, cls="cut", attributes='style="width:6em"')
    title = (
        ""
        if sheet.level == "easy"
        else sheet.say(", ".join(draw.sample(PLACES, 3)), cls="mu cut sm", attributes='style="flex:3"')
    )
    link += title
    return f'<div class="row">{lead}{who}{link}{when}{tools}</div>'


def _bulk(sheet: Sheet) -> str:
    tools = [("trash", "delete"), ("box", "archive"), ("flag", "status"), ("printer", "print"), ("three dots", "more")]
    chosen = "".join(sheet.icon_button(icon, concept) for icon, concept in sheet.draw.sample(tools, 3))
    return f'<div class="h">{chosen}<span class="grow"></span>{sheet.button("reply", "b", "backward arrow")}</div>'


def _asked(sheet: Sheet) -> str:
    return dialog(
        sheet, "ask", sheet.button("cancel", "b", acts="data-closes") + sheet.button("confirm", "b main", acts="data-closes")
    )


def files(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    tools = [
        *(
            ("scissors", "cut"),
            ("two sheets", "copy"),
            ("pencil", "rename"),
            ("share", "share"),
            ("upload", "upload"),
            ("trash", "delete"),
        ),
        *(("two arrows", "sort"), ("backward arrow", "undo"), ("download", "download")),
    ]
    shown = draw.sample(tools, 2 if look.tiny else 4 if look.narrow else sheet.amount(4, 6, 8))
    grid = draw.random() < 0.4
    other = sheet.icon_button("list", "listview") if grid else sheet.icon_button("four squares", "gridview")
    top = app_bar(sheet, "documents", other if not look.tiny else "")
    bar = "".join(sheet.icon_button(icon, concept, "ib framed" if look.lined else "ib") for icon, concept in shown)
    add = "" if look.tiny else sheet.button("newfolder", "b main", "plus")
    places = [("home", "house"), ("recent", "clock"), ("photos", "picture"), ("music", "musical note"), ("shared", "person")]
    nav = navigation(sheet, places[: 3 if look.narrow else 5])
    entries = sheet.words.files(draw, sheet.amount(4, 6, 9) if look.narrow else sheet.amount(9, 14, 19))
    drawn = []
    for name, ending in entries:
        with sheet.within("card" if grid else "row", name + ending):
            drawn.append(_tile(sheet, name, ending) if grid else _file_row(sheet, name, ending))
    columns = 2 if look.narrow else 5
    held = f'<div class="grid" style="grid-template-columns:repeat({columns},minmax(0,1fr))">' if grid else '<div class="list">'
    body = f'<div class="h wrap">{bar}<span class="grow"></span>{add}</div>{held}{"".join(drawn)}</div>'
    return sheet.page("files", with_sides(sheet, top, nav, body))


def _file_row(sheet: Sheet, name: str, ending: str) -> str:
    size = "" if sheet.look.narrow else sheet.say(f"{sheet.draw.randint(2, 900)} KB", cls="mu sm")
    tools = (
        ""
        if sheet.look.tiny or sheet.level == "easy"
        else sheet.icon_button("share", "share") + sheet.icon_button("three dots", "more")
    )
    load = sheet.icon_button("download", "download")
    kind = f'<span class="mu">{sheet.icon(ENDINGS[ending])}</span>'
    return f'<div class="row">{kind}{sheet.link(name + ending, "l bare grow any")}{size}{load}{tools}</div>'


def _tile(sheet: Sheet, name: str, ending: str) -> str:
    tall = "4.2em" if sheet.look.narrow else "6.5em"
    drawn = (
        sheet.picture("view", "100%", tall)
        if ending in (".png", ".jpg")
        else f'<div class="h" style="justify-content:center;height:{tall};color:var(--ac)">'
        f"{sheet.icon(ENDINGS[ending], 2.6)}</div>"
    )
    tool = sheet.icon_button("three dots", "more") if not sheet.look.tiny else ""
    return (
        f'<div class="card" style="padding:var(--s)">{drawn}<div class="h between">'
        f"{sheet.link(name + ending, 'l bare sm any')}{tool}</div></div>"
    )


def chat(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    who, *others = draw.sample(GIVEN, sheet.amount(5, 8, 11) + 1)
    tools = sheet.icon_button("telephone", "call")
    tools += "" if look.tiny else sheet.icon_button("video camera", "videocall")
    tools += "" if look.narrow else sheet.icon_button("three dots", "more")
    back = sheet.icon_button("left arrow", "back") if look.narrow else ""
    top = f'<header class="top">{back}{"" if look.tiny else sheet.avatar(who)}{sheet.say(who, "h2", "grow cut")}{tools}</header>'
    lines = [f"{title}?" if draw.random() < 0.4 else title for title in sheet.words.titles(draw, sheet.amount(4, 6, 8))]
    talk = "".join(sheet.say(line, "div", "bub me" if draw.random() < 0.45 else "bub") for line in lines)
    id = sheet.id("f")
    attach = "" if look.tiny else sheet.icon_button("paper clip", "attach")
    face = sheet.icon_button("smiling face", "emoji") if sheet.level != "easy" and not look.tiny else ""
    line = sheet.field("messages", label=False, id=id)
    voice = sheet.icon_button("microphone", "record") if sheet.level == "hard" and not look.tiny else ""
    send = sheet.icon_button("paper plane", "send", "ib round", f'data-says="#{id}"')
    foot = (
        f'<footer class="top" style="border:0;border-top:1px solid var(--ln)">{attach}{face}<div class="grow">'
        f"{line}</div>{voice}{send}</footer>"
    )
    talk = f'<div class="main-area talk" style="justify-content:flex-end">{talk}</div>'
    if look.narrow:
        return sheet.page("chat", top + f'<div class="body">{talk}</div>{foot}')
    rows = []
    for name in others:
        mark = sheet.link(name, "l bare grow")
        rows.append(
            f'<div class="row">{sheet.avatar(name)}{mark}'
            f"{sheet.say(str(draw.randint(1, 9)), cls='bd') if draw.random() < 0.3 else ''}</div>"
        )
    side = (
        f'<aside class="side" style="width:17em"><div class="h">{sheet.finder()}</div><div class="list">'
        f"{''.join(rows)}</div></aside>"
    )
    return sheet.page("chat", f'<div class="body">{side}<div class="v grow" style="gap:0">{top}{talk}{foot}</div></div>')


def contacts(sheet: Sheet) -> Page:
    draw, look = sheet.draw, sheet.look
    top = app_bar(sheet, "contacts", sheet.icon_button("plus", "add") if draw.random() < 0.7 else "", deep=draw.random() < 0.5)
    nav = navigation(
        sheet,
        [("contacts", "person"), ("calls", "telephone"), ("messages", "speech bubble"), ("favourite", "star")][
            : 3 if look.tiny else 4
        ],
    )
    names = sorted(draw.sample(GIVEN, sheet.amount(4, 6, 8) if look.narrow else sheet.amount(8, 11, 15)))
    rows = []
    for name in names:
        with sheet.within("row", name):
            tools = [("telephone", "call"), ("envelope", "email"), ("pencil", "edit"), ("video camera", "videocall")]
            drawn = "".join(
                sheet.icon_button(icon, concept)
                for icon, concept in tools[
                    : 1 if look.tiny else {"easy": 1, "middle": 2, "hard": 3 if look.narrow else 4}[sheet.level]
                ]
            )
            where = "" if look.tiny else sheet.say(draw.choice(PLACES), cls="mu sm cut")
            rows.append(
                f'<div class="row">{sheet.avatar(name)}<div class="v grow" style="gap:0">{sheet.link(name, "l bare")}'
                f"{where}</div>{drawn}</div>"
            )
    columns = 1 if look.narrow or draw.random() < 0.4 else 2
    search = "" if look.tiny or not look.narrow else f'<div class="h">{sheet.finder()}</div>'
    return sheet.page(
        "contacts",
        with_sides(
            sheet,
            top,
            nav,
            search + f'<div class="grid" style="grid-template-columns:repeat({columns},minmax(0,1fr));gap:var(--s)">'
            f"{''.join(rows)}</div>",
        ),
    )
