"""What a turn lists of a page, how an element is named, and examples that are found by exploring: on pages that are planted."""

import random

import pytest
from mmrl_gui import episodes, examples
from mmrl_gui.actions import read
from mmrl_gui.asking import act
from mmrl_gui.coordinates import Numbers
from mmrl_gui.episodes import APART, Episodes
from mmrl_gui.exploring import hit
from mmrl_gui.listing import kept, number_of, spot_of, words
from PIL import Image

from mmrl import CoordinateFormat, EnvironmentFailed, UserError
from mmrl.api.simulators.gui import Action, Element, ScreenObservation

NUMBERS = Numbers(coordinate_format=CoordinateFormat.PIXELS, image=(100, 100))


def named(action, page, style, numbers):
    return act(style, "", action, numbers, element=number_of(action, page))


def element(number, text="", interactive=False, role="button", box=None, **more):
    return Element(box=box or (0, 10 * number, 50, 10 * number + 9), role=role, text=text, interactive=interactive, **more)


# -- lists ------------------------------------------------------------------------------------------------------------------


def test_what_is_kept():
    page = [
        element(0, "Welcome"),
        element(1, "Mail", True),
        element(2, "the RED ball"),
        element(3, "", True),
        element(4, "7 balls"),
    ]
    assert kept(page, "Click the red one.", 0) == tuple(page)
    assert [e.text for e in kept(page, "Click the red one.", 9)] == ["Mail", "the RED ball", ""]
    assert [e.text for e in kept(page, "Click the red one.", 2)] == ["Mail", "the RED ball"]
    assert [e.text for e in kept(page, "Click the red one.", 1)] == ["the RED ball"]
    assert [e.text for e in kept(page, "Open Mail, 7 times", 2)] == ["Mail", "7 balls"]
    assert kept([element(0, "x", value="Tea")], "Drink tea", 3), "what a field holds counts too"
    assert words("Don't click_me: N°3, ÉTÉ!") == {"don", "t", "click", "me", "n", "3", "été"}


def test_what_is_kept_has_its_order_and_nothing_better_is_left_out():
    draw = random.Random(0)
    for _ in range(200):
        page = [element(n, draw.choice(("red ball", "red", "blue", "")), draw.random() < 0.4) for n in range(draw.randrange(12))]
        most = draw.randrange(1, 8)
        found = kept(page, "take a red ball", most)
        places = [page.index(e) for e in found]
        assert places == sorted(set(places)) and len(found) <= most

        def worth(e):
            return (len(words(e.text) & {"red", "ball"}), e.interactive)

        left = [e for e in page if e not in found and worth(e) > (0, False)]
        assert not left or (len(found) == most and max(map(worth, left)) <= min(map(worth, found)))


def test_an_element_is_named_and_read_back():
    page = [
        element(0, "all", box=(0, 0, 100, 100)),
        element(1, "form", True, box=(10, 10, 60, 60)),
        element(2, "ok", True, box=(20, 20, 30, 30), click_point=(21, 22)),
        element(3, "label", box=(22, 22, 28, 28)),
    ]
    click = Action(kind="click", at=(25, 25))
    assert named(click, page, "brief", NUMBERS) == "click [3]"
    assert read(named(click, page, "json", NUMBERS), NUMBERS, page) == Action(kind="click", at=(21, 22))
    assert named(Action(kind="click", at=(80, 80)), page, "brief", NUMBERS) == "click [1]"
    assert named(click, page[3:], "brief", NUMBERS) == "click [1]"
    assert named(click, [], "brief", NUMBERS) == "click 25 25"
    drag = Action(kind="drag", at=(25, 25), to=(80, 80))
    assert named(drag, page, "brief", NUMBERS) == "drag 25 25 80 80"
    assert named(Action(kind="type", text="tea"), page, "brief", NUMBERS) == "type tea"


def test_the_element_that_is_clicked_is_named_and_not_a_smaller_one_under_it():
    """A click on the list's own place, where a small label lies that can be clicked too."""
    page = [
        element(0, "list", True, box=(0, 0, 100, 100), click_point=(50, 50)),
        element(1, "label", True, box=(45, 45, 55, 55), click_point=(46, 46)),
        element(2, "row", box=(0, 0, 80, 100), click_point=(50, 50)),
    ]
    click = Action(kind="click", at=(50, 50))
    assert named(click, page, "brief", NUMBERS) == "click [1]" and hit(page, (50, 50)) == (0, 0, 100, 100)
    assert named(Action(kind="click", at=(46, 46)), page, "brief", NUMBERS) == "click [2]"
    assert named(Action(kind="click", at=(52, 52)), page, "brief", NUMBERS) == "click [2]", "nobody's place: the smallest"
    draw = random.Random(0)
    for _ in range(300):
        page = []
        for n in range(8):
            x, y = draw.randrange(60), draw.randrange(60)
            box = (x, y, x + draw.randrange(4, 40), y + draw.randrange(4, 40))
            spot = (draw.uniform(box[0], box[2]), draw.uniform(box[1], box[3]))
            page.append(element(n, str(n), draw.random() < 0.7, box=box, click_point=spot))
        for n, one in enumerate(page, 1):
            for at in (one.click_point, spot_of(one)):
                said = named(Action(kind="click", at=at), page, "brief", NUMBERS)
                same = [m for m, other in enumerate(page, 1) if at in (other.click_point, spot_of(other))]
                assert said in {f"click [{m}]" for m in same} and n in same
                assert hit(page, at) in {page[m - 1].box for m in same}


# -- examples ---------------------------------------------------------------------------------------------------------------


class Planted:
    """Pages of six lines, of which the last is right. `known` has an expert, `unknown` has none; `hard` is never done."""

    size, pages, actions = (100, 100), ("known", "unknown", "hard"), frozenset(("click", "wait"))

    def __init__(self, lost=0):
        self.lost, self.started, self.open_now = lost, [], 0

    def open(self, elements=False):
        self.open_now += 1
        return Line(self, elements)


class Line:
    def __init__(self, screens, elements):
        self.screens, self.elements = screens, elements

    def start(self, page, seed, picture=True):
        self.screens.started.append((page, seed))
        if self.screens.lost:
            self.screens.lost -= 1
            raise EnvironmentFailed("it hangs")
        self.page = page
        listed = tuple(element(n, "goal" if n == 5 else f"line {n}", n in (2, 4, 5)) for n in range(6)) if self.elements else ()
        return ScreenObservation(
            screenshot=Image.new("RGB", (100, 100)), instruction=f"Click the goal of {seed}.", elements=listed
        )

    def act(self, action):
        right = action.at is not None and 50 <= action.at[1] < 60 and self.page != "hard"
        return ScreenObservation(terminated=True, success=right, raw_reward=1.0 if right else -1.0)

    def expert_action(self):
        return Action(kind="click", at=(25, 55)) if self.page == "known" else None

    def close(self):
        self.screens.open_now -= 1


@pytest.fixture
def screens(monkeypatch):
    found = Planted()
    monkeypatch.setattr(episodes, "screens_of", lambda id, options: found)
    return found


def test_an_example_stands_before_the_instruction_and_is_of_no_split(screens):
    task = Episodes(pages=["known"], observe="elements", style="brief", most=3, examples=2, demos=50)
    first, again = task.prompts("train", 0)[0], task.prompts("test", 0)[1]
    before, _, after = first.text.partition(f"\n\nClick the goal of {APART}.\n")
    one = 'An example:\nClick the goal of {}.\n[1] button "line 2"\n[2] button "line 4"\n[3] button "goal"\nclick [3]'
    assert before == one.format(50) + "\n\n" + one.format(51), "the seeds after those of the split demo"
    assert after.endswith('[1] button "line 2"\n[2] button "line 4"\n[3] button "goal"') and again.text.startswith(before)
    assert task.gold(first) == "click [3]" and [seed for _, seed in screens.started] == [APART, 50, 51, 2 * APART + 1]
    environment = task.environment(first)
    assert environment.step("click [3]").outcome["success"] == 1.0, "numbers count what is listed"
    environment.close()
    assert not screens.open_now


def test_a_walk_finds_one_where_nobody_knows(screens):
    task = Episodes(pages=["unknown"], observe="both", style="brief", examples=1)
    prompt = task.prompts("train", 0)[3]
    text = prompt.text
    assert prompt.images and text.startswith("An example:\nClick the goal of 1")
    assert '[6] button "goal"\nclick [6]\n\n' in text, "by number, since nobody sees the screen of an example"
    again = Episodes(pages=["unknown"], observe="both", style="brief", examples=1)
    assert again.prompts("train", 0)[3].text == text


def test_where_there_is_none(screens, monkeypatch):
    monkeypatch.setattr(examples, "TRIES", 7)
    with pytest.raises(UserError, match="page 'hard': 0 of 14 episodes succeeded, and examples = 2: take fewer"):
        Episodes(pages=["hard"], observe="both", examples=2).prompts("train", 0)[0]
    assert not screens.open_now


def test_lost_pages_are_left_out_and_at_last_told():
    now_and_then = Planted(lost=4)
    walks = examples.Walks(lambda: now_and_then, lambda shown, step, instruction: "done")
    found = examples.Examples(walks, 2, 10).of("known")
    assert found == "An example:\nClick the goal of 14.\ndone\n\nAn example:\nClick the goal of 15.\ndone"
    assert not now_and_then.open_now
    broken = examples.Examples(examples.Walks(lambda: Planted(lost=99), lambda *told: ""), 1, 0)
    with pytest.raises(UserError, match="page 'known' failed 5 times during the search for an example: it hangs"):
        broken.of("known")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"most": 5}, 'most = 5 needs a list of elements: set observe = "elements" or "both"'),
        ({"most": -1, "observe": "both"}, "most = -1 must be"),
        ({"examples": 21}, "examples = 21 must be"),
        ({"examples": True}, "examples = True must be"),
        ({"examples": 2}, 'examples = 2 needs a list of elements: set observe = "elements" or "both"'),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(UserError) as error:
        Episodes(**options)
    assert said in str(error.value)
