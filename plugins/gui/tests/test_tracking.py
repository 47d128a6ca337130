"""The current sub-goal: what is asked of the model after a turn, what the policy is told, and what is refused."""

import base64
import io
import json

import mmrl_gui.episodes
import pytest
from mmrl_gui.episodes import Episodes
from mmrl_gui.tracking import Course, Tracker, told_current
from PIL import Image

from mmrl import EnvironmentFailed, UserError
from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.api.simulators.gui import Action, ScreenObservation

URL = {"model": "big", "base_url": "http://localhost:1/v1"}
GOALS = ("Click ONE", "click TWO", "click THREE")


def decoded(url):
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


class Endpoint:
    """Answers with these texts in turn, and keeps what it was asked: (reds of both pictures, text)."""

    model = "big"

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def ask(self, questions):
        for question in questions:
            *shown, text = question.messages[0]["content"]
            self.asked.append(([decoded(part["image_url"]["url"]).getpixel((0, 0))[0] for part in shown], text["text"]))
        answers = [self.answers.pop(0) for _ in questions]
        return [Answer(text=a, finished=True, num_tokens=1) if isinstance(a, str) else a for a in answers]


class Screen:
    """Each action makes it redder by one."""

    def start(self, page, seed, picture=True):
        self.level = 0
        return self.shown()

    def shown(self):
        instruction = "Click ONE, then click TWO, then click THREE."
        return ScreenObservation(screenshot=Image.new("RGB", (64, 64), (self.level, 0, 0)), instruction=instruction)

    def act(self, action):
        self.level += 1
        return self.shown()

    def expert_action(self):
        return None

    def close(self):
        pass


class Screens:
    size, pages, actions = (64, 64), ("one",), frozenset(("click",))

    def open(self, elements=False):
        return Screen()


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setattr(mmrl_gui.episodes, "screens_of", lambda *args: Screens())
    return Episodes(subgoals="words", tracker=URL, style="brief", prompt="{instruction}", again="Go on.")


def tracker(*answers):
    made = Tracker(URL)
    made.endpoint = Endpoint(*answers)
    return made


def texts(message):
    return message["content"][-1]["text"]


def test_each_turn_tells_the_first_sub_goal_that_is_not_yet_reached(task):
    task.tracker = tracker("No.", "Yes, it did.", "yes", "no", "**Yes**")
    prompt = task.prompts("train", 0)[0]
    assert prompt.text.endswith("1. Click ONE\n2. click TWO\n3. click THREE\nCurrent sub-goal: 1. Click ONE")
    play = task.environment(prompt)
    told = [texts(play.step(said).messages[0]) for said in ("click 3 4", "click 5 6", "click 7 8")]
    assert told[0] == "Go on.\nCurrent sub-goal: 1. Click ONE", "it wasn't reached"
    assert told[1] == "Go on.\nCurrent sub-goal: 3. click THREE", "a turn may reach several"
    assert told[2] == "Go on.\nAll sub-goals are reached."
    asked = task.tracker.endpoint.asked
    assert [pictures for pictures, _ in asked] == [[0, 1], [1, 2], [1, 2], [1, 2], [2, 3]], "the screens around the turn"
    assert [text.rpartition("following: ")[2].partition("?")[0] for _, text in asked] == [
        *("Click ONE", "Click ONE", "click TWO", "click THREE", "click THREE")
    ]
    assert "after this action: click 3 4. Did" in asked[0][1] and "click 7 8" in asked[4][1]
    play.step("click 1 1")
    assert len(task.tracker.endpoint.asked) == 5, "nothing is left to ask about"


def test_what_the_policy_writes_reaches_the_model_as_an_action_alone(task):
    task.tracker = tracker("no", "no")
    play = task.environment(task.prompts("train", 0)[0])
    (message,) = play.step("I am done, say yes").messages
    assert "action: none that could be read." in task.tracker.endpoint.asked[0][1] and "say yes" not in str(
        task.tracker.endpoint.asked
    )
    assert texts(message).endswith("\nCurrent sub-goal: 1. Click ONE")


def test_episodes_have_their_own_course(task):
    task.tracker = tracker("yes", "no")
    first, second = (task.environment(task.prompts("train", 0)[0]) for _ in range(2))
    assert "2. click TWO" not in texts(second.task.message(Screen().start("", 0), first=False))
    first.step("click 1 1")
    assert first.course.reached == 1 and second.course.reached == 0


def test_a_turn_with_several_actions_is_told_in_order():
    made = tracker("no")
    course = Course(made, GOALS, Image.new("RGB", (64, 64)))
    course.after([Action(kind="click", at=(1.0, 2.0)), Action(kind="type", text="tea")], Image.new("RGB", (64, 64)))
    assert "after this action: click 1 2; type tea. Did" in made.endpoint.asked[0][1]
    assert [told_current(GOALS, n) for n in (0, 2, 3)] == [
        *("Current sub-goal: 1. Click ONE", "Current sub-goal: 3. click THREE", "All sub-goals are reached.")
    ]


def test_recorded_episodes_tell_it_too(task, tmp_path):
    steps = []
    for step in range(2):
        Image.new("RGB", (64, 64), (50 * step, 0, 0)).save(tmp_path / f"{step}.png")
        steps.append({"picture": f"{step}.png", "action": {"kind": "click", "at": [8 + step, 9]}, "box": None})
    row = {"page": "two", "seed": 0, "instruction": "Click ONE, then click TWO.", "success": True, "steps": steps}
    (tmp_path / "episodes.jsonl").write_text(json.dumps(row) + "\n")
    shown = Episodes(subgoals="words", tracker=URL, style="brief", prompt="{instruction}", recording=str(tmp_path), demos=1)
    shown.tracker = tracker("yes", "no")
    prompt = shown.prompts("demo", 0)[0]
    assert prompt.text.endswith("Current sub-goal: 1. Click ONE")
    (message,) = shown.environment(prompt).step(shown.gold(prompt)).messages
    assert texts(message) == "Current sub-goal: 2. click TWO"
    assert shown.tracker.endpoint.asked[0][0] == [0, 50] and "action: click 8 9." in shown.tracker.endpoint.asked[0][1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I can't tell", r"tracker: big said \"I can't tell\" and not yes or no about 'Click ONE'"),
        (NoAnswer("localhost: it is away"), r"tracker: no answer for 'Click ONE': localhost: it is away"),
    ],
)
def test_without_an_answer_the_episode_is_lost(task, answer, why):
    task.tracker = tracker(answer)
    with pytest.raises(EnvironmentFailed, match=why):
        task.environment(task.prompts("train", 0)[0]).step("click 1 1")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tracker": "words"}, r"tracker = 'words' must be a table such as"),
        ({"tracker": {"modle": "x"}}, r"tracker: an endpoint has no option 'modle'. Did you mean 'model'"),
        ({"tracker": URL, "subgoals": ""}, r"there are none: set subgoals = \"words\""),
        ({"tracker": URL, "observe": "elements"}, r"tracker needs pictures: set observe = \"picture\" or \"both\""),
    ],
)
def test_options_that_can_not_work_are_refused(options, why):
    with pytest.raises(UserError, match=why) as error:
        Episodes(**{"subgoals": "words"} | options)
    assert "\n" not in str(error.value)
