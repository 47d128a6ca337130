"""reasoning-gym's data sets as tasks, with its own scores."""

import sys

import pytest

import mmrl
from mmrl import Case, NoGold, UserError

gym = pytest.importorskip(
    "reasoning_gym", reason='reasoning-gym is not installed: make peers, or pip install "reasoning-gym>=0.1.25"'
)
from mmrl_interop import reasoning_gym  # noqa: E402
from mmrl_interop.reasoning_gym import ReasoningGym, score  # noqa: E402


def scored(task, prompt, completion):
    return score(Case(completion=completion, answer=prompt.answer, meta=prompt.meta))


def test_its_questions_and_its_scores():
    with mmrl.open_task("interop/reasoning-gym", {"datasets": ["leg_counting", "mini_sudoku"], "train": 20, "test": 4}) as task:
        prompts = task.prompts("train")
        assert [p.meta["dataset"] for p in prompts][:3] == ["leg_counting", "mini_sudoku", "leg_counting"]
        assert prompts[0].messages[0]["role"] == "system" and "<answer>" in prompts[0].text
        legs = prompts[0]
        seed = 10**9  # of item 0 of the split
        assert legs.messages[1]["content"][0]["text"] == gym.create_dataset("leg_counting", size=1, seed=seed)[0]["question"]
        gold = task.score(task.case(legs, task.gold(legs)))
        assert gold.value == 1.0 and dict(gold.parts) == {"interop/reasoning-gym": 1.0}
        wrong = f"<think>hm</think><answer>{int(legs.answer) + 1}</answer>"
        own = gym.get_score_answer_fn("leg_counting")(str(int(legs.answer) + 1), legs.meta["entry"])
        assert task.score(task.case(legs, wrong)).value == own < 1.0
        assert task.score(task.case(legs, legs.answer)).value == 1.0, "an answer without a tag"
        assert task.score(task.case(legs, task.gold(legs) + "<answer>3</answer>")).value == 0.0, "several answers"
        named = f"<think>Is it <answer>3</answer>?</think>{legs.answer}"
        assert task.score(task.case(legs, named)).value == 1.0, "a thought may name the tag"
        cut = f"<think>It is <answer>{legs.answer}</answer>, or"
        assert task.score(task.case(legs, cut)).value < 0.1, "thinking that doesn't end has no answer"


def test_no_question_is_in_two_splits():
    """Small sets ask the same under several seeds."""
    config = {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 3}
    task = ReasoningGym("leg_counting", config, train=200, test=20)
    asked = {split: [p.messages[-1]["content"][0]["text"] for p in task.prompts(split, 0)] for split in ("train", "test")}
    assert not set(asked["train"]) & set(asked["test"]) and len(asked["train"]) == 200
    plain = [gym.create_dataset("leg_counting", size=1, seed=10**9 + i, **config)[0]["question"] for i in range(200)]
    assert set(plain) & set(asked["test"]), "which would be by their seeds alone"
    few = ReasoningGym("leg_counting", {"min_animals": 1, "max_animals": 1, "min_instances": 1, "max_instances": 1}, test=2000)
    with pytest.raises(UserError, match="leg_counting has too few different questions: all of 50 were those of the split test"):
        few.prompts("train", 0)[0]


def test_options_reach_the_set_and_its_scorer():
    task = ReasoningGym(["chain_sum", "gsm_symbolic"], {"chain_sum": {"min_terms": 2, "max_terms": 2}}, system_prompt="Be brief.")
    prompts = task.prompts("test", 0)
    assert prompts[0].text.startswith("Be brief.\n") and prompts[0].text.count("+") + prompts[0].text.count(" - ") <= 1
    assert scored(task, prompts[1], task.gold(prompts[1])) == 1.0, "a set that draws its items at first"


def test_every_set_is_a_task():
    """In a second each at most but for three; those without one answer say so."""
    task = ReasoningGym(["boxnet", "rubiks_cube", "arc_1d", "letter_jumble", "sokoban", "word_ladder"], test=6)
    open_ended = []
    for prompt in task.prompts("test", 0):
        try:
            assert scored(task, prompt, task.gold(prompt)) == 1.0
        except NoGold:
            open_ended.append(prompt.meta["dataset"])
            assert scored(task, prompt, "no idea") < 1.0
    assert open_ended == ["boxnet", "rubiks_cube"]
    assert len(ReasoningGym("all").names) > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": "leg_count"}, "reasoning-gym has no data set 'leg_count'. Did you mean 'leg_counting'?"),
        ({"datasets": []}, "datasets = [] is empty"),
        ({"config": {"animals": 3}}, "reasoning-gym's leg_counting refuses its options (TypeError: "),
        ({"config": {"min_animals": -1}}, "reasoning-gym's leg_counting refuses its options (AssertionError: "),
        ({"datasets": ["ab", "dice"], "config": {"leg_counting": {}}}, "config has options of 'leg_counting', which is none of"),
        ({"system_prompt": "simpel"}, "system_prompt = 'simpel' is unknown"),
        ({"test": 0}, "test = 0 must be a whole number from 1"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(UserError) as error:
        ReasoningGym(**options)
    assert message in str(error.value) and "\n" not in str(error.value)


BROKEN = """
import mmrl_interop.reasoning_gym as adapter
import time
from mmrl import TaskSpec, VerifierSpec, hookimpl
class Broken:
    @staticmethod
    def score_answer(answer, entry):
        if answer == "hang": time.sleep(60)
        if answer == "raise": raise ValueError("a bug")
        return {"none": None, "nan": float("nan"), "text": "good", "much": 7.0, "right": 1.0}[answer]
def score(case):
    adapter._dataset = lambda name, config, seed: Broken
    return adapter.score(case)
@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="broken/score", target="broken:score", timeout_s=0.5)]
"""


def test_a_score_that_is_none_is_missing(tmp_path, monkeypatch):
    """What reasoning-gym's own scorers would have to give; the other completions have their scores."""
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(file))
    said = ["right", "none", "nan", "text", "much", "raise", "hang", "right"]
    with mmrl.open_verifiers({"broken/score": 1.0}) as opened:
        scores = opened.score([Case(completion=s, meta={"dataset": "x", "config": "{}", "entry": {}}) for s in said])
    assert [s.value for s in scores] == [1.0, None, None, None, None, None, None, 1.0]
    details = [s.detail for s in scores]
    assert "a bug" in details[5] and all(detail and "\n" not in detail for detail in details[1:-1]), details


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr("mmrl_interop.peers.version", lambda dist: "0.9")
    with pytest.raises(
        UserError, match=r"interop/reasoning-gym works with reasoning-gym >=0.1.25,<0.2, and 0.9 is installed: pip"
    ):
        ReasoningGym()
    assert reasoning_gym.VERSIONS and "reasoning_gym" in sys.modules
