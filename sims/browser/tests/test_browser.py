"""Pages in a real browser: what follows from what, what nobody may do, and what is lost."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from mmrl_browser.driver import SPARE
from mmrl_browser.html import Html

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import Action, Screens
from mmrl.testing.cases import mostly_slow

COUNT = """<body style="margin:0"><button id=b style="position:absolute;left:100px;top:80px;width:80px;height:40px">go</button>
<p id=out>0</p><input id=i style="position:absolute;left:10px;top:150px">
<script>let n = 0; b.onclick = () => { out.textContent = ++n; }; b.ondblclick = () => { out.textContent = "double"; };</script>"""


def click(element):
    return Action(kind="click", at=element.click_point)


def named(shown, text):
    return next(e for e in shown.elements if e.text == text)


def text_of(shown):
    return " ".join(e.text for e in shown.elements if e.role == "text")


def test_elements_have_their_true_boxes(shown):
    _, page = shown(COUNT)
    assert page.screenshot.size == (320, 240)
    button = named(page, "go")
    assert (button.box, button.role, button.interactive, button.icon) == ((100, 80, 180, 120), "button", True, False)
    assert button.click_point == pytest.approx((140, 100))
    assert [e.role for e in page.elements] == ["text", "button", "textbox"]


def test_what_is_covered_or_unseen_is_no_element(shown):
    cover = "position:absolute;left:0;top:0;width:50px;height:50px"
    _, page = shown(
        f'<button style="{cover}">under</button><div role=button style="{cover};background:red">over</div>'
        '<button style="position:absolute;left:900px">beyond</button><button style="visibility:hidden">hidden</button>'
        '<button style="position:absolute;left:100px;top:100px;width:60px;height:40px">half</button>'
        '<div role=button style="position:absolute;left:120px;top:90px;width:60px;height:60px;background:blue">front</div>'
    )
    assert {e.text for e in page.elements} == {"over", "half", "front"}
    assert named(page, "half").click_point[0] < 120


def test_elements_in_frames_and_shadow_roots_are_listed_and_can_be_clicked(shown):
    inner = "<button onclick='this.textContent = 2'>inner</button><p>text</p><p style='height:500px'></p><button>below</button>"
    screen, page = shown(
        "<body style='margin:0'><div id=d style='position:absolute;top:150px'>host <b>slotted</b></div>"
        "<div style='position:absolute;left:60px;top:40px;width:40px;height:40px;background:red' role=button>cover</div>"
        "<iframe style='position:absolute;left:20px;top:30px;width:200px;height:90px;border:5px solid' id=f></iframe>"
        f'<script>f.srcdoc = "{inner}"; d.attachShadow({{mode: "open"}}).innerHTML = '
        "`<slot></slot><button onclick='this.textContent = 1'>shadow</button>`;</script>"
    )
    found = {e.text: e for e in page.elements}
    assert {"inner", "text", "shadow", "slotted"} <= set(found) and "below" not in found
    x1, y1, _, _ = found["inner"].box
    assert (x1, y1) == (20 + 5 + 8, 30 + 5 + 8), "its own margin is 8"
    assert named(screen.act(click(found["inner"])), "2")
    assert named(screen.act(click(found["shadow"])), "1")
    covered = (
        "<body style='margin:0'><iframe srcdoc='<button>under</button>'></iframe><div style='position:fixed;inset:0'>over</div>"
    )
    assert [e.text for e in screen.start(covered, 0).elements] == ["over"]


def test_icons_fields_and_states(shown):
    _, page = shown(
        '<button aria-label="delete"><svg width=20 height=20><circle r=9 cx=10 cy=10 /></svg></button>'
        '<label for=c>Mail</label><input id=c type=checkbox checked><input placeholder="Your name" value="Ada">'
        '<select aria-label="Size"><option>S<option selected>M</select><a href="#x">more</a>'
    )
    found = {(e.role, e.text, e.value, e.icon) for e in page.elements}
    assert {
        ("button", "delete", "", True),
        ("checkbox", "Mail", "checked", False),
        ("textbox", "Your name", "Ada", False),
        ("combobox", "Size", "M", False),
        ("link", "more", "", False),
    } <= found


def test_actions_do_what_a_person_would(shown):
    screen, page = shown(COUNT)
    button = named(page, "go")
    assert text_of(screen.act(click(button))) == "1"
    assert text_of(screen.act(Action(kind="double-click", at=button.click_point))) == "double"
    screen.act(Action(kind="click", at=(40, 160)))
    page = screen.act(Action(kind="type", text="Grüße, 世界"))
    assert next(e for e in page.elements if e.role == "textbox").value == "Grüße, 世界"
    page = screen.act(Action(kind="key", text="Control+A"))
    page = screen.act(Action(kind="key", text="Delete"))
    assert next(e for e in page.elements if e.role == "textbox").value == ""
    screen.act(Action(kind="type", text="two words"))
    screen.act(Action(kind="triple-click", at=(40, 160)))
    page = screen.act(Action(kind="type", text="one"))
    assert next(e for e in page.elements if e.role == "textbox").value == "one", "three clicks select the line"
    screen.act(Action(kind="click", at=button.click_point))
    page = screen.act(Action(kind="type", text=" two", at=(170, 160)))
    assert next(e for e in page.elements if e.role == "textbox").value == "one two", "a field is clicked first"
    assert screen.act(Action(kind="wait")).notes == ()


def test_drag_scroll_and_long_press(shown):
    screen, _ = shown(
        "<body style='margin:0;height:2000px'><p id=p style='position:fixed;top:0'></p><script>let at; "
        "const say = (t) => p.textContent += t + ' '; onmousedown = (e) => { at = Date.now(); say('down' + e.clientX); }; "
        "onmouseup = (e) => say('up' + e.clientX + 'after' + "
        "(Date.now() - at)); onscroll = () => { p.textContent = 'y' + scrollY; };</script>"
    )
    assert text_of(screen.act(Action(kind="drag", at=(50, 60), to=(150, 90)))) == "down50 up150after0"
    assert text_of(screen.act(Action(kind="long-press", at=(70, 60)))).endswith("down70 up70after700")
    assert text_of(screen.act(Action(kind="scroll", direction="down"))) == "y180"
    assert text_of(screen.act(Action(kind="scroll", direction="up"))) == "y0"


def test_a_scroll_skips_nothing_of_a_small_list(shown):
    rows = "".join(f"<p style='margin:0;height:20px'>row {n}</p>" for n in range(40))
    inner = f"<body style='margin:0' onscroll='top.say(`f` + scrollY)'>{rows}"
    screen, _ = shown(
        f"<body style='margin:0;height:2000px'><div id=d style='height:60px;width:200px;overflow:auto'>{rows}</div>"
        f"<p id=p style='position:fixed;top:200px'></p><iframe style='border:0;height:80px' srcdoc=\"{inner}\"></iframe>"
        "<script>function say(t) { p.textContent = t; } d.onscroll = () => say('d' + d.scrollTop);"
        "onscroll = () => say('y' + scrollY);</script>"
    )
    assert "d45" in text_of(screen.act(Action(kind="scroll", direction="down", at=(50, 30)))).split()
    assert "d90" in text_of(screen.act(Action(kind="scroll", direction="down", at=(50, 30)))).split()
    assert "f60" in text_of(screen.act(Action(kind="scroll", direction="down", at=(50, 100)))).split()
    assert "y180" in text_of(screen.act(Action(kind="scroll", direction="down", at=(250, 30)))).split()


def test_right_clicks_hovers_and_drags_from_where_the_pointer_is(shown):
    code = (
        "<body style='margin:0;height:200px'><p id=p></p><script>const say = (t) => { p.textContent = t; }; let at = '';"
        "oncontextmenu = (e) => say('menu' + e.clientX); onauxclick = (e) => e.button === 1 && say(`button1at${e.clientX}`);"
        " onmousemove = (e) => say('over' + e.clientX);"
        "onmousedown = (e) => { at = e.clientX; }; onmouseup = (e) => e.button || say(`from${at}to${e.clientX}`);</script>"
    )
    screen, _ = shown(code)
    refused = screen.act(Action(kind="drag", to=(150, 90)))
    assert "the pointer was nowhere yet" in refused.notes[0] and text_of(refused) == ""
    assert text_of(screen.act(Action(kind="right-click", at=(70, 60)))) == "menu70"
    assert text_of(screen.act(Action(kind="middle-click", at=(80, 60)))) == "button1at80"
    assert text_of(screen.act(Action(kind="hover", at=(50, 60)))) == "over50"
    assert text_of(screen.act(Action(kind="drag", to=(150, 90)))) == "from50to150"
    screen.start(code, 1)
    assert screen.act(Action(kind="drag", to=(150, 90))).notes, "of another episode"


MOVES = {
    "a caret": "<input style='width:200px' autofocus>",
    "an endless animation": "<style>@keyframes s{to{margin-left:200px}} p{background:red;animation:s 700ms linear infinite}"
    "</style><p>x",
    "one that is drawn": "<svg width=300 height=50><rect width=20 height=20><animate attributeName=x to=250 dur=0.7s "
    "repeatCount=indefinite /></rect></svg>",
    "the scrolling of a link": "<style>html{scroll-behavior:smooth}</style><body style='background:linear-gradient(red,blue)'>"
    "<a href='#x'>go</a><p id=x style='position:absolute;top:2000px'>x",
    "the time of an event": "<p id=p>0<script>onclick = (e) => { p.textContent = e.timeStamp; }</script>",
    "a task that was put off": "<p id=p>0<script>let n = 0; const f = () => { p.textContent = ++n; "
    "scheduler.postTask(f, {delay: 100}); }; f()</script>",
}


@pytest.mark.parametrize("code", MOVES.values(), ids=MOVES)
def test_nothing_moves_with_real_time(shown, code):
    seen = []
    for pause in (0.0, 0.57):  # a caret blinks after half a second
        screen, _ = shown(code)
        time.sleep(pause)
        clicked = screen.act(Action(kind="click", at=(15, 15)))
        time.sleep(pause)
        seen.append([clicked.screenshot.tobytes(), screen.act(Action(kind="wait")).screenshot.tobytes()])
        screen.close()
    assert seen[0] == seen[1]


def test_what_follows_a_transition_comes_with_its_action(shown):
    code = (
        "<div id=d style='width:20px;transition:width 300s'></div><button onclick=\"d.style.width = '90px'\">go</button>"
        "<p id=p>0</p><script>d.ontransitionend = () => setTimeout(() => { p.textContent = 'over'; }, 300);</script>"
    )
    screen, page = shown(code)
    assert text_of(screen.act(click(named(page, "go")))) == "over"


def test_time_passes_with_actions_alone(shown):
    page_text = "<p id=p>0</p><script>setInterval(() => { p.textContent = +p.textContent + 1; }, 100);</script>"
    screen, first = shown(page_text)
    assert text_of(first) == "0"
    time.sleep(0.5)  # thinking costs nothing
    assert text_of(screen.act(Action(kind="wait"))) == "5"
    assert text_of(screen.act(Action(kind="wait"))) == "10"


def test_animations_move_with_the_pages_time(shown):
    page_text = (
        "<div id=d style='position:absolute;left:0;top:50px;width:20px;height:20px;background:red'></div><script>"
        "const t0 = performance.now(); const f = (t) => { d.style.left = Math.min(200, (t - t0) / 5) + 'px'; "
        "requestAnimationFrame(f); }; requestAnimationFrame(f);</script>"
    )
    screen, _ = shown(page_text, elements=False)
    left = [_left_of_red(screen.act(Action(kind="wait")).screenshot) for _ in range(3)]
    assert left == pytest.approx([100, 200, 200], abs=12)


def _left_of_red(picture):
    return next(x for x in range(320) if picture.getpixel((x, 60))[1] < 100)


DRAWN = (
    "<p id=p></p><canvas id=c width=300 height=100></canvas><script>"
    "p.textContent = [Math.random(), Math.random(), new Date().getTime(), new Date(2020, 1, 1).getDate(), "
    "typeof Date(), new Date() instanceof Date, "
    "localStorage.getItem('seen'), document.cookie, window.name].join(' ');"
    "localStorage.setItem('seen', 'yes'); document.cookie = 'a=b'; window.name = 'kept';"
    "for (let i = 0; i < 20; i++) c.getContext('2d').fillRect(300 * Math.random(), 100 * Math.random(), 9, 9);</script>"
)


def test_a_page_is_drawn_from_its_seed_whatever_was_shown_before(shown, html):
    screen, first = shown(DRAWN, 7)
    _, beside = shown(DRAWN, 7)
    screen.start(COUNT, 3)
    again, other = screen.start(DRAWN, 7), screen.start(DRAWN, 8)
    for same in (beside, again):
        assert same.elements == first.elements and same.screenshot.tobytes() == first.screenshot.tobytes()
    assert other.elements != first.elements and other.screenshot.tobytes() != first.screenshot.tobytes()
    assert text_of(first).split()[2:6] == ["1767225600000", "1", "string", "true"]
    assert len(text_of(first).split()) == 6, "nothing was stored"


@pytest.mark.slow
def test_many_at_once_are_as_one_after_the_other(html):
    def play(seed):
        screen = html.open(elements=True)
        shown = [screen.start(DRAWN, seed), screen.act(Action(kind="wait"))]
        screen.close()
        return [(s.elements, s.screenshot.tobytes()) for s in shown]

    alone = [play(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(play, range(6))) == alone


def test_a_start_never_waits_with_a_slot_for_pages_whose_preparation_needs_one(browser, monkeypatch):
    """Where all slots were held by such starts, everything stood still for ever."""
    screens = Html(size=[310, 230])  # no other test's pages have this size
    driver, ended, began = screens._driver, [screens.open() for _ in range(SPARE + 1)], []
    for screen in ended:
        screen.start(COUNT, 0)
    monkeypatch.setattr(driver, "turn", asyncio.Semaphore(1))
    driver.run(driver.turn.acquire())
    screen = screens.open()
    threading.Thread(target=lambda: began.append(screen.start(COUNT, 1)), daemon=True).start()
    until = time.monotonic() + 60
    while not driver.turn._waiters and time.monotonic() < until:
        time.sleep(0.01)
    for other in ended:
        other.close()  # their pages are now prepared, as soon as there is a slot
    driver._loop.call_soon_threadsafe(driver.turn.release)
    while not began and time.monotonic() < until:
        time.sleep(0.01)
    assert began and began[0].screenshot is not None
    screen.close()


ASIDE = """<body><a href="https://example.com/x">secure</a> <a href="http://example.com/x">plain</a>
<button onclick="alert('hello')">dialog</button> <button onclick="window.open('about:blank')">popup</button>
<a download="x.txt" href="data:text/plain,abc">download</a>
<button onclick="fetch('http://127.0.0.1:22/').catch(() => 0)">local</button>
<button onclick="location.href = 'file:///etc/passwd'">file</button> <button onclick="location.href = 'chrome://settings'">own</button>
<form action="http://example.com/form" method=post><button>form</button></form>
<form method=post><button>own form</button></form></body>"""


@pytest.mark.parametrize(
    ("what", "note"),
    [
        ("secure", "https://example.com/x was refused"),
        ("plain", "http://example.com/x was refused"),
        ("dialog", "a dialog (alert) said 'hello' and was closed"),
        ("popup", "a window that the page opened was closed"),
        ("download", "a download ('x.txt') was refused"),
        ("local", "http://127.0.0.1:22/ was refused"),
        ("form", "http://example.com/form was refused"),
        ("own form", "was refused: pages are only read"),
        ("file", ""),
        ("own", ""),
    ],
)
def test_a_page_leads_nowhere_else(shown, what, note):
    screen, page = shown(ASIDE)
    after = screen.act(click(named(page, what)))
    assert any(note in said for said in after.notes) if note else True
    assert [e.text for e in after.elements] == [e.text for e in page.elements], "it is still there"


def test_a_link_whose_script_gives_the_next_page_leads_there(shown):
    for _ in range(6):  # sooner or later than the browser tells of it
        screen, page = shown("""<a href="javascript:'<p>next</p>'">go</a>""")
        assert text_of(screen.act(click(named(page, "go")))) == "next"


def test_leaving_is_never_held_up(shown):
    screen, page = shown("<button onclick=\"onbeforeunload = (e) => { e.preventDefault(); return 'stay'; }\">stay</button>")
    screen.act(click(named(page, "stay")))
    assert named(screen.start(COUNT, 0), "go")


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (Action(kind="click", at=(1e9, 5)), "off the screen"),
        (Action(kind="click", at=(float("nan"), 5)), "off the screen"),
        (Action(kind="click"), "needs a place"),
        (Action(kind="drag", at=(5, 5)), "needs a place"),
        (Action(kind="scroll"), "needs a direction"),
        (Action(kind="type", text="x" * 10_000_000), "10,000,000 characters is too long"),
        (Action(kind="key", text="Hyper+Q"), "is no key"),
        (Action(kind="back"), "nothing to go back to"),
        (Action(kind="open", text="file:///etc/passwd"), "nothing that can be done here"),
        (Action(kind="home"), "nothing that can be done here"),
    ],
)
def test_an_action_without_sense_does_nothing_and_is_noted(shown, action, why):
    screen, page = shown(COUNT)
    after = screen.act(action)
    assert why in after.notes[0]
    assert after.elements == page.elements


@pytest.mark.parametrize("more", [1, 300], ids=["key by key", "inserted"])
def test_a_line_break_that_is_typed_is_the_key_enter(shown, more):
    form = "<form onsubmit='p.textContent = i.value.length; return false'><input id=i style='width:200px'></form><p id=p>0</p>"
    screen, _ = shown(form)
    screen.act(Action(kind="click", at=(50, 15)))
    assert text_of(screen.act(Action(kind="type", text="ab" * more + "\nc"))) == str(2 * more)
    screen, _ = shown("<textarea id=i style='width:200px'></textarea>")
    screen.act(Action(kind="click", at=(50, 15)))
    (field,) = screen.act(Action(kind="type", text="a" * more + "\r\nb")).elements
    assert field.value == ("a" * more + "\nb")[:300]
    assert "lines is too long" in screen.act(Action(kind="type", text="\n" * 300)).notes[0]


def test_what_is_typed_is_never_run(shown):
    screen, _ = shown("<input id=i style='width:300px'><p id=p>safe</p>")
    screen.act(Action(kind="click", at=(50, 15)))
    page = screen.act(Action(kind="type", text="'+(document.body.innerHTML='')+'</script><script>p.textContent=1</script>"))
    assert text_of(page) == "safe"


@pytest.fixture
def hasty(monkeypatch):
    """Pages hang sooner."""
    monkeypatch.setattr("mmrl_browser.page.DEADLINE_S", 1.5)


@pytest.mark.parametrize("code", mostly_slow(["while (1);", "setTimeout(() => { while (1); }, 10)"], everyday=1))
def test_a_page_that_hangs_costs_its_episode(shown, html, hasty, code):
    screen, page = shown(f"<button onclick='{code}'>hang</button>")
    before = html._driver.lost
    with pytest.raises(EnvironmentFailed, match="the page hangs"):
        screen.act(click(named(page, "hang")))
    with pytest.raises(EnvironmentFailed, match="call start\\(\\)"):
        screen.act(Action(kind="wait"))
    assert named(screen.start(COUNT, 0), "go"), "another page takes its place"
    assert html._driver.lost == before + 1


@pytest.mark.slow
def test_a_page_that_never_loads(shown, hasty):
    with pytest.raises(EnvironmentFailed, match="hangs"):
        shown("<script>while (1);</script>")


def test_a_page_that_crashes_costs_its_episode(shown, html):
    screen, _ = shown(COUNT)
    _, beside = shown(COUNT)
    html._driver.run(_crash(screen._page))
    with pytest.raises(EnvironmentFailed):
        screen.act(Action(kind="wait"))
    assert named(screen.start(COUNT, 0), "go") and named(beside, "go")


async def _crash(page):
    with contextlib.suppress(Exception):  # nobody answers to this: the target is gone, which is what was asked for
        await asyncio.wait_for(page.session.send("Page.crash"), 0.5)


def test_screens_say_what_they_are(html):
    assert isinstance(html, Screens)
    assert html.size == (320, 240) and "click" in html.actions and "open" not in html.actions


@pytest.mark.parametrize(("options", "why"), [({"size": [5, 5]}, "size"), ({"size": "big"}, "size"), ({"step_ms": 0}, "step_ms")])
def test_options_out_of_range(browser, options, why):
    with pytest.raises(UserError, match=why):
        Html(**options)


def test_without_a_browser_one_line_says_what_to_do(monkeypatch):
    from mmrl_browser import chromium

    monkeypatch.setenv("MMRL_BROWSER", "no-such-browser")
    with pytest.raises(UserError, match=r"no-such-browser.*make system.*MMRL_BROWSER"):
        chromium.executable()


def test_transitions_are_over_at_once(shown):
    move = "position:absolute;left:0;top:50px;width:20px;height:20px;background:red;transition:left 1s linear"
    screen, page = shown(f"<div id=d style='{move}'></div><button onclick=\"d.style.left = '200px'\">move</button>")
    after = screen.act(click(named(page, "move")))
    assert _left_of_red(after.screenshot) == pytest.approx(200, abs=2)


def test_a_browser_that_dies_is_started_again(shown, html):
    screen, _ = shown(COUNT)
    (pid,) = html._driver.run(html._driver.processes())["browser"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailed):
        screen.act(Action(kind="wait"))
    assert named(screen.start(COUNT, 0), "go")
    assert html._driver.run(html._driver.processes())["browser"] != [pid]


def test_a_worn_page_is_replaced(html, monkeypatch):
    monkeypatch.setattr("mmrl_browser.page.WORN", 2)
    contexts = []
    for seed in range(4):
        screen = html.open()
        screen.start(COUNT, seed)
        contexts.append(screen._page.context)
        screen.close()
    assert len({id(context) for context in contexts}) >= 2 and contexts[-1] is not contexts[0]


# -- what pages and models tried -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["é", "ß", "中", "\x00", "\x1b", "\ud800", "Control+é"])
def test_keys_that_no_keyboard_has_are_refused(shown, key):
    screen, _ = shown(COUNT)
    (note,) = screen.act(Action(kind="key", text=key)).notes
    assert "is no key" in note and note.isascii() and note.isprintable()


@pytest.mark.slow
def test_webrtc_reaches_nobody(shown):
    """Its packets would go past the proxy."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as canary:
        canary.bind(("127.0.0.1", 0))
        canary.settimeout(1.0)
        port = canary.getsockname()[1]
        screen, _ = shown(
            f"""<script>const p = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{port}'}}]}});
            p.createDataChannel('x'); p.createOffer().then(o => p.setLocalDescription(o));</script>"""
        )
        screen.act(Action(kind="wait"))
        with pytest.raises(TimeoutError):
            canary.recv(1000)


def test_forms_whose_fields_are_named_like_properties_are_listed(shown):
    _, page = shown(
        "<form><input name=children placeholder=Children><input name=getAttribute><select name=tagName><option>x</select>"
        "<input name=childNodes><button name=contains>Book</button></form>"
    )
    assert [e.role for e in page.elements] == ["textbox", "textbox", "combobox", "textbox", "button"]


@pytest.mark.slow
def test_frames_that_never_answer_are_not_waited_for(shown):
    started = time.monotonic()
    screen, page = shown(
        "<button>go</button><div style='height:3000px'></div><iframe loading=lazy src='about:blank?x'></iframe>"
        "<iframe sandbox srcdoc='<p>x'></iframe>"
    )
    assert screen.act(click(named(page, "go"))).screenshot is not None and time.monotonic() - started < 9


def test_a_page_that_won_t_be_left_costs_nobody_else(html):
    screen = html.open()
    screen.start("<script>addEventListener('pagehide', () => { while (1); });</script>", 0)
    screen.close()
    other = html.open()
    assert other.start("<p>well", 0).screenshot is not None
    other.close()


def test_notes_are_few(shown):
    screen, page = shown("<button onclick='for (let i = 0; i < 50; i++) alert(i)'>go</button>")
    notes = screen.act(click(named(page, "go"))).notes
    assert len(notes) == 5 and notes[-1] == "and 46 more like these"


def test_a_page_doesn_t_close_itself(shown):
    screen, page = shown("<button onclick='window.close(); document.title = 1'>close</button>")
    assert screen.act(click(named(page, "close"))).screenshot is not None
