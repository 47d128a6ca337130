"""Games as tasks: VAGEN's form and plainer ones, the two that are bundled, and games that misbehave."""

import os
import resource

import pytest
from mmrl_interop.game_task import FrozenLakeTask, GameTask, SokobanTask, success

from mmrl import Case, EnvironmentFailed, NoGold, UserError

GAMES = '''
import itertools, os, signal, sys, time
import numpy as np
from PIL import Image

class Vagen:
    """Guess a shade from its picture, in VAGEN's form: async, with its own prompt."""
    def __init__(self, env_config):
        self.config = env_config
    async def system_prompt(self):
        return {"obs_str": "Say a number."}
    async def reset(self, seed):
        self.seed = seed % 10
        return self.shown("What is <image>?"), {}
    async def step(self, action_str):
        won = action_str == str(self.seed)
        return self.shown("No, it is <image>."), float(won), won, {"success": won, "note": "text", "turns": {"a": 1}}
    def shown(self, text):
        return {"obs_str": text, "multi_modal_input": {"<image>": [Image.new("RGB", (56, 28), (20 * self.seed,) * 3)]}}

class Bad:
    """Does what its action says, in a form like Gymnasium's."""
    drawn = itertools.count()
    def __init__(self, start="ok"):
        self.start = start
    def reset(self, seed):
        print("hello" * 30_000)
        return {"ok": "Go.", "array": np.zeros((3, 4, 5)), "keys": {"pixels": 1}, "drift": f"Draw {next(Bad.drawn)}.",
                "places": {"text": "<image> <image>", "images": [np.zeros((8, 8, 3), "uint8")]},
                "sizes": {"text": "", "images": np.zeros((8, 8, 2), "uint8")}}[self.start]
    def step(self, text):
        if text == "raise": raise ValueError("a bug")
        if text == "exit": raise SystemExit(3)
        if text == "hang": time.sleep(60)
        if text == "die": os._exit(7)
        if text == "deaf": signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(60)
        if text == "short": return "Go.", 1.0
        if text == "shape": return np.zeros(3), 0.0, False, False, {}
        reward = {"none": None, "nan": float("nan"), "words": "much", "numpy": np.float32(0.5)}.get(text, 1.0)
        return {"text": "On.", "images": [np.full((4, 6, 3), 9, "uint8")]}, reward, text == "end", text == "cut", {}
'''


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    path = tmp_path_factory.mktemp("games") / "games.py"
    path.write_text(GAMES)
    return path


@pytest.fixture(scope="module")
def bad(games):
    task = GameTask(f"{games}:Bad", timeout_s=1.0, processes=1)
    yield task
    task.worlds.close()


def played(task, *turns, index=0):
    """The replies to turns of an episode."""
    environment = task.environment(task.prompts("train", 0)[index])
    try:
        return [environment.step(turn) for turn in turns]
    finally:
        environment.close()


def test_vagen_s_form(games):
    task = GameTask(f"{games}:Vagen", {"note": 1}, train=4, test=2)
    train, test = task.prompts("train", 0), task.prompts("test", 0)
    assert (len(train), len(test)) == (4, 2)
    prompt = train[3]
    assert [(m["role"], [p["type"] for p in m["content"]]) for m in prompt.messages] == [
        ("system", ["text"]),
        ("user", ["text", "image", "text"]),
    ]
    assert prompt.images[0].size == (56, 28) and prompt.images[0].getpixel((0, 0)) == (60, 60, 60)
    first, last = played(task, "9", "3", index=3)
    assert (first.reward, first.terminated, first.outcome) == (0.0, False, {"success": 0.0, "return": 0.0, "steps": 1.0})
    assert first.messages[0]["content"][1]["image"].getpixel((0, 0)) == (60, 60, 60)
    assert (last.reward, last.terminated, last.outcome["success"], last.messages) == (1.0, True, 1.0, [])
    with pytest.raises(NoGold):
        task.gold(prompt)
    task.worlds.close()


def test_gymnasium_s_form(bad):
    on, half, cut = played(bad, "on", "numpy", "cut")
    assert on.messages[0]["content"][0]["image"].getpixel((5, 3)) == (9, 9, 9) and half.reward == 0.5
    assert cut.terminated and cut.outcome == {"truncated": 1.0, "return": 2.5, "steps": 3.0}


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ("raise", r"game Bad: ValueError: a bug \(games.py:\d+\)"),
        ("exit", "game Bad: SystemExit: 3"),
        ("hang", "game Bad: TimeoutError: took longer than 1 s"),
        ("die", "game Bad: its process exited with code 7"),
        ("short", "step gave tuple and not (observation, reward, done, info)".replace("(", r"\(").replace(")", r"\)")),
        ("shape", r"an observation must be a text, or a table with text and images, not ndarray of shape \[3\]"),
        ("none", "its reward is None and no number"),
        ("nan", "its reward is nan and no number"),
        ("words", "its reward is 'much' and no number"),
    ],
)
def test_a_fault_loses_its_episode_and_no_other(bad, turn, message):
    other = bad.environment(bad.prompts("train", 0)[1])
    other.step("on")
    with pytest.raises(EnvironmentFailed, match=message) as error:
        played(bad, turn)
    assert "\n" not in str(error.value)
    if turn == "die":  # the sessions of one process end together
        with pytest.raises(EnvironmentFailed, match="its process was lost in another episode"):
            other.step("end")
    else:
        assert other.step("end").terminated
    other.close()
    assert played(bad, "end")[0].reward == 1.0


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("array", r"train-0 can't be shown: game Bad: ValueError: an observation must be .*, not ndarray of shape \[3, 4, 5\]"),
        ("keys", "an observation must be a text, or a table with text and images, not dict with pixels"),
        ("places", "the text has 2 <image>, and there are 1 images"),
        ("sizes", r"an image must be a PIL image or an array uint8 \[H, W, 3\], not uint8 \[8, 8, 2\]"),
    ],
)
def test_what_can_not_be_shown_is_said(games, start, message):
    task = GameTask(f"{games}:Bad", {"start": start})
    with pytest.raises(UserError, match=message):
        task.prompts("train", 0)[0]
    task.worlds.close()


def test_a_game_that_does_not_repeat_is_no_episode(games):
    task = GameTask(f"{games}:Bad", {"start": "drift"}, processes=1)
    with pytest.raises(EnvironmentFailed, match="it started otherwise than its prompt shows"):
        played(task, "on")
    task.worlds.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "games"}, "game = 'games' names no class: write path.py:Class or package.module:Class"),
        ({"game": "gone.py:Maze"}, "gone.py does not exist: check the path"),
        ({"game": "{games}:Mad"}, "has no function 'Mad'. Did you mean 'Bad'?"),
        ({"game": "{games}:Bad", "timeout_s": 0}, "timeout_s = 0 must be a number of seconds above 0"),
        ({"game": "{games}:Bad", "python": "/no/python"}, "python = '/no/python' is no program"),
        ({"game": "{games}:Bad", "config": {"a": {1, 2}}}, "config must be plain data"),
        ({"game": "no_such_package:Maze"}, "no_such_package can't be loaded (ModuleNotFoundError: No module named"),
        ({"game": "{games}:Bad", "config": {"begin": "ok"}}, "unexpected keyword argument 'begin'"),
    ],
)
def test_wrong_options_are_one_line(games, options, message):
    options = {k: v.format(games=games) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(UserError) as error:
        GameTask(**options).prompts("train", 0)[0]
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("make", [FrozenLakeTask, SokobanTask])
def test_bundled_games_are_won_by_their_gold(make):
    if make is FrozenLakeTask:
        pytest.importorskip("gymnasium")
    task = make(picture=False, max_actions=2, train=20, test=20)
    maps = {split: {p.text.rpartition("begins.\n")[2] for p in task.prompts(split, 0)} for split in ("train", "test")}
    assert len(maps["train"]) > 10 and not maps["train"] & maps["test"], "no map is in two splits"
    prompt = task.prompts("test", 0)[3]
    environment, total, turn = task.environment(prompt), 0.0, task.gold(prompt)
    silly = environment.step("Right")
    assert silly.reward == 0.0 and "no move in the right format" in silly.messages[0]["content"][0]["text"]
    while turn is not None:
        reply = environment.step(turn)
        total, turn = total + reply.reward, environment.gold_turn()
    environment.close()
    assert reply.terminated and reply.outcome["success"] == 1.0 == success(Case(completion="", outcome=reply.outcome))
    assert total == pytest.approx(1.0 + (reply.outcome["steps"] - 1) * (0.02 if make is FrozenLakeTask else 0.1))
    task.worlds.close()


def test_a_hole_ends_the_walk():
    pytest.importorskip("gymnasium")
    from mmrl_interop.worlds.grid_games import FrozenLake

    game = FrozenLake(size=3, max_actions=5, format_reward=0.02)
    game.begin(["SHF", "FFF", "FFG"], 0)
    assert game.path() == ["down", "down", "right", "right"] and game.image().shape[2] == 3
    _, reward, done, info = game.step("<think>?</think> <answer>Up, Right, Down</answer>")
    assert (reward, done, info["success"], game.text().splitlines()[0]) == (0.02, True, False, "_ X _")
    game.close()


def test_a_box_is_pushed_and_not_through_walls():
    from mmrl_interop.worlds.grid_games import Sokoban

    game = Sokoban(size=5)
    game.begin(["#####", "#_P_#", "#_X_#", "#_O_#", "#####"], 0)
    assert game.image().size == (160, 160) and game.path() == ["down"]
    _, reward, done, info = game.step("<think></think><answer>Up</answer>")
    assert (reward, done, info["success"]) == (0.1, False, False)
    _, reward, done, _ = game.step("<think></think><answer>Down,Down</answer>")
    assert (reward, done, game.text().splitlines()[2:4]) == (1.1, True, ["# _ P _ #", "# _ * _ #"])
    game.begin(["#####", "#_P_#", "#_X_#", "#_#O#", "#####"], 0)
    game.move("down")
    assert game.player == (1, 2)


def test_what_can_not_be_solved_is_seen_at_once(monkeypatch):
    """A box in a corner, or at a wall without a target: what is left of the room needs no search."""
    from mmrl_interop.worlds.grid_games import Sokoban

    monkeypatch.setattr(Sokoban, "_after", lambda *given: pytest.fail("it searches"))
    game = Sokoban(size=10, boxes=3)
    floor = ["#" + "_" * 8 + "#"] * 5
    for lost in ("#X_______#", "#___X____#"):
        game.begin(["#" * 10, lost, "#__P_____#", "#___X__X_#", "#__OOO___#", *floor[1:], "#" * 10], 0)
        assert game.path() == []
    game.begin(["#" * 10, floor[0], "#__P_____#", "#__X_____#", "#_XO_____#", "#OO______#", *floor[2:], "#" * 10], 0)
    assert not game.solved and game.boxes <= game._alive() and {(1, 1), (1, 4), (8, 8)}.isdisjoint(game._alive())


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (FrozenLakeTask, {"size": 2}, "size = 2 must be a whole number from 3 to 20"),
        (FrozenLakeTask, {"frozen": 0.1}, "frozen = 0.1 must be a number from 0.5 to 1"),
        (SokobanTask, {"boxes": 9}, "boxes = 9 must be a whole number from 1 to 3"),
        (SokobanTask, {"format_reward": float("nan")}, "format_reward = nan must be a number"),
    ],
)
def test_options_of_bundled_games(make, options, message):
    with pytest.raises(UserError, match=message):
        make(**options)


RUN = """
name = "lake"
policy = {model = "tiny:qwen2_5_vl", dtype = "float32"}
tasks = [{id = "interop/frozen-lake", options = {size = 3}}]
stages = [{kind = "rl", steps = 2, prompts_per_step = 2, group_size = 2, learning_rate = 1e-3}]
generate = {max_tokens = 4, max_turns = 2}
evaluate = {num_prompts = 2}
"""


@pytest.mark.slow
def test_a_run_plays_them(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    import json

    from click.testing import CliRunner

    from mmrl.ui.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)
    done = CliRunner().invoke(main, ["train", "run.toml", "--quiet"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "runs/lake/rollouts/step-000001.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and all(row["reward"] == 0.0 and row["score"]["value"] == 0.0 for row in rows), rows


@pytest.mark.slow
@pytest.mark.parametrize("id", ["interop/frozen-lake", "interop/sokoban", "interop/reasoning-gym"])
def test_the_conformance_kit_passes(id):
    """In a fork, as `mmrl check` runs it."""
    pytest.importorskip("gymnasium")
    if id == "interop/reasoning-gym":
        pytest.importorskip("reasoning_gym")
    from click.testing import CliRunner

    from mmrl.ui.cli import main

    done = CliRunner().invoke(main, ["check", id, "-n", "8"])
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_a_game_that_heeds_no_signal_is_killed(games):
    """The parent ends what the process itself can't."""
    task = GameTask(f"{games}:Bad", timeout_s=0.5, processes=1)
    with pytest.raises(EnvironmentFailed, match=r"game Bad: its process took longer than 5\.5 s and was killed"):
        played(task, "deaf")
    assert played(task, "end")[0].terminated
    task.worlds.close()


def test_a_process_with_many_open_files_plays(games):
    """A learner with some hundred processes has descriptors above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2048 if hard == resource.RLIM_INFINITY else min(hard, 2048)
    if most < 1200:
        pytest.skip("this system allows few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    task = GameTask(f"{games}:Bad", processes=1)
    try:
        assert task.prompts("train", 0)[0].text == "Go."
    finally:
        task.worlds.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_a_state_that_is_met_again_has_the_same_name(bad):
    """On ice without holes, away and back; what is told differs. A game that names no states has none."""
    task = FrozenLakeTask(frozen=1.0, picture=False, max_actions=1)
    environment = task.environment(task.prompts("train", 0)[0])
    names, told = [environment.state_name()], []
    for move in ("Left", "Right", "Down", "Up"):
        reply = environment.step(f"<think></think><answer>{move}</answer>")
        assert not reply.terminated, "the goal of this map is elsewhere"
        names.append(environment.state_name())
        told.append(reply.messages[0]["content"][0]["text"])
    environment.close()
    task.worlds.close()
    assert len({*names}) in (2, 3) and len({*told}) > len({*names}) and all("P" in name for name in names)
    assert played(bad, "on") and bad.environment(bad.prompts("train", 0)[0]).state_name() is None
