"""Programs of actions: how they are read, against Python itself, how they are carried out on a page that changes, and examples
that a model finds by trying."""

import random

import mmrl_gui.episodes
import pytest
from mmrl_gui import examples
from mmrl_gui.coordinates import Numbers
from mmrl_gui.episodes import APART, Episodes
from mmrl_gui.names import NoAction
from mmrl_gui.programs import DEEPEST, MOST, Call, found_again, placed, read_program, write_program
from PIL import Image

from mmrl import CoordinateFormat, UserError
from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.api.simulators.gui import Action, Element, ScreenObservation

NUMBERS = Numbers(coordinate_format=CoordinateFormat.PIXELS, image=(100, 100))
URL = {"model": "big", "base_url": "http://localhost:1/v1"}


def element(row, text="", role="button", **more):
    return Element(box=(0, 10 * row, 50, 10 * row + 8), role=role, text=text, interactive=True, **more)


PAGE = [element(n, f"e{n}") for n in range(6)]


def acts(text, page=PAGE):
    return [call.action for call in read_program(text, NUMBERS, page)]


def click(number):
    return Action(kind="click", at=(25.0, 10.0 * (number - 1) + 4))


# -- reading ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "actions"),
    [
        ("click(3)", [click(3)]),
        ("# first this\nclick(1); click(2)", [click(1), click(2)]),
        ("Sure:\n```python\nclick(2)\n```\nThat is all.", [click(2)]),
        ('type(2, "a \\"b\\"")', [click(2), Action(kind="type", text='a "b"')]),
        ("enter_text('tea')\npress('ctrl+a')", [Action(kind="type", text="tea"), Action(kind="key", text="Control+a")]),
        ("type(42)", [Action(kind="type", text="42")]),
        ("click(40, 60)", [Action(kind="click", at=(40.0, 60.0))]),
        ("drag(1, 2)", [Action(kind="drag", at=(25.0, 4.0), to=(25.0, 14.0))]),
        ("drag(1, 2, 3, 4)", [Action(kind="drag", at=(1.0, 2.0), to=(3.0, 4.0))]),
        ('scroll("down")', [Action(kind="scroll", direction="down")]),
        ('scroll(2, "up")', [Action(kind="scroll", at=(25.0, 14.0), direction="up")]),
        ("double_click(1)\nwait()", [Action(kind="double-click", at=(25.0, 4.0)), Action(kind="wait")]),
        ("for t in ['a', 'b']:\n  type(t)", [Action(kind="type", text="a"), Action(kind="type", text="b")]),
        ("for n in range(6, 0, -2):\n  click(n)", [click(6), click(4), click(2)]),
        ("<think>two of them</think><answer>click(1)\nclick(5)</answer>", [click(1), click(5)]),
    ],
)  # fmt: skip
def test_what_a_program_does(program, actions):
    assert acts(program) == actions


@pytest.mark.parametrize("seed", range(40))
def test_a_program_does_what_python_does_with_it(seed):
    """Random programs, carried out by Python with functions that write down their calls."""
    draw = random.Random(seed)

    def statements(depth, names):
        lines = []
        for _ in range(draw.randint(1, 2)):
            if depth < DEEPEST and draw.random() < 0.5:
                name = draw.choice("ijk")
                over = draw.choice((f"range({draw.randint(1, 2)}, {draw.randint(2, 4)})", "[1, 3]", "(2,)", "range(5, 1, -3)"))
                inner = statements(depth + 1, [*names, name])
                lines += [f"for {name} in {over}:", *(f"    {line}" for line in inner)]
            else:
                number = draw.choice([*names, "1", "6"])
                lines.append(draw.choice((f"click({number})", f"type({number}, 'x')", f"click({number}, -0.5)", "wait()")))
        return lines

    program = "\n".join(statements(0, []))
    done = []

    def clicked(*place):
        done.append(click(*place) if len(place) == 1 else Action(kind="click", at=(float(place[0]), place[1])))

    def typed(number, text):
        done.extend([click(number), Action(kind="type", text=text)])

    exec(program, {"click": clicked, "type": typed, "wait": lambda: done.append(Action(kind="wait")), "range": range})
    if not done:
        with pytest.raises(NoAction, match="the program calls nothing"):
            acts(program)
    elif len(done) > MOST:
        with pytest.raises(NoAction, match=f"has more than {MOST} actions"):
            acts(program)
    else:
        assert acts(program) == done, program


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("", "the program calls nothing"),
        ("I click on it", "line 1: this is no program: invalid syntax"),
        ("click(1)\nimport os", "line 2: only calls and loops `for name in ...:` are allowed"),
        ("x = click(1)", "line 1: only calls and loops"),
        ("while 1:\n  click(1)", "line 1: only calls and loops"),
        ("for n in [1]:\n  click(n)\nelse:\n  click(2)", "line 1: only calls and loops"),
        ("for n.x in [1]:\n  click(1)", "line 1: only calls and loops"),
        ("__import__('os')", "line 1: there is no action called '__import__'"),
        ("page.click(1)", "line 1: functions are called by name"),
        ("(lambda: 1)()", "line 1: functions are called by name"),
        ("click(element=1)", "line 1: click takes arguments by position"),
        ("click(*[1, 2])", "line 1: click takes arguments by position"),
        ("click(1 + 1)", "line 1: only numbers, texts and variables of loops are allowed here"),
        ("click(f'{1}')", "line 1: only numbers, texts"),
        ("click(True)", "line 1: only numbers, texts"),
        ("click(1e999)", "line 1: only numbers, texts"),
        ("type(-'a')", "line 1: only numbers, texts"),
        ("click(n)", "line 1: n has no value: only variables of loops have one"),
        ("for n in [1]:\n  click(n)\nclick(n)", "line 3: n has no value"),
        ("click(7)", "line 1: there is no element 7: there are 6"),
        ("click(0)", "line 1: there is no element 0: there are 6"),
        ("click('e1')", "line 1: there is no element 'e1': there are 6"),
        ("click(1, 2, 3)", r"line 1: click\(1, 2, 3\) is no call of it"),
        ("click('a', 'b')", r"line 1: click\('a', 'b'\) is no call of it"),
        ("click()", "line 1: click says no place"),
        ("type()", "line 1: type says no text"),
        ("scroll('under')", "line 1: scroll says no direction"),
        ("for n in range(10**9):\n  click(1)", "line 1: only numbers, texts"),
        ("for n in range(999999):\n  click(1)", f"line 1: a loop has more than {MOST} passes"),
        ("for n in range(1, 5, 0):\n  click(1)", "line 1: range needs one to three whole numbers"),
        ("for n in 'ab':\n  click(1)", r"line 1: a loop goes over range\(...\) or a list"),
        ("for i in [1]:\n for j in [1]:\n  for k in [1]:\n   click(1)", "line 3: there are more than 2 loops"),
        ("\n".join(["click(1)"] * (MOST + 1)), f"line {MOST + 1}: the program has more than {MOST} actions"),
        ("```\nclick(1)\n```\n```\nclick(2)\n```", "there are 2 programs, and one is wanted"),
        ("#" * 4001, "the program is longer than 4,000 characters"),
        ("type('\\d')", r"\\d is no escape: write a backslash as \\\\"),
        ("click(1)\0", "(line 1: )?this is no program"),
        ("click(" * 600, "(line 1: )?this is no program"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_said_in_one_line(program, why):
    with pytest.raises(NoAction, match=f"^{why}") as error:
        acts(program)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.filterwarnings("ignore:invalid decimal literal")
def test_hostile_texts_raise_nothing_else():
    draw = random.Random(0)
    pieces = [
        "click(",
        "for n in ",
        "range(",
        ")",
        ":",
        "\n",
        "  ",
        "[",
        "1",
        "'",
        '"',
        "\\",
        "n",
        "9" * 400,
        "lambda",
        "=",
        "é",
        "*",
    ]
    for _ in range(3000):
        text = "".join(draw.choice(pieces) for _ in range(draw.randrange(12)))
        try:
            found = read_program(text, NUMBERS, PAGE)
        except NoAction as why:
            assert "\n" not in str(why)
        else:
            assert 1 <= len(found) <= MOST


def test_an_action_is_written_and_read_back():
    written = [
        (click(3), "click(3)"),
        (Action(kind="click", at=(80.0, 90.0)), "click(80, 90)"),
        (Action(kind="drag", at=(1.0, 2.0), to=(30.0, 40.0)), "drag(1, 2, 30, 40)"),
        (Action(kind="long-press", at=(25.0, 4.0)), "long_press(1)"),
        (Action(kind="type", text='say "hé"\n\\'), "type('say \"hé\"\\n\\\\')"),
        (Action(kind="type", text='a"b'), 'type("a\\"b")'),
        (Action(kind="scroll", direction="left"), 'scroll("left")'),
        (Action(kind="key", text="Control+a"), 'key("Control+a")'),
        (Action(kind="answer"), 'answer("")'),
        (Action(kind="back"), "back()"),
    ]
    for action, text in written:
        assert write_program(action, NUMBERS, PAGE) == text and acts(text) == [action]
    thousandths = Numbers(coordinate_format=CoordinateFormat.THOUSANDTHS_YX, image=(100, 200))
    text = write_program(Action(kind="click", at=(50.0, 20.0)), thousandths)
    assert text == "click(100, 500)" and read_program(text, thousandths)[0].action.at == (50.0, 20.0)


# -- on a page --------------------------------------------------------------------------------------------------------------


def test_an_element_is_found_again_where_it_is_now():
    draw = random.Random(0)
    for _ in range(300):
        before = [element(n, draw.choice("ab"), draw.choice(("button", "link"))) for n in range(draw.randrange(1, 7))]
        now = [element(n + 3, one.text, one.role, value="x") for n, one in enumerate(before) if draw.random() < 0.8]
        one = draw.choice(before)
        key = (one.role, one.text)
        rank = [n for n, other in enumerate(before) if (other.role, other.text) == key].index(before.index(one))
        there = [n for n, other in enumerate(now) if (other.role, other.text) == key]
        whole = sum((other.role, other.text) == key for other in before) == len(there)
        assert found_again(one, before, now) == (now[there[rank]] if whole else None)
    twins = [element(1, "ok"), element(1, "ok")]
    assert found_again(twins[1], twins, [element(5, "ok"), element(7, "ok")]) == element(7, "ok"), "equal ones, too"


def test_a_call_takes_the_places_of_now():
    before = [element(0, "a"), element(1, "b")]
    call = Call(action=Action(kind="drag", at=(0, 0), to=(0, 0)), line=1, at=before[0], to=before[1])
    now = [element(4, "b", click_point=(9, 9)), element(5, "a")]
    assert placed(call, before, now) == Action(kind="drag", at=(25, 54), to=(9, 9))
    assert placed(call, before, now[1:]) is None
    still = Call(action=Action(kind="click", at=(7, 7)))
    assert placed(still, before, []) == still.action


class Lines:
    """A page of lines in order, which are removed by a click and move up; `more` adds another line of that name, `note` leaves a
    note. It succeeds when the line of the instruction is clicked while it is the first."""

    size, pages, actions = (100, 100), ("lines",), frozenset(("click", "type", "wait"))

    def __init__(self, *names):
        self.names, self.acted, self.given_back = names, [], 0

    def open(self, elements=False):
        screen = Lines(*self.names)
        screen.pool = self
        return screen

    def start(self, page, seed, picture=True):
        self.left, self.seed = list(self.names), seed
        return self._shown()

    def _shown(self, **more):
        lines = () if more.get("terminated") else tuple(element(n, name) for n, name in enumerate(self.left))
        return ScreenObservation(
            screenshot=Image.new("RGB", (100, 100)), instruction=f"Clear goal, {self.seed}.", elements=lines, **more
        )

    def act(self, action):
        self.pool.acted.append(action)
        if action.kind != "click" or action.at[1] >= 10 * len(self.left):
            return self._shown()
        name = self.left[int(action.at[1] // 10)]
        if name == "goal":
            first = self.left[0] == "goal"
            return self._shown(terminated=True, success=first, raw_reward=1.0 if first else -1.0)
        if name == "more":
            self.left.append("goal")
        else:
            self.left.remove(name)
        return self._shown(notes=("a dialog",) if name == "note" else ())

    def expert_action(self):
        return Action(kind="click", at=(25.0, 4.0))

    def close(self):
        self.pool.given_back += 1


def played(monkeypatch, names, *programs, **options):
    screens = Lines(*names)
    monkeypatch.setattr(mmrl_gui.episodes, "screens_of", lambda *args: screens)
    task = Episodes(observe="elements", style="program", **options)
    prompt = task.prompts("train", 0)[0]
    environment = task.environment(prompt)
    replies = [environment.step(program) for program in programs]
    environment.close()
    return replies, screens, (task, prompt)


def said_in(reply):
    return (
        reply.messages[0]["content"]
        if isinstance(reply.messages[0]["content"], str)
        else reply.messages[0]["content"][-1]["text"]
    )


def test_a_program_follows_the_elements_that_move(monkeypatch):
    (reply,), screens, (task, prompt) = played(monkeypatch, ["a", "b", "goal"], "click(1)\nclick(2)\nclick(3)\nclick(1)")
    assert reply.terminated and reply.outcome["success"] == 1.0, "each moved up to the first line"
    assert (reply.outcome["steps"], reply.outcome["actions"], reply.outcome["refused"]) == (1.0, 3.0, 0.0), "the page ended it"
    assert [a.at for a in screens.acted] == [(25, 4)] * 3
    assert task.gold(prompt) == "click(1)"
    assert prompt.text == (
        f"Clear goal, {APART}.\nAnswer with a short program, one call a line and at most 20, of\n"
        'click(n)\ntype(n, "text")\nwait()\n'
        "Loops may be written as `for n in [2, 5]:` or `for n in range(2, 6):`. "
        'An element is named by its number, such as click(3).\n[1] button "a"\n[2] button "b"\n[3] button "goal"'
    )


def test_elements_outside_of_the_list_count_when_one_is_looked_for(monkeypatch):
    """`most` lists the one line of the instruction; the others move it all the same."""
    replies, _, _ = played(monkeypatch, ["a", "goal"], "click(1)", most=1)
    assert replies[0].terminated and replies[0].outcome["success"] == 0.0, "its number counts what is listed"


def test_where_a_program_ends_is_told(monkeypatch):
    (gone, noted, bad, last), screens, _ = played(
        monkeypatch,
        ["a", "more", "note", "goal"],
        "click(1)\nclick(2)\nclick(4)",
        "click(2)\nclick(1)",
        "click(1)\nclick(9)",
        "for n in [2, 1]:\n    click(n)",
    )
    assert (
        said_in(gone).splitlines()[0] == "line 3: its element is gone, or there are others like it now; the program ended there"
    )
    assert said_in(noted).splitlines()[0] == "line 1: a dialog; the program ended there"
    assert said_in(bad).splitlines()[0] == "line 2: there is no element 9: there are 3"
    assert [a.kind for a in screens.acted] == ["click"] * 3 + ["wait", "click"], "a bad program does nothing of it"
    assert last.terminated and last.outcome["refused"] == 3.0 and last.outcome["steps"] == 4.0
    assert last.outcome["actions"] == 5.0 and screens.given_back == 2


# -- examples that a model finds ----------------------------------------------------------------------------------------------


class Endpoint:
    """Answers by what it is shown, and keeps what it was asked."""

    model = "big"

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def ask(self, questions):
        self.asked += questions
        answer = self.answers(questions[0].messages)
        return [Answer(text=answer, finished=True, num_tokens=1) if isinstance(answer, str) else answer]


def trying(monkeypatch, answers, **options):
    screens = Lines("a", "goal")
    monkeypatch.setattr(mmrl_gui.episodes, "screens_of", lambda *args: screens)
    task = Episodes(observe="elements", style="program", explorer=URL, demos=50, **{"examples": 1, **options})
    task._examples.plays.endpoint = Endpoint(answers)
    return task, task._examples.plays.endpoint, screens


def test_a_model_finds_the_example_that_later_prompts_show(monkeypatch):
    """It fails at seed 50, is refused something at 51, and succeeds in two turns at 52."""

    def answers(messages):
        text, turns = messages[0]["content"], len(messages) // 2
        if "goal, 50." in text:
            return "click(2)"
        if "goal, 51." in text:
            return ("click(5)", "click(1)\nclick(2)")[turns]
        return ("```\nclick(1)\n```", " click(1) ")[turns]

    task, endpoint, screens = trying(monkeypatch, answers)
    prompts = task.prompts("train", 0)
    one = 'An example:\nClear goal, 52.\n[1] button "a"\n[2] button "goal"\n```\nclick(1)\n```\n[1] button "goal"\nclick(1)'
    assert prompts[0].text.startswith(f"{one}\n\nClear goal, {APART}.\nAnswer with a short program")
    assert prompts[7].text.startswith(one) and len(endpoint.asked) == 4, "asked once for a page"
    assert not any("An example:" in str(question.messages) for question in endpoint.asked), "without an example"
    last = endpoint.asked[-1].messages
    assert [m["role"] for m in last] == ["user", "assistant", "user"] and last[1]["content"] == "```\nclick(1)\n```"
    assert last[2]["content"] == '[1] button "goal"' and endpoint.asked[0].temperature == 0.0
    again, _, _ = trying(monkeypatch, answers)
    assert again.prompts("train", 0)[3].text == prompts[3].text, "the same answers, the same example"
    assert screens.given_back == 9, "three trials of two screens each, and three prompts"


def test_a_model_that_never_succeeds_is_said_so(monkeypatch):
    monkeypatch.setattr(examples, "TRIES", 3)
    task, endpoint, _ = trying(monkeypatch, lambda messages: "wait()", examples=2)
    with pytest.raises(UserError, match="page 'lines': 0 of 6 episodes succeeded, and examples = 2: take fewer"):
        task.prompts("train", 0)[0]
    assert len(endpoint.asked) == 6 * examples.STEPS
    away, _, screens = trying(monkeypatch, lambda messages: NoAnswer("localhost: it is away"))
    with pytest.raises(UserError, match=r"explorer: no answer for 'Clear goal, 50\.': localhost: it is away"):
        away.prompts("train", 0)[0]
    assert screens.given_back == 3, "the prompt's, and both of the trial"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"explorer": URL}, "explorer finds examples, and there are none: set examples = 1"),
        ({"explorer": "big", "examples": 1, "observe": "elements"}, "explorer = 'big' must be a table such as"),
        ({"explorer": {}, "examples": 1, "observe": "elements"}, "explorer: model is missing"),
        (
            {"explorer": {"modle": "x"}, "examples": 1, "observe": "both"},
            "explorer: an endpoint has no option 'modle'. Did you mean 'model'",
        ),
        ({"style": "programme"}, "style = 'programme'"),
    ],
)
def test_options_that_can_not_work_are_refused(options, why):
    with pytest.raises(UserError, match=why):
        Episodes(**options)
