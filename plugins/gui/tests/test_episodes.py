"""Episodes on screens, without a browser: a fake page whose right place is drawn from the seed."""

import json

import pytest
from mmrl_gui import verifiers
from mmrl_gui.episodes import APART, Episodes
from PIL import Image

from mmrl import Case, CoordinateFormat, EnvironmentFailed, ImageProcessing, NoGold, Reply, UserError
from mmrl.api.episodes import Conversation
from mmrl.api.simulators.gui import Action, Element, ScreenObservation


class FakeScreen:
    """A field of 100 x 100; one of its four quarters is right, first, and then another."""

    def __init__(self, screens, elements):
        self.screens, self.elements, self.closed = screens, elements, False

    def start(self, page, seed, picture=True):
        if self.screens.lost:
            self.screens.lost -= 1
            raise EnvironmentFailed("it hangs")
        self.page, self.left, self.quarter, self.actions = page, 2 if page == "two" else 1, seed % 4, []
        return self._shown()

    def _shown(self, **more):
        boxes = [(50.0 * (q % 2), 50.0 * (q // 2), 50.0 * (q % 2) + 50, 50.0 * (q // 2) + 50) for q in range(4)]
        elements = tuple(Element(box=b, role="button", text=f"q{n}", interactive=True) for n, b in enumerate(boxes))
        over = more.get("terminated")
        picture = None if over else Image.new("RGB", (100, 100), (60 * self.quarter, 0, 0))
        return ScreenObservation(
            screenshot=picture,
            instruction=f"Click {self.quarter}.",
            elements=elements if self.elements and not over else (),
            **more,
        )

    def act(self, action):
        self.actions.append(action)
        self.screens.acted.append(action)
        if action.kind != "click":
            return self._shown(notes=("nothing happened",) if action.kind == "drag" else ())
        right = int(action.at[0] >= 50) + 2 * int(action.at[1] >= 50) == self.quarter
        self.left -= right
        if not right or not self.left:
            return self._shown(terminated=True, success=right, raw_reward=1.0 if right else -1.0, reward=0.9 if right else -1.0)
        self.quarter = (self.quarter + 1) % 4
        return self._shown()

    def expert_action(self):
        x, y = 25 + 50 * (self.quarter % 2), 25 + 50 * (self.quarter // 2)
        return None if self.page == "unknown" else Action(kind="click", at=(x, y))

    def close(self):
        assert not self.closed
        self.closed = True
        self.screens.given_back += 1


class FakeScreens:
    size, pages, actions = (100, 100), ("one", "two", "unknown"), frozenset(("click", "type", "wait", "scroll"))

    def __init__(self):
        self.opened = self.given_back = self.lost = 0
        self.acted = []

    def open(self, elements=False):
        self.opened += 1
        return FakeScreen(self, elements)


@pytest.fixture
def screens(monkeypatch):
    found = FakeScreens()
    monkeypatch.setattr("mmrl_gui.episodes.screens_of", lambda id, options: found)
    return found


def play(task, prompt, *completions):
    environment = task.environment(prompt)
    replies = []
    for text in completions:
        replies.append(environment.step(text))
        assert isinstance(replies[-1], Reply)
        if replies[-1].terminated:
            break
    environment.close()
    return replies


def test_an_episode_of_one_click(screens):
    task = Episodes(simulator="fake/x", pages=["one"])
    prompt = task.prompts("train", 0)[2]
    assert prompt.meta["page"] == "one" and prompt.seed == APART + 2 and prompt.images[0].size == (100, 100)
    assert prompt.text.startswith("Click 2.\nAnswer with one action as JSON")
    gold = task.gold(prompt)
    assert json.loads(gold) == {"action": "click", "x": 25, "y": 75}
    (reply,) = play(task, prompt, gold)
    assert reply.terminated and not reply.messages
    assert reply.outcome == {"success": 1.0, "raw_reward": 1.0, "reward": 0.9, "steps": 1.0, "refused": 0.0}
    (wrong,) = play(task, prompt, '{"action": "click", "x": 75, "y": 75}')
    assert wrong.outcome["success"] == 0.0 and wrong.outcome["raw_reward"] == -1.0


def test_an_episode_that_is_cut_off_is_no_better_than_a_failed_one(screens):
    """MiniWoB++ pays -1 for running out of time; with 0, a policy that never ends would have been the better one."""
    task = Episodes(simulator="fake/x", pages=["two"])
    (reply,) = play(task, task.prompts("train", 0)[0], '{"action": "wait"}')
    assert not reply.terminated and reply.outcome == {"success": 0.0, "steps": 1.0, "refused": 0.0}
    cut = Case(completion="", outcome=reply.outcome)
    assert (verifiers.raw_reward(cut), verifiers.decayed_reward(cut), verifiers.success(cut).value) == (-1.0, -1.0, 0.0)


def test_every_turn_shows_the_next_screen(screens):
    task = Episodes(simulator="fake/x", pages="two", style="brief", again="And now?")
    prompt = task.prompts("train", 0)[1]
    first, last = play(task, prompt, "click 75 25", "click 25 75")
    (message,) = first.messages
    assert message["content"][1]["text"] == "And now?" and message["content"][0]["image"].getpixel((0, 0)) == (120, 0, 0)
    assert last.terminated and last.outcome["success"] == 1.0 and last.outcome["steps"] == 2.0


def test_what_is_no_action_is_told_and_takes_a_turn(screens):
    task = Episodes(simulator="fake/x", pages=["one"], style="brief")
    prompt = task.prompts("train", 0)[0]
    replies = play(task, prompt, "hello", "drag 1 1 2 2", "click 25 25")
    assert "there is no action in 'hello'" in replies[0].messages[0]["content"][-1]["text"]
    assert "nothing happened" in replies[1].messages[0]["content"][-1]["text"]
    assert [a.kind for a in screens.acted] == ["wait", "drag", "click"]
    assert replies[-1].outcome["refused"] == 2.0 and replies[-1].outcome["success"] == 1.0


def test_the_splits_share_no_seed_and_prompts_repeat(screens):
    task = Episodes(simulator="fake/x", pages=["one", "two"], demos=5, starts=6, held_out=7)
    found = {split: task.prompts(split, 0) for split in task.splits}
    assert [len(p) for p in found.values()] == [5, 6, 7]
    ids = [{p.id for p in prompts} for prompts in found.values()]
    assert sum(map(len, ids)) == len(set().union(*ids)) == 18
    assert [p.meta["page"] for p in found["train"][:4]] == ["one", "two", "one", "two"]
    again = Episodes(simulator="fake/x", pages=["one", "two"]).prompts("train", 9)[3]
    assert (again.id, again.text) == (found["train"][3].id, found["train"][3].text)


def test_elements_may_be_named_by_number(screens):
    task = Episodes(simulator="fake/x", pages=["one"], observe="elements", style="brief")
    prompt = task.prompts("train", 0)[3]
    assert not prompt.images and '[4] button "q3"' in prompt.text and "by its number" in prompt.text
    (reply,) = play(task, prompt, "click [4]")
    assert reply.outcome["success"] == 1.0
    both = Episodes(simulator="fake/x", pages=["one"], observe="both").prompts("train", 0)[3]
    assert both.images and '[4] button "q3"' in both.text


def test_a_grid_for_small_models(screens):
    task = Episodes(simulator="fake/x", pages=["one"], style="brief", grid=[4, 4], prompt="{instruction}")
    prompt = task.prompts("train", 0)[3]
    assert prompt.text == "Click 3." and task.gold(prompt) == "click 3 3" and prompt.meta["grid"] == [4, 4]
    (reply,) = play(task, prompt, "click 2 3")
    assert screens.acted[-1].at == (62.5, 87.5) and reply.outcome["success"] == 1.0


def test_the_prompt_asks_in_one_language(screens):
    """For what the screens can do, in the style's own form, and for nothing that can't be seen."""

    def text(**options):
        return Episodes(simulator="fake/x", pages=["one"], **options).prompts("train", 0)[0].text

    brief = text(style="brief", grid=[4, 3])
    assert brief == (
        "Click 0.\nAnswer with one line, one of:\nclick x y\nscroll up, down, left or right\ntype TEXT\nwait\n"
        "Places are in cells of a grid of 4 x 3, counted from 0."
    )
    assert '"text": text' in text() and text().endswith("Places are in pixels of the 100 x 100 screen.")
    for style, said in (("brief", "click [3]"), ("json", '{"action": "click", "element": 3}'), ("tags", '"element": 3}')):
        alone, both = (text(style=style, observe=observe).partition("\n[1]")[0] for observe in ("elements", "both"))
        assert "An element is named by its number, such as" in alone and said in alone
        assert "pixels" not in alone and '"x"' not in alone and "x y" not in alone and ("[3]" in alone) == (style == "brief")
        assert "An element may be named by its number, such as" in both and said in both and "pixels of the 100 x 100" in both


@pytest.mark.parametrize("grid", [None, [4, 4]])
def test_a_place_off_the_screen_is_told_in_the_numbers_of_the_model(screens, grid):
    task = Episodes(simulator="fake/x", pages=["one"], style="brief", grid=grid)
    task.image_processing = ImageProcessing(coordinate_format=CoordinateFormat.THOUSANDTHS)
    prompt = task.prompts("train", 0)[0]
    far, on = ("click 4 1", "click 3 3") if grid else ("click 1200 90", "click 1000 1000")
    said = play(task, prompt, far)[0].messages[0]["content"][-1]["text"]
    numbers = "cells of a grid of 4 x 4, counted from 0" if grid else "thousandths of the screen's width and height"
    assert said == f"the click is off the screen: places are in {numbers}" and screens.acted[-1].kind == "wait"
    assert play(task, prompt, on)[0].terminated and screens.acted[-1].kind == "click", "the edge belongs to it"
    listed = Episodes(simulator="fake/x", pages=["one"], observe="elements")
    prompt = listed.prompts("train", 0)[0]
    said = play(listed, prompt, '{"action": "click", "x": 900, "y": 5}')[0].messages[0]["content"][-1]["text"]
    assert said.splitlines()[0] == "the click is off the screen"


def test_every_option_has_its_own_text():
    from mmrl.registry import plugins
    from mmrl.ui.cli.options import options_of

    options = options_of("tasks", plugins.registry().get("tasks", "gui/episodes"), Episodes)
    found = {option.name: option.meaning for option in options}
    assert len(found) == 18
    assert min(map(len, found.values())) > 5, found
    assert not [name for name, meaning in found.items() if any(f"{other}: " in meaning for other in found)], found


def test_tags_want_an_answer_tag(screens):
    task = Episodes(simulator="fake/x", pages=["one"], style="tags")
    prompt = task.prompts("train", 0)[0]
    replies = play(task, prompt, '{"action": "click", "x": 25, "y": 25}', task.gold(prompt))
    assert len(replies) == 2 and replies[-1].outcome["success"] == 1.0


def test_demonstrations_are_what_an_expert_says(screens):
    task = Episodes(simulator="fake/x", pages=["two"], style="brief")
    prompt = task.prompts("demo", 0)[0]
    environment = task.environment(prompt)
    assert not environment.step(task.gold(prompt)).terminated
    assert environment.step(environment.gold_turn()).outcome["success"] == 1.0
    environment.close()
    stranger = Episodes(simulator="fake/x", pages=["unknown"]).prompts("demo", 0)[0]
    with pytest.raises(NoGold, match="nobody knows what to do on page 'unknown'"):
        task.gold(stranger)


def recorded(folder, *successes):
    """A recording of episodes of two clicks, as the guide describes it."""
    rows = []
    for number, success in enumerate(successes):
        steps = []
        for step in range(2):
            name = f"{number}-{step}.png"
            Image.new("RGB", (100, 100), (number * 50, step * 50, 0)).save(folder / name)
            steps.append({"picture": name, "action": {"kind": "click", "at": [25 + 50 * step, 25]}, "box": None})
        rows.append({"page": "two", "seed": number, "instruction": f"Do {number}.", "success": success, "steps": steps})
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_recorded_episodes_are_shown_again(screens, tmp_path):
    recorded(tmp_path, True, False, True)
    task = Episodes(simulator="fake/x", pages=["two"], style="brief", recording=str(tmp_path), prompt="{instruction}", demos=4)
    prompts = task.prompts("demo", 0)
    assert [p.text for p in prompts] == ["Do 0.", "Do 2.", "Do 0.", "Do 2."], "failures are not imitated"
    environment = task.environment(prompts[1])
    reply = environment.step("whatever")
    assert task.gold(prompts[1]) == "click 25 25" and environment.gold_turn() == "click 75 25"
    from mmrl.api.media.images import load_image

    assert load_image(reply.messages[0]["content"][0]["image"]).getpixel((0, 0)) == (100, 50, 0)
    assert environment.step(environment.gold_turn()).terminated
    assert screens.opened == 0, "no screen is needed"
    assert task.prompts("train", 0)[0].text == "Click 0.", "the other splits are live"
    with pytest.raises(UserError, match='observe = "picture"'):
        Episodes(simulator="fake/x", recording=str(tmp_path), observe="both")


def test_all_recorded_episodes_may_be_imitated_failures_too(screens, tmp_path):
    recorded(tmp_path, True, False, True)
    task = Episodes(simulator="fake/x", style="brief", recording=str(tmp_path), prompt="{instruction}", only="all", demos=4)
    prompts = task.prompts("demo", 0)
    assert [p.text for p in prompts] == ["Do 0.", "Do 1.", "Do 2.", "Do 0."]
    for prompt, success in zip(prompts, (1.0, 0.0, 1.0, 1.0), strict=True):
        environment = task.environment(prompt)
        assert not environment.step(task.gold(prompt)).terminated
        assert environment.step(environment.gold_turn()).outcome == {"success": success, "steps": 2.0}, "as it was"
    recorded(tmp_path, False, False)
    assert len(Episodes(simulator="fake/x", recording=str(tmp_path), only="all").recording) == 2
    with pytest.raises(UserError, match='no episode that succeeded: take only = "all", or record others'):
        Episodes(simulator="fake/x", recording=str(tmp_path))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"action": {"kind": "clack"}}, "there is no action called 'clack'"),
        ({"action": {"kind": "click"}}, "click says no place"),
        ({"action": {"kind": "click", "at": [25, 500]}}, "is outside its picture of 100 x 100"),
        ({"action": {"kind": "drag", "at": [25, 25], "to": [-9, 5]}}, "is outside its picture of 100 x 100"),
        ({"action": None}, "it has no action"),
        ({"box": [50, 50, 10, 10]}, "the box, .*, is reversed"),
        ({"picture": "none.png"}, "none.png does not exist"),
        ({"picture": "cut.png"}, "cut.png is broken or cut off"),
        ({"picture": "text.png"}, "text.png is broken or of an unknown kind"),
        ({"picture": None}, "it has no picture"),
        ("nothing", "step 1 is 'nothing' and not an object"),
    ],
)
def test_a_recording_is_read_as_a_whole_before_anything_is_imitated(screens, tmp_path, change, why):
    """The second step of an episode in the middle: it would only be met once others were imitated."""
    recorded(tmp_path, True, False, True)
    whole = (tmp_path / "2-1.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no picture")
    rows = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    Episodes(simulator="fake/x", recording=str(tmp_path))
    for number in (1, 2):
        other = json.loads(json.dumps(rows))
        step = other[number]["steps"][1]
        other[number]["steps"][1] = change if isinstance(change, str) else step | change
        (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
        only = "all" if number == 1 else "success"
        with pytest.raises(UserError, match=rf"episodes.jsonl line {number + 1} step 1\b.*{why}") as found:
            Episodes(simulator="fake/x", recording=str(tmp_path), only=only)
        assert "\n" not in str(found.value)
        if number == 1:
            assert len(Episodes(simulator="fake/x", recording=str(tmp_path)).recording) == 2, "failures aren't looked at"


def test_a_recording_of_other_screens_is_refused(screens, tmp_path):
    recorded(tmp_path, True, True)
    Image.new("RGB", (320, 200)).save(tmp_path / "1-1.png")
    task = Episodes(simulator="fake/x", recording=str(tmp_path))
    with pytest.raises(UserError, match="has a picture of 320 x 200, and the screens are 100 x 100: record on these screens"):
        task.prompts("demo", 0)
    assert task.prompts("train", 0)
    Image.new("RGB", (100, 100)).save(tmp_path / "1-1.jpg")
    (tmp_path / "1-1.jpg").rename(tmp_path / "1-1.png")
    assert Episodes(simulator="fake/x", recording=str(tmp_path)).prompts("demo", 0), "a picture of another format"


def test_a_recording_without_an_instruction_is_refused(screens, tmp_path):
    recorded(tmp_path, True, True)
    text = (tmp_path / "episodes.jsonl").read_text()
    (tmp_path / "episodes.jsonl").write_text(text.replace("Do 1.", ""))
    with pytest.raises(UserError, match=r"episodes.jsonl line 2 step 0: it has no instruction"):
        Episodes(simulator="fake/x", recording=str(tmp_path))
    (tmp_path / "episodes.jsonl").write_text(text + "{broken\n")
    with pytest.raises(UserError, match=r"episodes.jsonl line 3 is no JSON"):
        Episodes(simulator="fake/x", recording=str(tmp_path))


def test_screens_are_given_back_whatever_happens(screens):
    task = Episodes(simulator="fake/x", pages=["one"])
    prompts = [task.prompts("train", 0)[n] for n in range(20)]
    environments = [task.environment(p) for p in prompts]
    for environment in environments[::2]:
        environment.step("click 1 1")
    for environment in environments:
        environment.close()
    assert screens.given_back == screens.opened


def test_a_first_screen_that_is_lost_is_tried_again(screens):
    screens.lost = 2
    assert Episodes(simulator="fake/x", pages=["one"]).prompts("train", 0)[0].images
    screens.lost = 3
    with pytest.raises(UserError, match="page 'one' can't be shown, tried 3 times: it hangs"):
        Episodes(simulator="fake/x", pages=["one"]).prompts("train", 0)[0]
    assert screens.given_back == screens.opened


def test_a_screen_that_is_lost_in_an_episode_costs_it(screens):
    task = Episodes(simulator="fake/x", pages=["one"])
    prompt = task.prompts("train", 0)[0]
    screens.lost = 1
    environment = task.environment(prompt)
    with pytest.raises(EnvironmentFailed, match="it hangs"):
        environment.step("click 1 1")
    environment.close()
    assert screens.given_back == screens.opened


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"pages": ["oen"]}, "has no page 'oen'.*one"),
        ({"observe": "text"}, "observe = 'text'"),
        ({"style": "xml"}, "style = 'xml'"),
        ({"grid": [8]}, r"grid = \[8\] must be"),
        ({"grid": "8x8"}, "grid = '8x8' must be"),
        ({"grid": [0, 8]}, "grid = 0"),
        ({"prompt": "Do it."}, "must contain {instruction}"),
        ({"demos": 0}, "demos = 0"),
        ({"recording": "/nowhere/at/all"}, "'/nowhere/at/all' doesn't exist"),
        ({"recording": "someone/recorded"}, "'someone/recorded' doesn't exist"),
        ({"recording": "x" * 10_000}, "doesn't exist"),
        ({"again": 3}, "again = 3"),
        ({"only": "won", "recording": "."}, "only = 'won' is unknown: choose one of success, all"),
        ({"only": "all"}, "only = 'all' needs recorded episodes: set recording"),
    ],
)
def test_options_that_cant_be(screens, options, why):
    with pytest.raises(UserError, match=why):
        Episodes(**{"simulator": "fake/x", **options}).prompts("train", 0)


@pytest.mark.parametrize(
    ("id", "options", "why"),
    [
        ("gui/episodes", {"pages": [5]}, r"pages = \[5\] must be a list of texts or a text"),
        ("gui/episodes", {"pages": 5}, "pages = 5 must be a list of texts or a text"),
        ("gui/episodes", {"options": "x"}, "options = 'x' must be a table"),
        ("gui/episodes", {"only": True}, "only = True is unknown"),
        ("gui/grounding", {"screens": 5}, "screens = 5 must be a text"),
        ("gui/grounding", {"kinds": 5}, "kinds = 5 must be a list"),
        ("gui/transitions", {"kinds_of_action": [[1]]}, r"kinds_of_action = \[1\] is unknown"),
    ],
)
def test_an_option_of_another_kind_is_refused_in_one_line(id, options, why):
    from mmrl.api.errors import PluginError
    from mmrl.registry import plugins

    with pytest.raises(UserError, match=rf"^task '{id}': {why}") as found:
        plugins.registry().make_task(id, options)
    assert not isinstance(found.value, PluginError), "which would be told with a traceback"


def drawn(task, prompt, *completions):
    """The strip of an episode."""
    from mmrl.api.types import Status, Turn

    messages = [(), *(tuple(reply.messages) for reply in play(task, prompt, *completions)[:-1])]
    turns = tuple(
        Turn(observed_ids=(1,), token_ids=(2,), logprobs=(0.0,), text=text, messages=shown)
        for text, shown in zip(completions, messages, strict=True)
    )
    outcome = {"success": 1.0, "steps": 2.0, "reward": 0.9}
    return task.draw_episode(Conversation(prompt=prompt, group=0, turns=turns, status=Status.FINISHED, outcome=outcome))


def crosses(shown):
    """The middles of what is orange on each of two screens."""
    orange = [(x, y) for x in range(shown.width) for y in range(32, shown.height - 30) if shown.getpixel((x, y)) == (230, 120, 0)]
    halves = [[p for p in orange if (p[0] > shown.width / 2) == right] for right in (False, True)]
    return [tuple(sum(axis) / len(half) for axis in zip(*half, strict=True)) for half in halves]


def test_an_episode_as_a_strip(screens):
    task = Episodes(simulator="fake/x", pages=["two"], style="brief")
    prompt = task.prompts("train", 0)[1]
    shown = drawn(task, prompt, "click 75 25", "click 25 75")
    assert shown.width > 2 * shown.height * 0.8, "two screens side by side"
    (x1, y1), (x2, y2) = crosses(shown)
    assert x1 % (shown.width / 2) > x2 % (shown.width / 2) and y1 < y2, "a cross up right, and one down left"
    green = [
        1 for x in range(shown.width) for y in range(shown.height - 24, shown.height) if shown.getpixel((x, y)) == (0, 158, 115)
    ]
    assert green, "what came of it"
    assert task.draw_completion(prompt, "no action at all").size[0] < shown.width
    listed = Episodes(simulator="fake/x", pages=["one"], observe="elements")
    assert listed.draw_completion(listed.prompts("train", 0)[0], "click [1]") is None


@pytest.mark.parametrize("most", [0, 4])
def test_what_is_clicked_by_its_number_is_marked_where_it_is(screens, most):
    placed = Episodes(simulator="fake/x", pages=["two"], style="brief")
    task = Episodes(simulator="fake/x", pages=["two"], style="brief", observe="both", most=most)
    prompt = task.prompts("train", 0)[1]
    by_number = drawn(task, prompt, "click [2]", "click [3]")
    by_place = drawn(placed, placed.prompts("train", 0)[1], "click 75 25", "click 25 75")
    assert crosses(by_number) == crosses(by_place)
    assert task.draw_completion(prompt, "click [2]").tobytes() == task.draw_completion(prompt, "click 75 25").tobytes()
    assert task.draw_completion(prompt, "click [2]").tobytes() != task.draw_completion(prompt, "click [9]").tobytes()
    as_json = Episodes(simulator="fake/x", pages=["two"], observe="both")
    assert crosses(drawn(as_json, as_json.prompts("train", 0)[1], *(f'{{"action": "click", "element": {n}}}' for n in (2, 3))))


@pytest.mark.parametrize("observe", ["picture", "elements"])
def test_a_state_is_what_is_on_the_screen_whatever_else_is_told(screens, observe):
    """An action that was refused leaves the state, though the next turn says why."""
    task = Episodes(pages=["two"], observe=observe)
    prompt = task.prompts("train", 0)[0]
    environment = task.environment(prompt)
    first = environment.state_name()
    told = [environment.step("nothing that could be done"), environment.step(task.gold(prompt))]
    assert not any(reply.terminated for reply in told) and told[0].messages != prompt.messages
    environment.close()
    environment = task.environment(prompt)
    environment.step("nothing that could be done")
    assert environment.state_name() == first
    environment.step(task.gold(prompt))
    assert (environment.state_name() == first) == (observe == "elements"), "the quarters are the same elements"
    environment.close()
