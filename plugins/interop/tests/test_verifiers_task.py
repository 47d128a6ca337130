"""Tasksets and environments of verifiers as tasks: verifiers itself plays and scores, in an interpreter of its own."""

import json
import re
from pathlib import Path

import pytest
from mmrl_interop.verifiers_task import VerifiersTask

import mmrl
from mmrl import EnvironmentFailed, NoGold, UserError

PYTHON = Path(__file__).parents[3] / ".peers" / "verifiers" / "bin" / "python"
THERE = {"python": str(PYTHON), "environment": {"PYTHONPATH": str(Path(__file__).with_name("tasksets"))}}
needs_verifiers = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"verifiers is not installed in {PYTHON.parents[1]}: make peers"),
]


def made(taskset, **options):
    return VerifiersTask(taskset, **{**THERE, "timeout_s": 20.0, **options})


@pytest.fixture(scope="module")
def shades():
    task = made("someone/shades-vf", config={"n": 20}, test_config={"first": 20, "n": 5}, timeout_s=3.0)
    yield task
    task.worlds.close()


@pytest.fixture(scope="module")
def guesses():
    task = made("guess-vf", num_tasks=40)
    yield task
    task.worlds.close()


def answered(task, prompt, *turns):
    environment = task.environment(prompt)
    try:
        return [environment.step(turn) for turn in turns]
    finally:
        environment.close()


class TestSingleTurn:
    pytestmark = needs_verifiers

    def test_prompts_and_weighted_rewards(self, shades):
        train, test = shades.prompts("train", 0), shades.prompts("test", 0)
        assert (len(train), len(test)) == (20, 5)
        prompt = test[2]
        assert [(m["role"], [p["type"] for p in m["content"]]) for m in prompt.messages] == [
            ("system", ["text"]),
            ("user", ["image", "text"]),
        ]
        assert prompt.images[0].getpixel((0, 0)) == (220, 220, 220) and prompt.text == "Be brief.\nHow dark?"
        [right] = answered(shades, prompt, "22")
        assert (right.reward, right.terminated) == (1.5, True)
        assert right.outcome == {"right": 1.0, "brief": 1.0, "length": 2.0, "return": 1.5, "steps": 1.0}
        assert answered(shades, prompt, "not dark")[0].reward == 0.0
        with pytest.raises(NoGold):
            shades.gold(prompt)

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ("raise", "verifiers: ValueError: TaskError: task Shade scoring: ValueError: a bug"),
            ("none", "float() argument must be a string or a real number, not 'NoneType'"),
            ("nan", "verifiers: its reward is nan and no number"),
            ("wait", "verifiers: TimeoutError: took longer than 3 s"),
            ("hang", "task Shade scoring timed out"),
        ],
    )
    def test_a_score_that_is_missing_loses_its_episode_alone(self, shades, said, message):
        prompt = shades.prompts("train", 0)[3]
        beside = shades.environment(prompt)
        with pytest.raises(EnvironmentFailed, match=re.escape(message)) as error:
            answered(shades, prompt, said)
        assert "\n" not in str(error.value)
        assert beside.step("3").reward == 1.5
        beside.close()

    def test_a_share_of_the_tasks_is_held_out(self):
        task = made("shades-vf", test_share=0.3)
        starts = {split: [p.meta["where"]["index"] for p in task.prompts(split, 0)] for split in ("train", "test")}
        assert sorted(starts["train"] + starts["test"]) == list(range(20)) and 1 < len(starts["test"]) < 12
        task.worlds.close()

    @pytest.mark.always
    def test_it_is_scored_by_the_judge(self):
        with mmrl.open_task("interop/verifiers", {"taskset": "shades-vf", **THERE}) as task:
            episode = task.episode(task.prompts("train")[0])
            episode.step("no")
            assert episode.done and episode.score().value == 0.5 == episode.score().parts["interop/return"]


class TestSeveralTurns:
    pytestmark = needs_verifiers

    def test_episodes_beside_each_other(self, guesses):
        prompts = guesses.prompts("train", 0)
        assert len(prompts) + len(guesses.prompts("test", 0)) == 40
        prompt = prompts[4]
        number = str(prompt.meta["where"]["index"] % 10)
        one, two = guesses.environment(prompt), guesses.environment(prompt)
        first = one.step("ten")
        assert (first.reward, first.terminated, first.messages[0]["content"][0]["text"]) == (0.0, False, "No. Guess again.")
        assert two.step(number).outcome["turns"] == 1.0
        last = one.step(number)
        assert (last.reward, last.terminated) == (2.0, True) and last.outcome["turns"] == 2.0 and last.outcome["guessed"] == 1.0
        assert answered(guesses, prompt, "a", "b", "c", "d")[-1].outcome["guessed"] == 0.0
        one.close(), two.close()

    def test_an_episode_that_is_left_ends(self, guesses):
        prompt = guesses.prompts("train", 0)[0]
        for _ in range(3):
            answered(guesses, prompt, "ten")
        assert answered(guesses, prompt, str(prompt.meta["where"]["index"] % 10))[0].terminated


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason=f"verifiers is not installed in {PYTHON.parents[1]}: make peers")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"taskset": "shade-vf"},
            "verifiers: taskset 'shade-vf' can't be made (ModuleNotFoundError: taskset 'shade-vf' not found",
        ),
        ({"taskset": "shades-vf", "config": {"size": 3}}, "verifiers: taskset 'shades-vf' can't be made (ValidationError"),
        pytest.param({"taskset": "shades-vf", "env": {"id": "no-env"}}, "'no-env' not found", marks=pytest.mark.exhaustive),
        pytest.param({"taskset": "json"}, "taskset 'json' can't be made", marks=pytest.mark.exhaustive),
        ({"taskset": "shades-vf", "config": {"task": {"tools": True}}}, "does not support MCP tools"),
        ({"taskset": "shades-vf", "env": {"id": "user-sim"}}, None),
    ],
)
def test_what_it_can_not_be_is_said(options, message):
    task = made(**options)
    try:
        with pytest.raises((UserError, EnvironmentFailed)) as error:
            prompt = task.prompts("train", 0)[0]
            answered(task, prompt, "hello", "hello", "hello")
    finally:
        task.worlds.close()
    wanted = message or "a call of the model doesn't go on with the conversation: set a client for all agents but one"
    assert wanted in str(error.value) and "\n" not in str(error.value)


def test_without_verifiers_it_is_one_line():
    with pytest.raises(
        UserError, match=r"verifiers: verifiers is not installed: pip install \"verifiers>=0.4,<0.5\", or set the option"
    ):
        VerifiersTask("shades-vf").prompts("train", 0)


def test_another_version_is_refused(tmp_path):
    (tmp_path / "verifiers-0.1.9.dist-info").mkdir()
    (tmp_path / "verifiers-0.1.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: verifiers\nVersion: 0.1.9\n")
    with pytest.raises(UserError, match=r"it works with verifiers >=0\.4,<0\.5, and 0\.1\.9 is installed: pip install"):
        VerifiersTask("shades-vf", environment={"PYTHONPATH": str(tmp_path)}).prompts("train", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taskset": 3}, "taskset = 3 must be a text"),
        ({"config": "split"}, "config = 'split' must be a table"),
        ({"test_share": 1.0}, "test_share = 1.0 must be a number from 0, below 1"),
        ({"num_tasks": 0}, "num_tasks = 0 must be a whole number from 1"),
        ({"env": {"a": {1}}}, "config and env must be plain data"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError) as error:
        VerifiersTask(**{"taskset": "shades-vf", **options})
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert json.dumps(str(error.value))
