"""Sub-goals that the policy is told: whom they are asked of, how the answer is read, where they stand, and what is refused."""

import mmrl_gui.episodes
import pytest
from mmrl_gui.planning import LONGEST, Planner, listed_goals, plan_of, told_goals
from mmrl_gui.subgoals import MOST, goals_of
from PIL import Image

from mmrl import Case, UserError
from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.api.simulators.gui import ScreenObservation

URL = {"model": "big", "base_url": "http://localhost:1/v1"}


class Endpoint:
    """Answers with these texts in turn, and keeps what it was asked."""

    model = "big"

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def ask(self, questions):
        self.asked += questions
        return [self.answers.pop(0) for _ in questions]


def planner(*answers):
    made = Planner(URL)
    made.endpoint = Endpoint(*(Answer(text=a, finished=True, num_tokens=1) if isinstance(a, str) else a for a in answers))
    return made


@pytest.mark.parametrize(
    ("text", "goals"),
    [
        ("1. Open the menu\n2. Press {Save}", ["Open the menu", "Press {Save}"]),
        ("Sure:\n 1) one\n\n 2) two \n3: three\nThat is all.", ["one", "two", "three"]),
        ("Open the menu, then press Save", []),
        ("1.\n2.   \n3.x", []),
        ("\n".join(f"{n}. g{n}" for n in range(1, 20)), [f"g{n}" for n in range(1, MOST + 1)]),
        ("1. " + "a" * 999, ["a" * LONGEST]),
    ],
)
def test_an_answer_is_a_numbered_list(text, goals):
    assert listed_goals(text) == goals


def test_a_model_is_asked_once_for_an_instruction_on_a_screen():
    red, blue = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    made = planner("1. a\n2. b", "1. c")
    assert made("Do {it}.", red) == made("Do {it}.", red.copy()) == ["a", "b"]
    assert made("Do {it}.", blue) == ["c"] and len(made.endpoint.asked) == 2
    assert all(len(screen) <= 32 for _, screen in made.known), "a run has more screens than fit into memory"
    asked = made.endpoint.asked[0]
    (message,) = asked.messages
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]
    assert "to do this: Do {it}.\n" in message["content"][1]["text"] and asked.temperature == 0.0
    assert planner("1. a")("Do it.", None) == ["a"], "a list of elements has no picture"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I can't.", r"subgoals: big gave no numbered list for 'Go\.': \"I can't\.\""),
        (NoAnswer("localhost: it is away"), r"subgoals: no answer for 'Go\.': localhost: it is away"),
    ],
)
def test_an_endpoint_without_an_answer_is_said_so(answer, why):
    with pytest.raises(UserError, match=why):
        planner(answer)("Go.", None)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("model", r"subgoals = 'model' must be \"words\", or a table such as"),
        (3, r"subgoals = 3 must be \"words\", or a table"),
        ({"modle": "x"}, r"subgoals: an endpoint has no option 'modle'. Did you mean 'model'"),
        ({}, r"subgoals: model is missing"),
        ({"model": "x", "base_url": "nowhere"}, r"base_url = 'nowhere' is no address"),
    ],
)
def test_options_that_can_not_work_are_refused(option, why):
    with pytest.raises(UserError, match=why):
        plan_of(option)


def test_the_policy_reads_its_sub_goals_and_what_pays_it_reads_the_same(monkeypatch):
    picture = Image.new("RGB", (100, 100))

    class Screen:
        def start(self, page, seed, picture=True):
            return ScreenObservation(screenshot=Image.new("RGB", (100, 100)), instruction="Click ONE, then click TWO.")

        def expert_action(self):
            return None

        def close(self):
            pass

    class Screens:
        size, pages, actions = (100, 100), ("one",), frozenset(("click",))

        def open(self, elements=False):
            return Screen()

    monkeypatch.setattr(mmrl_gui.episodes, "screens_of", lambda *args: Screens())
    plain, words, asked = (mmrl_gui.episodes.Episodes(subgoals=option) for option in ("", "words", URL))
    asked.plan = planner("1. First this\n2. Then that")
    for task, goals in ((plain, None), (words, ["Click ONE", "click TWO"]), (asked, ["First this", "Then that"])):
        prompt = task.prompts("train", 0)[0]
        assert prompt.meta.get("subgoals") == goals
        assert prompt.text.endswith(told_goals(goals)) if goals else "Sub-goals" not in prompt.text
        later = task.message(ScreenObservation(screenshot=picture, instruction="x"), first=False)
        assert "Sub-goals" not in str(later["content"])
        read = goals_of(Case(completion="", meta=prompt.meta))
        assert read == (goals or ["Click ONE", "click TWO"])
    assert told_goals(["a", "b"]) == "Sub-goals, one after the other:\n1. a\n2. b"
