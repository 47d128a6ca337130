"""Web pages: what is refused before a browser sees it, and what the browser shows, through the judge too."""

import http.server
import threading

import pytest
from mmrl_rendering import html
from mmrl_rendering.html import Refused
from mmrl_rendering.task import Pages
from PIL import Image

from mmrl import Case, UserError
from mmrl.api.processes import sandbox
from mmrl.judge import local_judge
from mmrl.registry import plugins
from mmrl.testing import check_task

PAGE = '<html><body style="margin:0;background:gold"><div style="background:navy;height:40px;width:60px"></div></body></html>'


def there_is_a_browser():
    try:
        return bool(html.browser())
    except UserError:
        return False


needs_browser = pytest.mark.skipif(not there_is_a_browser(), reason="there is no Chromium on this machine")


@pytest.mark.parametrize(
    "page",
    [
        *("", "no page", "<html><script>alert(1)</script></html>", "<svg/>", "<iframe src=x>", "<object>", "<img src=x>"),
        *("<link rel=stylesheet href=x>", "<base href=x>", "<video>", "<canvas>", "<embed>", "<frameset>", "<math>", "</p>"),
        *("<div onclick=1>", "<form action=x>", "<button formaction=x>", "<body background=x>", "<meta http-equiv=refresh>"),
        *("<a href='http://x'>y</a>", "<a href='javascript:1'>y</a>", "<a href='file:///etc'>y</a>", "<a href='//x'>y</a>"),
        *("<div style='background:url(http://x)'>", "<style>@import 'x'</style>", "<div style='background:u\\72l(x)'>"),
        *("<style>div{width:expression(1)}</style>", "<!ENTITY x 'y'><div>", "<?xml version='1.0'?><div>", "<DIV ONLOAD=1>"),
        *("<div>" * 1000, "<p>x</p>" * 500, "<b>" * 41, "<div>" + "x" * 30_000 + "</div>", "\0<script\0>", "<scr\0ipt>1"),
    ],
)
def test_what_is_more_than_a_plain_page_is_refused(page):
    with pytest.raises(Refused):
        html.find(page)


def test_the_page_is_found_after_the_thinking_and_in_a_fence():
    assert html.find(f"<think>first</think>\n```html\n{PAGE}\n```") == PAGE
    assert html.find("```html\n<div>x</div>\n```") == "<div>x</div>"
    with pytest.raises(Refused):
        html.find(f"<think>{PAGE}</think> nothing")


def test_without_a_browser_the_task_says_what_to_install(monkeypatch):
    monkeypatch.setenv("MMRL_BROWSER", "no-such-browser")
    html.browser.cache_clear()
    try:
        with pytest.raises(UserError, match="needs a browser, and there is no no-such-browser: install Chromium"):
            Pages()
    finally:
        html.browser.cache_clear()


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """A function: let a program be the browser that hangs for so many starts and then shows a red page. Counts its starts."""

    def hang(starts):
        Image.new("RGB", (112, 84), "red").save(tmp_path / "red.png")
        program = tmp_path / "browser"
        program.write_text(
            f"#!/bin/sh\necho >> {tmp_path}/starts\n[ $(wc -l < {tmp_path}/starts) -gt {starts} ] || sleep 60\n"
            f'for word; do case $word in --screenshot=*) cp {tmp_path}/red.png "${{word#--screenshot=}}";; esac; done\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr(html, "browser", lambda: str(program))
        monkeypatch.setattr(html, "DEADLINE_S", 1.0)
        html._shown.cache_clear()
        return lambda: len((tmp_path / "starts").read_text())

    yield hang
    html._shown.cache_clear()


def test_a_browser_that_hangs_is_started_again_as_its_page_is_not_to_blame(hanging):
    starts = hanging(1)
    assert html.render(PAGE, (112, 84)).getpixel((5, 5)) == (255, 0, 0) and starts() == 2


def test_a_page_that_is_never_shown_is_refused(hanging):
    starts = hanging(5)
    with pytest.raises(Refused, match="the browser took more than 1 s, 2 times"):
        html.render(PAGE, (112, 84))
    assert starts() == html.STARTS


@needs_browser
def test_the_browser_shows_the_page_in_its_size_each_time_alike():
    shown = html.render(PAGE, (112, 84))
    assert shown.size == (112, 84) and shown.getpixel((10, 10)) == (0, 0, 128) and shown.getpixel((100, 70)) == (255, 215, 0)
    html._shown.cache_clear()
    assert html.render(PAGE, (112, 84)).tobytes() == shown.tobytes()
    shown.putpixel((0, 0), (1, 2, 3))
    assert html.render(PAGE, (112, 84)).getpixel((0, 0)) == (0, 0, 128), "what is kept is not what is handed out"


@needs_browser
def test_nothing_is_fetched_and_nothing_runs_even_if_it_passed_the_check():
    asked = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)

    server = http.server.HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{server.server_port}/x"
    page = (
        f'<body style="margin:0;background:gold"><img src="{at}"><iframe src="{at}"></iframe><link rel=stylesheet href="{at}">'
        f"<script>document.body.style.background='red'</script><style>@import '{at}'; div{{background:url({at})}}</style>"
        "<div>x</div>"
    )
    shown = html.render(page, (112, 84))
    server.shutdown()
    server.server_close()
    seen = {colour for _, colour in shown.getcolors(10_000)}
    assert (255, 215, 0) in seen and (255, 0, 0) not in seen and asked == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("isolation", ["process", "strict"])
def test_the_judge_scores_pages_in_its_own_process(isolation):
    if isolation == "strict" and (problem := sandbox.problem()):
        pytest.skip(f"no sandbox here: {problem}")
    task = Pages(size=112)
    prompt, other = task.prompts("train", 0)[0], task.prompts("train", 0)[1]
    case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta, media=prompt.images)
    texts = (case.completion, task.gold(other), "<html><body></body></html>", "<script>1</script>")
    cases = [Case(completion=t, answer=case.answer, meta=case.meta, media=case.media) for t in texts]
    with local_judge({"rendering/picture": {}}, isolation=isolation) as judge:
        scores = judge.run("rendering/picture", cases)
    right, wrong, blank, refused = (s.value for s in scores)
    assert right == pytest.approx(1.0) and wrong < 0.9 and blank < 0.1 and refused == 0.0


@pytest.mark.slow
@needs_browser
def test_pages_keep_the_rules_of_tasks():
    report = check_task(
        plugins.registry().get("tasks", "rendering/page"), lambda: Pages(size=112, items={"train": 2, "test": 2}), n=2
    )
    assert report.ok, str(report)
