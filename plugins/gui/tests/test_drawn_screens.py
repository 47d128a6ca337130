"""Tasks and recordings on screens: against screens that are made up here, and against a real browser where there is one."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import psutil
import pytest
from mmrl_gui import pages, record, recording, rendered, verifiers
from mmrl_gui.action_task import Inverse
from mmrl_gui.exploring import Walk, hit, spot_of
from mmrl_gui.recording import Plan
from mmrl_gui.screens_task import Grounding
from mmrl_gui.stopping import Stop
from mmrl_gui.transitions import Transitions
from PIL import Image

from mmrl import Case, EnvironmentFailed, ImageProcessing, UserError
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.simulators.gui import Action, Element, ScreenObservation
from mmrl.testing.cases import some_of
from mmrl.ui.cli import main
from processes import gone

ROLES = {"button": "button", "a": "link", "input": "textbox"}


class Listed(HTMLParser):
    """The things of a drawn page as a browser would list them, one under the other in three columns."""

    def __init__(self, html, size):
        super().__init__()
        self.found, self.open, self.size = [], [], size
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if given.get("data-thing"):
            self.found.append([given.get("role") or ROLES[tag], given.get("aria-label") or "", given])
            if tag != "input":
                self.open.append((tag, self.found[-1]))

    def handle_endtag(self, tag):
        if self.open and self.open[-1][0] == tag:
            self.open.pop()

    def handle_data(self, data):
        if self.open and not self.open[-1][1][2].get("aria-label"):
            self.open[-1][1][1] += data

    def elements(self, states=()):
        width, height = self.size[0] / 3, 8.0
        for number, (role, name, given) in enumerate(self.found):
            x, y = 1 + (number % 3) * (width - 1), 1 + (number // 3) * (height + 1)
            on = given.get("data-thing") in states
            yield Element(
                box=(x, y, x + width - 3, y + height),
                role=role,
                text=" ".join(name.split()),
                value="checked" if on else "",
                interactive=True,
            )


class FakeScreen:
    def __init__(self, owner):
        self.owner, self.clicked, self.lost = owner, [], False

    def start(self, page, seed, picture=True):
        self.owner.started.append((page, seed))
        if self.owner.losses:
            self.owner.losses -= 1
            raise EnvironmentFailed("the browser crashed")
        self.page, self.seed, self.clicked = page, seed, []
        return self._shown()

    def act(self, action):
        self.owner.acted.append(action)
        for number in self.owner.signals.pop(len(self.owner.acted), ()):
            os.kill(os.getpid(), number)
        if self.owner.stops and len(self.owner.acted) >= self.owner.stops:
            raise KeyboardInterrupt
        self.clicked.append((action.kind, action.at, action.text, action.direction))
        return self._shown()

    def expert_action(self):
        there = [e for e in self._elements() if e.text == "ONE"]
        return Action(kind="click", at=(there[0].box[0] + 2, there[0].box[1] + 2)) if there else None

    def close(self):
        self.owner.closed += 1

    def _elements(self):
        if self.page.startswith("<!DOCTYPE"):
            return tuple(Listed(self.page, self.owner.size).elements())
        place = 20 * (self.seed % 3)
        names = () if self.page == "empty" else ("TWO", "THREE") if self.page == "unknown" else ("ONE", "TWO")
        return tuple(
            Element(box=(5 + 30 * i, 10 + place, 30 + 30 * i, 25 + place), role="button", text=name, interactive=True)
            for i, name in enumerate(names)
        )

    def _shown(self):
        won = (
            any(k == "click" and at and hit(self._elements()[:1], at) for k, at, *_ in self.clicked)
            if self.page == "one"
            else False
        )
        picture = Image.new("RGB", self.owner.size, "white")
        picture.putpixel((0, 0), tuple(random.Random(repr((self.page, self.clicked))).randbytes(3)))
        said = "" if self.page.startswith("<!") else 'Click "ONE".'
        return ScreenObservation(
            screenshot=None if won else picture,
            instruction=said,
            elements=() if won else self._elements(),
            raw_reward=float(won),
            terminated=won,
            success=won,
        )


class FakeScreens:
    pages = ("one", "two")
    actions = frozenset(("click", "type", "key", "scroll"))

    def __init__(self, size=(160, 210), losses=0, stops=0):
        self.size, self.losses, self.stops = tuple(size), losses, stops
        self.started, self.acted, self.closed, self.opened = [], [], 0, 0
        self.signals = {}  # action, from 1 -> what is sent to this process meanwhile

    def open(self, elements=False):
        assert elements
        self.opened += 1
        return FakeScreen(self)


@pytest.fixture
def fake(monkeypatch):
    """Puts made-up screens in the place of the browser's; gives what was made."""
    made = []

    def screens_of(id, options=None):
        made.append(FakeScreens((options or {}).get("size", (160, 210))))
        return made[-1]

    monkeypatch.setattr(rendered, "screens_of", screens_of)
    monkeypatch.setattr(record, "screens_of", screens_of)
    return made


def page(kind="shop", seed=0, size=(1280, 800), level="middle"):
    return pages.draw_page(random.Random(seed), kind, size, level)


# -- boxes ------------------------------------------------------------------------------------------------------------------


def listing(drawn):
    return list(Listed(drawn.html, (1280, 800)).elements())


@pytest.mark.parametrize("kind", pages.KINDS)
def test_every_thing_gets_its_own_box(kind):
    drawn = page(kind)
    elements = listing(drawn)
    found = rendered.boxes_of(drawn, elements, (1280, 800))
    assert found == {thing.number: elements[thing.number].box for thing in drawn.things if not thing.covered}
    assert len(set(found.values())) == len(found)


def test_things_of_one_name_are_told_apart_by_their_order_and_may_be_missing_at_the_end():
    drawn = page("shop", 1)
    several = [t.number for t in drawn.things if t.word == "Add to cart" and t.text]
    elements = listing(drawn)
    cut = [e for e in elements if e is not elements[several[-1]]]
    found = rendered.boxes_of(drawn, cut, (1280, 800))
    assert several[-1] not in found and all(found[n] == elements[n].box for n in several[:-1])
    more = [*elements, elements[several[0]]]
    assert rendered.boxes_of(drawn, more, (1280, 800)) == {}, "a thing that the page doesn't know of"


def test_things_of_one_name_and_of_different_kinds_are_never_confused():
    drawn = next(p for p in (page("mail", s) for s in range(20)) if any(t.role == "checkbox" for t in p.things))
    elements = listing(drawn)
    links_first = sorted(elements, key=lambda e: e.role == "checkbox")
    right = {thing.number: elements[thing.number].box for thing in drawn.things}
    assert rendered.boxes_of(drawn, links_first, (1280, 800)) == right


def test_what_is_cut_off_or_lies_over_another_thing_has_no_box():
    drawn = page("sign-in", size=(360, 640))
    whole = rendered.boxes_of(drawn, elements := list(Listed(drawn.html, (360, 640)).elements()), (360, 640))
    moved = {0: (-2.0, 1, 50, 9), 1: (300.0, 1, 360.0, 9), 2: (20.0, 20.0, 24.0, 28.0)}
    for number, box in moved.items():
        changed = [
            Element(box=box, role=e.role, text=e.text, interactive=True) if i == number else e for i, e in enumerate(elements)
        ]
        assert number in whole and number not in rendered.boxes_of(drawn, changed, (360, 640))
    x1, y1, x2, y2 = elements[3].box
    over = Element(box=(x1 + 5, y1 + 2, x2 + 5, y2 + 2), role=elements[4].role, text=elements[4].text, interactive=True)
    found = rendered.boxes_of(drawn, [*elements[:4], over, *elements[5:]], (360, 640))
    assert 3 not in found and 4 not in found and 0 in found


def test_pages_are_rendered_once_and_kept_within_a_bound(fake, monkeypatch):
    renderer = rendered.Renderer("browser/html", (1280, 800))
    drawn = [page(seed=s) for s in range(6)]
    first = renderer.show(drawn[0])
    assert renderer.show(drawn[0]) is first and fake[0].opened == 1 and fake[0].closed == 1
    monkeypatch.setattr(rendered, "KEPT_BYTES", 3 * (len(first.pngs[0]) + 100))
    for one in drawn:
        renderer.show(one)
    assert len(renderer._kept) <= 3 and fake[0].opened == fake[0].closed == 6
    assert all(len(key) < 100 for key in renderer._kept), "the pages themselves, of 20 KB and more, aren't kept"
    assert renderer.show(drawn[5]).pictures[0].size == (1280, 800) and fake[0].opened == 6


def test_a_lost_browser_is_tried_again_and_named_in_the_end(fake):
    renderer = rendered.Renderer("browser/html", (1280, 800))
    renderer.show(page())
    fake[0].losses = 2
    assert renderer.show(page(seed=1)).boxes
    fake[0].losses = 9
    with pytest.raises(UserError, match=r"failed 3 times on a page \(the browser crashed\)"):
        renderer.show(page(seed=2))
    assert fake[0].opened == fake[0].closed


# -- the tasks --------------------------------------------------------------------------------------------------------------


def case_of(task, prompt, gold):
    size = task.screen
    return Case(
        completion=gold,
        answer=prompt.answer,
        meta=prompt.meta,
        coordinate_format=task.image_processing.coordinate_format,
        image_sizes=(size,) * len(prompt.images),
        model_sizes=(task.image_processing.model_size(size),) * len(prompt.images),
    )


@pytest.mark.parametrize("form", ["point", "box"])
@pytest.mark.parametrize("frame, grid", [(None, None), *((frame, None) for frame in CoordinateFormat), (None, [12, 16])])
def test_gold_of_grounding_earns_the_most(fake, form, frame, grid):
    if form == "box" and grid:
        with pytest.raises(UserError, match="grid can't describe boxes"):
            Grounding(form=form, grid=grid)
        return
    for style in ("short", "json", "tags"):
        task = Grounding(size="small", form=form, style=style, frame=frame, grid=grid)
        task.image_processing = ImageProcessing(CoordinateFormat.MODEL_PIXELS, lambda size: (size[0] * 3 // 4, size[1] * 2))
        for number in range(4):
            prompt = task.prompts("train", 0)[number]
            case = case_of(task, prompt, task.gold(prompt))
            assert verifiers.hit(case).value == 1 and verifiers.form(case).value == 1, (style, case.completion)


def test_grounding_says_what_it_is_about(fake):
    task = Grounding(size="desktop", languages=["en", "de"])
    prompts = [task.prompts("train", 0)[i] for i in range(60)]
    assert {p.meta["type"] for p in prompts} == {"text", "icon"} and {p.meta["level"] for p in prompts} == set(pages.LEVELS)
    assert 15 < sum(p.meta["type"] == "icon" for p in prompts) < 45
    assert {p.meta["platform"] for p in prompts} == {"web", "desktop"} and len({p.meta["page"] for p in prompts}) > 8
    for p in prompts:
        assert p.meta["instruction"] in p.text and "in pixels of the 1280 x 800 screen" in p.text
        assert p.answer == list(p.meta["boxes"][0]) and len(p.images) == 1
    figures = task.summarise([(p, float(p.meta["type"] == "icon")) for p in prompts])
    assert figures["icon"] == 1 and figures["text"] == 0 and {"easy", "middle", "hard", "name"} <= set(figures)


def test_splits_share_no_page_and_the_runs_seed_draws_nothing(fake):
    task = Grounding(size="small", level="easy", kinds=["sign-in", "player"])
    seen = {}
    for split in task.splits:
        for number in range(80):
            seen.setdefault(task.page(split, number, 0, "easy").html, set()).add(split)
    assert all(len(splits) == 1 for splits in seen.values())
    assert task.prompts("test", 0)[3].meta["instruction"] == task.prompts("test", 9)[3].meta["instruction"]
    other = Grounding(size="small", seed=1)
    assert other.page("train", 0, 0, "easy").html != Grounding(size="small").page("train", 0, 0, "easy").html
    with pytest.raises(UserError, match="there is no split 'dev'"):
        task.prompts("dev", 0)


@pytest.mark.parametrize("style", ["json", "brief", "tags"])
def test_gold_of_transitions_earns_the_most(fake, style):
    task = Transitions(style=style)
    task.image_processing = ImageProcessing(CoordinateFormat.THOUSANDTHS)
    prompts = [task.prompts("train", 0)[i] for i in range(24)]
    assert {p.meta["kind"] for p in prompts} == {"click", "type", "scroll"}
    for prompt in prompts:
        case = case_of(task, prompt, task.gold(prompt))
        assert verifiers.action(case).value == 1 and verifiers.form(case).value == 1, case.completion
        before, after = prompt.images
        assert before.tobytes() != after.tobytes()


@pytest.mark.parametrize(
    "kind, options, message",
    [
        (Grounding, {"size": "huge"}, "size = 'huge' is unknown: choose one of small, mobile, desktop"),
        (Grounding, {"size": [10, 640]}, "size = 10 must be a whole number of pixels from 120"),
        (Grounding, {"size": [640]}, r"size = \[640\] must be one of small"),
        (Grounding, {"level": "harder"}, "level = 'harder' is unknown: .*Did you mean 'hard'"),
        (Grounding, {"kinds": ["mial"]}, "kinds = 'mial' is unknown: .*Did you mean 'mail'"),
        (Grounding, {"kinds": []}, r"kinds = \[\] must be a list of some of mail"),
        (Grounding, {"themes": "dark"}, "themes = 'dark' must be a list of some of light, dark"),
        (Grounding, {"languages": ["xx"]}, "languages = 'xx' is unknown"),
        (Grounding, {"form": "polygon"}, "form = 'polygon' is unknown"),
        (Grounding, {"style": "brief", "form": "box"}, "form = 'box' is unknown: choose one of point"),
        (Grounding, {"grid": [0, 4]}, r"grid = \[0, 4\] must be"),
        (Grounding, {"train": 0}, "train = 0 must be a whole number from 1"),
        (Transitions, {"kinds_of_action": ["drag"]}, "kinds_of_action = 'drag' is unknown"),
        (Transitions, {"style": "short"}, "style = 'short' is unknown"),
    ],
)
def test_bad_options_are_refused_in_one_line(kind, options, message):
    with pytest.raises(UserError, match=message) as caught:
        kind(**options)
    assert "\n" not in str(caught.value)


def test_screens_on_which_nothing_can_be_found_are_told(fake, monkeypatch):
    monkeypatch.setattr(rendered, "boxes_of", lambda *_: {})
    with pytest.raises(UserError, match="found no suitable element on 40 pages"):
        Grounding(size="small").prompts("train", 0)[0]


# -- exploring --------------------------------------------------------------------------------------------------------------


def test_a_walk_clicks_types_and_scrolls_and_says_what_it_hit():
    elements = (
        Element(box=(10, 10, 40, 30), role="button", text="Go", interactive=True),
        Element(box=(10, 40, 90, 60), role="textbox", text="Name", interactive=True, click_point=(20.4, 50.2)),
        Element(box=(0, 70, 90, 80), role="text", text="words"),
    )
    shown = ScreenObservation(instruction='Type "Ada" and press Go.', elements=elements)
    walk = Walk(random.Random(0), frozenset(("click", "type", "key", "scroll")))
    steps = [walk(None, shown) for _ in range(300)]
    kinds = [step.action.kind for step in steps]
    assert {"click", "type", "key", "scroll"} == set(kinds)
    for before, step in itertools.pairwise(steps):
        if step.action.kind == "click":
            assert step.box in (elements[0].box, elements[1].box) and hit(elements, step.action.at) == step.box
        if step.action.kind == "type":
            assert before.action.at == (20.0, 50.0) and step.action.text == "Ada"
        if before.action.kind == "click" and before.box == elements[1].box:
            assert step.action.kind == "type"
    assert Walk(random.Random(0), frozenset(("click",)))(None, ScreenObservation()) is None
    only = Walk(random.Random(0), frozenset(("click",)))
    assert {only(None, shown).box for _ in range(50)} == {elements[0].box, elements[1].box}, "each of them, and no text"


def test_a_hit_is_the_smallest_thing_that_can_be_clicked():
    big = Element(box=(0, 0, 100, 100), role="link", text="row", interactive=True)
    small = Element(box=(10, 10, 20, 20), role="button", text="x", interactive=True)
    label = Element(box=(12, 12, 14, 14), role="text", text="x")
    assert hit((big, small, label), (13, 13)) == small.box and hit((big, small), (50, 50)) == big.box
    assert hit((label,), (13, 13)) == label.box and hit((), (1, 1)) is None and hit((big,), None) is None
    assert spot_of(Element(box=(1.2, 1.2, 1.6, 1.6), role="button")) == (1.4, 1.4), "no whole pixel is in it"


# -- recording --------------------------------------------------------------------------------------------------------------


def rows_of(folder):
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def plan(*names, **options):
    return Plan(pages=[(name, lambda seed, name=name: name) for name in names or ("one", "two")], **{"episodes": 6, **options})


def test_a_recording_is_what_was_seen_and_done(tmp_path):
    screens = FakeScreens()
    tally = recording.record(screens, plan(steps=4, elements=True), tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert [row["page"] for row in rows] == ["one", "two"] * 3 and [row["seed"] for row in rows] == list(range(6))
    assert tally.episodes == 6 and tally.steps == sum(len(row["steps"]) for row in rows) == len(screens.acted)
    assert screens.opened == screens.closed == 6
    done = iter(screens.acted)
    for row in rows:
        assert row["instruction"] == 'Click "ONE".' and row["size"] == [160, 210] and len(row["steps"]) <= 4
        assert row["success"] == (row["raw_reward"] == 1.0) and (row["final"] is None) == row["success"]
        for step in row["steps"]:
            action = next(done)
            assert step["action"]["kind"] == action.kind and (action.at is None) == ("at" not in step["action"])
            with Image.open(tmp_path / "out" / step["picture"]) as picture:
                assert picture.size == (160, 210)
            assert [e["text"] for e in step["elements"]] == ["ONE", "TWO"]
            assert step["box"] is None or step["box"] in [e["box"] for e in step["elements"]]
    assert 0 < sum(row["success"] for row in rows) == tally.won
    named = {step["picture"] for row in rows for step in row["steps"]} | {row["final"] for row in rows if row["final"]}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*named, "episodes.jsonl"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_same_seed_records_the_same(tmp_path):
    for name in ("a", "b"):
        recording.record(FakeScreens(), plan(), tmp_path / name)
    recording.record(FakeScreens(), plan(seed=100), tmp_path / "c")
    a, b, c = ((tmp_path / name / "episodes.jsonl").read_text() for name in "abc")
    assert a == b != c


def test_recordings_are_read_by_the_task_of_inverse_dynamics(tmp_path):
    recording.record(FakeScreens(), plan("two", episodes=30, steps=5), tmp_path / "out")
    task = Inverse(path=str(tmp_path / "out"), shares={"train": 0.7, "test": 0.3})
    prompts = list(task.prompts("train", 0))
    assert len(prompts) > 40
    for prompt in prompts[:20]:
        size = prompt.images and (160, 210)
        case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta, image_sizes=(size,) * 2)
        assert verifiers.action(case).value == 1


def test_an_expert_is_recorded_and_only_what_was_won(tmp_path):
    tally = recording.record(FakeScreens(), plan("one", "unknown", policy="expert"), tmp_path / "out")
    assert (tally.episodes, tally.won, tally.idle) == (3, 3, 3)
    assert all(len(row["steps"]) == 1 and row["success"] for row in rows_of(tmp_path / "out"))
    kept = recording.record(FakeScreens(), plan(episodes=20, steps=2, won=True), tmp_path / "won")
    assert kept.failed and kept.episodes == kept.won > 0 and all(row["success"] for row in rows_of(tmp_path / "won"))
    with pytest.raises(UserError, match="there is no expert for unknown: use --policy random"):
        recording.record(FakeScreens(), plan("unknown", policy="expert"), tmp_path / "none")
    with pytest.raises(UserError, match="none of 6 episodes succeeded"):
        recording.record(FakeScreens(), plan("two", won=True), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_walk_does_only_what_it_may(tmp_path):
    recording.record(FakeScreens(), plan("two", actions=["click"], episodes=20), tmp_path / "clicks")
    recording.record(FakeScreens(), plan("two", episodes=20), tmp_path / "any")
    kinds = [{s["action"]["kind"] for row in rows_of(tmp_path / name) for s in row["steps"]} for name in ("clicks", "any")]
    assert kinds == [{"click"}, {"click", "scroll"}]


def test_lost_episodes_are_counted_and_a_lost_browser_ends_it(tmp_path):
    tally = recording.record(FakeScreens(losses=2), plan(), tmp_path / "out")
    assert (tally.lost, tally.episodes, tally.why) == (2, 4, "the browser crashed")
    screens = FakeScreens(losses=99)
    with pytest.raises(UserError, match="5 episodes in a row were lost, the last on page 'one': the browser crashed"):
        recording.record(screens, plan(episodes=50), tmp_path / "lost")
    assert screens.opened == screens.closed and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_ctrl_c_keeps_what_was_finished(tmp_path):
    screens = FakeScreens(stops=9)
    tally = recording.record(screens, plan("two", steps=4, episodes=50), tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert tally.stopped and len(rows) == tally.episodes == 2 and screens.opened == screens.closed == 3
    assert len(list((tmp_path / "out").glob("*.png"))) == 2 * 5
    with pytest.raises(UserError, match="stopped before the first episode was over: nothing was written"):
        recording.record(FakeScreens(stops=1), plan("two"), tmp_path / "none")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_nothing_is_overwritten_unasked_and_only_recordings_at_all(tmp_path):
    out = tmp_path / "out"
    recording.record(FakeScreens(), plan(), out)
    before = (out / "episodes.jsonl").read_text()
    screens = FakeScreens()
    with pytest.raises(UserError, match="exists already: name a new folder, or give --overwrite"):
        recording.record(screens, plan(seed=7), out)
    with pytest.raises(UserError, match="in a row were lost"):
        recording.record(FakeScreens(losses=9), plan(seed=7), out, overwrite=True)
    assert not screens.opened and (out / "episodes.jsonl").read_text() == before, "a failed one leaves the old one"
    recording.record(FakeScreens(), plan(seed=7), out, overwrite=True)
    assert rows_of(out)[0]["seed"] == 7
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="is not a recording, and is never overwritten"):
        recording.record(FakeScreens(), plan(), other, overwrite=True)
    assert (other / "thesis.txt").exists() and sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out"]


def command(folder, *arguments, screens="browser/miniwob"):
    before = handlers()
    try:
        with pytest.raises(SystemExit) as ended:
            main(["record", "screens", screens, str(folder), *map(str, arguments)])
        assert handlers() in (before, dict.fromkeys(before, signal.SIG_IGN)), "its process ends, and ignores further signals"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return ended.value.code


def handlers():
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


@pytest.mark.parametrize("sent", [[], [signal.SIGTERM], [signal.SIGINT] * 2])
def test_after_a_signal_further_ones_are_ignored_and_before_one_nothing_changes(sent):
    before = handlers()
    try:
        with contextlib.suppress(KeyboardInterrupt), (stop := Stop()).listening(), stop.bearing(1):
            for number in sent:
                signal.raise_signal(number)
        assert handlers() == (dict.fromkeys(before, signal.SIG_IGN) if sent else before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_command_records_and_says_what(tmp_path, fake, capsys):
    assert command(tmp_path / "a", "--episodes", 4, "--pages", "two,one") == 0
    steps = sum(len(row["steps"]) for row in rows_of(tmp_path / "a"))
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'a'}: 4 episodes, {steps} steps in all; ")
    assert [row["page"] for row in rows_of(tmp_path / "a")] == ["two", "one"] * 2
    assert command(tmp_path / "c", "--actions", "click", "--pages", "two", "--episodes", 9) == 0
    assert {step["action"]["kind"] for row in rows_of(tmp_path / "c") for step in row["steps"]} == {"click"}
    assert command(tmp_path / "b", "--set", "size=[360, 640]", "-n", 3, screens="browser/html") == 0
    rows = rows_of(tmp_path / "b")
    assert [row["page"] for row in rows] == list(pages.KINDS[:3]) and rows[0]["size"] == [360, 640]
    assert fake[-1].started[0][0].startswith("<!DOCTYPE html>")


def whole_recording(folder):
    """Its rows; each has its pictures, and there is nothing beside them."""
    rows = rows_of(folder)
    named = {step["picture"] for row in rows for step in row["steps"]} | {row["final"] for row in rows if row["final"]}
    assert {path.name for path in folder.iterdir()} == {*named, "episodes.jsonl"} and not list(folder.parent.glob(".*"))
    return rows


@pytest.mark.parametrize("sent", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGTERM], [signal.SIGINT] * 4])
def test_a_signal_ends_the_command_and_keeps_what_was_finished(tmp_path, monkeypatch, capsys, sent):
    screens = FakeScreens()
    screens.signals[9] = sent
    monkeypatch.setattr(record, "screens_of", lambda id, options: screens)
    assert command(tmp_path / "out", "--pages", "two", "--steps", 4, "--episodes", 50) == 128 + sent[0]
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out'}: stopped; 2 episodes, 8 steps in all; ")
    assert len(whole_recording(tmp_path / "out")) == 2 and len(screens.acted) == 9 and screens.opened == screens.closed == 3
    screens = FakeScreens()
    screens.signals[1] = sent
    assert command(tmp_path / "none", "--pages", "two") == 128 + sent[0]
    assert "nothing was written" in capsys.readouterr().err and not (tmp_path / "none").exists()


def test_signals_never_tear_what_is_being_written(tmp_path, monkeypatch, capsys):
    written = recording._write

    def write(aside, episode):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        written(aside, episode)

    monkeypatch.setattr(recording, "_write", write)
    monkeypatch.setattr(record, "screens_of", lambda id, options: FakeScreens())
    assert command(tmp_path / "out", "--pages", "two") == 143
    assert len(whole_recording(tmp_path / "out")) == 1
    assert ": stopped; 1 episodes" in capsys.readouterr().out


def test_a_signal_before_the_first_episode_ends_the_command_at_once(tmp_path, monkeypatch, capsys):
    def screens_of(id, options):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    monkeypatch.setattr(record, "screens_of", screens_of)
    assert command(tmp_path / "out") == 143
    assert capsys.readouterr().err == "mmrl: stopped before the first episode: nothing was written\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--pages", "thre"], "has no page 'thre'"),
        (["--episodes", "0"], "0 is not in the range 1<=x<=1000000"),
        (["--policy", "clever"], "'clever' is not one of 'random', 'expert'"),
        (["--actions", "click,hover"], "--actions = 'hover' is unknown: choose one of click, type, key, scroll"),
        (["--actions", "scroll"], "--actions 'scroll' must include click"),
        (["--actions", "click", "--policy", "expert"], "--actions 'click' is only for --policy random: leave it out"),
        (["--set", "size"], "--set 'size' has no value: write --set key=value"),
    ],
)
def test_bad_input_ends_the_command_in_one_line(tmp_path, fake, capsys, arguments, message):
    assert command(tmp_path / "out", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("mmrl: ")
    assert not (tmp_path / "out").exists()


def test_unknown_screens_end_the_command_in_one_line(tmp_path, capsys):
    assert command(tmp_path / "out", screens="browser/nothing") == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "file").write_text("")
    assert command(tmp_path / "file") == 2


# -- a real browser -----------------------------------------------------------------------------------------------------------

RECTANGLES = """() => Object.fromEntries([...document.querySelectorAll('[data-thing]')].filter(e => e.dataset.thing).map(e => {
  const r = e.getBoundingClientRect(); return [e.dataset.thing, [r.left, r.top, r.right, r.bottom]];
}))"""
TOP = """boxes => Object.entries(boxes).filter(([number, b]) =>
  [[.5, .5], [.15, .2], [.85, .8], [.85, .2], [.15, .8]].some(([u, v]) => {
  const e = document.elementFromPoint(b[0] + u * (b[2] - b[0]), b[1] + v * (b[3] - b[1]));
  const thing = e && e.closest('[data-thing]');
  return !thing || thing.dataset.thing !== number;
})).map(([number]) => number)"""


@pytest.fixture(scope="module")
def chromium():
    """A browser of our own, that knows nothing of the simulator's; the reference."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    pytest.importorskip("mmrl_browser", reason="the simulator browser is not installed")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on the path")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def against_the_page_itself(chromium, drawn):
    """(boxes that are right, faults) of pages: their things' boxes against the rectangles that the page itself says, and against
    what lies on top in their middles and corners."""
    shown = {size: rendered.Renderer("browser/html", size) for size in pages.SIZES.values()}
    tabs = {size: chromium.new_page(viewport={"width": size[0], "height": size[1]}) for size in pages.SIZES.values()}
    right, faults = 0, []
    for one in drawn:
        boxes = shown[one.look.size].show(one).boxes
        tab = tabs[one.look.size]
        tab.set_content(one.html)
        rectangles = tab.evaluate(RECTANGLES)
        covered = tab.evaluate(TOP, {str(number): list(box) for number, box in boxes.items()})
        for number, box in boxes.items():
            far = max(abs(a - b) for a, b in zip(box, rectangles[str(number)], strict=True))
            if far > 1 or str(number) in covered:
                faults.append((one.kind, one.things[number], box, rectangles[str(number)]))
            right += 1
        assert len(boxes) > 0.5 * len(one.things) or one.look.tiny or any(t.covered for t in one.things), one.kind
    for tab in tabs.values():
        tab.close()
    return right - len(faults), faults


def drawn_pages(count, first=1000):
    sizes = list(pages.SIZES.values())
    for i in range(first, first + count):
        size, level = sizes[i // 5 % 3], pages.LEVELS[i % 3]
        yield pages.draw_page(random.Random(i), pages.KINDS[i % 12], size, level, languages=pages.LANGUAGES)


@pytest.mark.slow
def test_boxes_are_those_of_the_page_itself(chromium):
    right, faults = against_the_page_itself(chromium, drawn_pages(12))
    assert not faults and right > 150


@pytest.mark.exhaustive  # those of one page are tested too
@pytest.mark.slow
def test_boxes_are_those_of_the_page_itself_on_many_pages(chromium):
    right, faults = against_the_page_itself(chromium, drawn_pages(120, 5000))
    assert not faults and right > 1600


@pytest.mark.slow
def test_tasks_are_the_same_again_with_a_browser(chromium):
    for make in (lambda: Grounding(size="mobile"), lambda: Transitions(size="mobile", kinds_of_action=["click", "scroll"])):
        a, b = ([make().prompts("test", 0)[i] for i in range(4)] for _ in range(2))
        assert [(p.text, p.answer, [i.tobytes() for i in p.images]) for p in a] == [
            (p.text, p.answer, [i.tobytes() for i in p.images]) for p in b
        ]


def told_apart(drawn):
    """Click on every thing of a page, each on the page anew. (clicks that show, groups of things whose clicks show the same)."""
    from mmrl.api.services import screens_of

    screens = screens_of("browser/html", {"size": list(drawn.look.size)})
    screen = screens.open(elements=True)
    shown = screen.start(drawn.html, 0)
    before, same = shown.screenshot.tobytes(), {}
    for number, (x1, y1, x2, y2) in rendered.boxes_of(drawn, shown.elements, drawn.look.size).items():
        screen.start(drawn.html, 0)
        after = screen.act(Action(kind="click", at=((x1 + x2) / 2, (y1 + y2) / 2))).screenshot.tobytes()
        if after != before:
            same.setdefault(after, []).append(drawn.things[number].name)
    screen.close()
    return sum(map(len, same.values())), [names for names in same.values() if len(names) > 1]


@pytest.mark.slow
def test_every_click_leads_to_a_screen_of_its_own(chromium):
    clicks, same = told_apart(pages.draw_page(random.Random(3), "mail", (360, 640), "middle"))
    assert clicks > 10 and not same


@pytest.mark.slow
@pytest.mark.parametrize("kind", some_of(pages.KINDS, list(pages.KINDS)[::3]))
def test_every_click_leads_to_a_screen_of_its_own_on_every_kind_of_page(chromium, kind):
    clicks, same = told_apart(pages.draw_page(random.Random(7), kind, (360, 640), "hard"))
    assert clicks > 3 and all(len(set(names)) == 1 for names in same), "only things of one name, which are not asked about"


@pytest.mark.slow
def test_a_signal_leaves_a_recording_and_no_browser(chromium, tmp_path):
    out = tmp_path / "out"
    asked = ["browser/html", str(out), "--pages", "mail", "--set", "size=[168, 224]", "-n", "100000", "--steps", "2"]
    running = subprocess.Popen([sys.executable, "-m", "mmrl", "record", "screens", *asked], stdout=subprocess.PIPE)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and not list(tmp_path.glob(".out.part-*/episodes.jsonl")):
            time.sleep(0.05)
        started = [process.pid for process in psutil.Process(running.pid).children(recursive=True)]
        for _ in range(3):
            running.send_signal(signal.SIGTERM)
        said, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 143 and b": stopped; " in said and whole_recording(out)
    assert len(started) > 3 and all(gone(pid, 10) for pid in started)


@pytest.mark.slow
def test_miniwob_is_recorded_and_read_again(chromium, tmp_path):
    pytest.importorskip("miniwob", reason="no miniwob: pip install miniwob")
    assert command(tmp_path / "out", "--pages", "click-test-2,click-button", "-n", 4, "--policy", "expert") == 0
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 4 and all(row["success"] and row["steps"][0]["box"] for row in rows)
