"""A folder of one's own pages: links between them, goals, and files that can't be used."""

import json

import pytest

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import Action

FIRST = "<title>first</title><a href='second.html'>on</a> <button onclick='document.title = \"lost\"'>fail</button>"
SECOND = "<title>second</title><p>two</p><button onclick='document.title = \"Sent\"'>send</button>"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "first.html").write_text(FIRST)
    (tmp_path / "deep").mkdir()
    (tmp_path / "second.html").write_text(SECOND)
    (tmp_path / "deep" / "third.html").write_text("<p>three</p>")
    return tmp_path


def goals(root, *rows):
    (root / "tasks.json").write_text(json.dumps(list(rows)))


SEND = {
    "name": "send",
    "page": "first.html",
    "instruction": "Send it.",
    "success": "document.title === 'Sent'",
    "failure": "document.title === 'lost'",
}


@pytest.fixture
def play(browser, root):
    from mmrl_browser.folder import Folder

    screens = []

    def start(page, **options):
        folder = Folder(str(root), **options)
        screens.append(folder.open(elements=True))
        return folder, screens[-1], screens[-1].start(page, 0)

    yield start
    for screen in screens:
        screen.close()


def press(screen, shown, text):
    return screen.act(Action(kind="click", at=next(e for e in shown.elements if e.text == text).click_point))


@pytest.mark.parametrize("how", ["middle-click", "Control+Enter", "target"])
def test_a_link_in_a_new_tab_is_closed_and_told_at_once(play, root, how):
    """A middle click or Control and Enter asks for a tab beside the page, which itself goes nowhere."""
    (root / "first.html").write_text(f"<a href='second.html' {'target=_blank' if how == 'target' else ''}>on</a>")
    _, screen, shown = play("first.html")
    at = shown.elements[0].click_point
    screen.act(Action(kind="key", text="Tab"))
    by = {"middle-click": Action(kind="middle-click", at=at), "target": Action(kind="click", at=at)}
    for _ in range(2):
        shown = screen.act(by.get(how) or Action(kind="key", text=how))
        assert shown.notes == ("a window that the page opened was closed",) and [e.text for e in shown.elements] == ["on"]


def test_an_episode_over_two_pages(play, root):
    goals(root, SEND)
    folder, screen, shown = play("send")
    assert (list(folder.pages), shown.instruction, shown.screenshot.size) == (["send"], "Send it.", (640, 480))
    shown = press(screen, shown, "on")
    assert "two" in {e.text for e in shown.elements} and not shown.terminated
    shown = press(screen, shown, "send")
    assert (shown.terminated, shown.success, shown.reward, shown.screenshot) == (True, True, 1.0, None)


def test_failure_ends_it_too(play, root):
    goals(root, SEND)
    _, screen, shown = play("send")
    shown = press(screen, shown, "fail")
    assert (shown.terminated, shown.success, shown.reward) == (True, False, -1.0)


def test_back_and_open(play, root):
    _, screen, shown = play("first.html")
    shown = press(screen, shown, "on")
    assert "send" in {e.text for e in shown.elements}
    assert "on" in {e.text for e in screen.act(Action(kind="back")).elements}
    assert "nothing to go back" in screen.act(Action(kind="back")).notes[0]
    assert "three" in {e.text for e in screen.act(Action(kind="open", text="deep/third.html")).elements}
    for outside in ("../x.html", "file:///etc/passwd", "http://example.com", "/etc/passwd", "", "none.html", "a" * 3000):
        assert "can't be opened" in screen.act(Action(kind="open", text=outside)).notes[0]


def test_without_goals_every_page_is_there(play):
    folder, _, _ = play("deep/third.html")
    assert list(folder.pages) == ["deep/third.html", "first.html", "second.html"]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("{", "is not valid JSON"),
        ("{}", "must be a list"),
        ("[]", "must be a list"),
        ('["a"]', "must be an object with a page"),
        ('[{"page": "none.html"}]', "there is no page 'none.html'"),
        ('[{"page": "../x.html"}]', "there is no page"),
        ('[{"page": "first.html", "succes": "1"}]', "the unknown key 'succes'.*success"),
        ('[{"page": "first.html", "success": true}]', "success must be a text"),
        ('[{"page": "first.html"}, {"page": "first.html"}]', "is taken already"),
    ],
)
def test_goals_that_cant_be_used(root, rows, why):
    from pathlib import Path

    from mmrl_browser.folder import _goals

    (root / "tasks.json").write_text(rows)
    with pytest.raises(UserError, match=why):
        _goals(Path(root))


def test_a_goal_that_is_no_expression_is_the_persons_fault(play, root):
    goals(root, {"page": "first.html", "success": "document.title ==="})
    with pytest.raises(UserError, match=r"tasks.json.*can't be evaluated in first.html: SyntaxError"):
        play("first.html")


def test_no_folder_and_no_page(browser, tmp_path, play):
    from mmrl_browser.folder import Folder

    for path, why in ((tmp_path / "none", "is not a folder"), (tmp_path / "deep", "has no .html")):
        if path.name == "deep":
            (path / "third.html").unlink()
        with pytest.raises(UserError, match=why):
            Folder(str(path))
    for odd in (3, True, None, [], "x" * 10_000, "a\0b"):
        with pytest.raises(UserError, match="is not a folder"):
            Folder(odd)
    with pytest.raises(UserError, match=r"has no page 'firs.html'.*first.html"):
        play("firs.html")


def test_a_goal_that_throws_later_is_not_reached(play, root):
    """What it asks for may be on the first page alone."""
    goals(root, {**SEND, "success": "document.querySelector('button').onclick && document.title === 'Sent'", "failure": ""})
    (root / "second.html").write_text("<title>second</title><p>two</p>")
    _, screen, first = play("send")
    assert not press(screen, first, "on").terminated


@pytest.mark.parametrize("success", ["({})", "true", "Promise.resolve(1)"])
def test_a_goal_that_is_reached_at_the_start_is_told(play, root, success):
    goals(root, {**SEND, "success": success})
    with pytest.raises(UserError, match=r"tasks\.json.*is true in first\.html before the first action"):
        play("send")


def test_a_page_that_replaces_eval_costs_its_episode(play, root):
    goals(root, SEND)
    (root / "first.html").write_text("<script>window.eval = () => ({get then() { return 1; }}); window.String = 1;</script>")
    with pytest.raises(EnvironmentFailed, match="may have replaced eval"):
        play("send")
