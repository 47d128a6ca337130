"""Verifiers that ask a reward model in this process, against the model's own probabilities and ratings."""

from __future__ import annotations

import math
import shutil
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from mmrl_judge.reward_models import Better, Rating, Right
from mmrl_judge.wording import ask_better, ask_right
from PIL import Image

from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.services import vision_language
from mmrl.api.types import Case, Prompt, Status, Turn, user_message
from mmrl.judge.reward_models import Ratings

ASKED = [user_message("What is shown?", Image.new("RGB", (56, 56), "red"))]


def case(completion: str, answer: str = "a red square", asked: list = ASKED) -> Case:
    turn = Turn(observed_ids=(), token_ids=(1,), logprobs=(0.0,), text=completion)
    rollout = Conversation(prompt=Prompt(messages=asked, answer=answer), group=0, turns=(turn,), status=Status.FINISHED)
    return Case(completion=completion, answer=answer, rollout=rollout)


def test_the_reward_is_the_probability_of_yes() -> None:
    scores = Right("tiny", device="cpu")([case("red"), case("blue")])
    model = vision_language("tiny", device="cpu")
    wanted = model.answer_probabilities([ask_right(ASKED, "red"), ask_right(ASKED, "blue")], ("yes", "no"))[:, 0].tolist()
    assert [s.value for s in scores] == pytest.approx(wanted) and scores[0].value != scores[1].value


@pytest.mark.slow
def test_a_comparison_is_the_mean_of_both_orders() -> None:
    (score,) = Better("tiny", device="cpu")([case("red")])
    model = vision_language("tiny", device="cpu")
    asked = [ask_better(ASKED, "red", "a red square"), ask_better(ASKED, "a red square", "red")]
    one, two = model.answer_probabilities(asked, ("1", "2"))[:, 0].tolist()
    assert score.value == pytest.approx((one + 1 - two) / 2)
    (tied,) = Better("tiny", device="cpu")([case("a red square")])
    assert tied.value == pytest.approx(0.5), "an answer is as good as itself"


@pytest.mark.slow
def test_a_rating_is_brought_to_0_to_1() -> None:
    plain = Rating("tiny", device="cpu")([case("red"), case("blue")])
    moved = Rating("tiny", device="cpu", center=0.3, scale=2.0)([case("red"), case("blue")])
    for one, other in zip(plain, moved, strict=True):
        rating = one.parts["rating"]
        assert one.value == pytest.approx(1 / (1 + math.exp(-rating)))
        assert other.value == pytest.approx(1 / (1 + math.exp(-(rating - 0.3) / 2)))
    assert Rating("tiny", device="cpu", scale=1e-3, center=1e5)([case("red")])[0].value == 0.0


@pytest.mark.slow
def test_a_group_of_answers_is_rated_with_its_prompt_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rating = Rating("tiny", device="cpu")
    alone = [rating([case(said)])[0].value for said in ("red", "blue", "green")]
    read = Mock(wraps=rating.model.policy.encode)
    monkeypatch.setattr(rating.model.policy, "encode", read)
    found = rating([*map(case, ("red", "blue")), case("green", asked=[user_message("Which one?")]), case("green")])
    assert read.call_count == 3, "only neighbours share it"
    assert [s.value for s in found[:2] + found[3:]] == pytest.approx(alone, abs=1e-5)
    assert abs(found[2].value - alone[2]) > 1e-4


def test_media_that_cannot_be_pickled_are_rated() -> None:
    """They aren't known to be the same, and each is encoded."""
    picture = Image.new("RGB", (56, 56), "red")
    picture.info["lock"] = threading.Lock()
    policy = Mock(rate=lambda inputs, completions: [float(len(said)) for said in completions])
    asked = [user_message("What is shown?", picture)]
    assert Ratings(policy).rate([(ASKED, "a"), (ASKED, "bc"), (asked, "def"), (asked, "")]) == [1, 2, 3, 0]
    assert policy.encode.call_count == 3


@pytest.mark.slow
def test_a_folder_without_a_head_is_no_reward_model(tmp_path: Path) -> None:
    from mmrl.config.sections import PolicyConfig
    from mmrl.policies.reward_model import HEAD, RewardModel

    model = RewardModel(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1"), seed=1)
    model.save(tmp_path / "policy")
    shutil.copytree(tmp_path / "policy", tmp_path / "headless")
    (tmp_path / "headless" / HEAD).unlink()
    Rating.check({}, model=str(tmp_path / "policy"), device="cpu")
    inputs = model.encode(Prompt(messages=ASKED))
    found = Rating(str(tmp_path / "policy"), device="cpu")([case("red")])[0].parts["rating"]
    assert found == pytest.approx(model.rate(inputs, ["red"])[0], abs=1e-5), "saved and loaded it rates alike"
    for folder, why in (("headless", f"has no {HEAD}"), ("gone", "is no folder")):
        with pytest.raises(UserError, match=why):
            Rating.check({}, model=str(tmp_path / folder), device="cpu")
    torch.save({}, tmp_path / "headless" / HEAD)
    with pytest.raises(UserError, match="is no head of this model"):
        Rating(str(tmp_path / "headless"), device="cpu")


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": -1.0}, {"center": math.inf}, {"scale": True}])
def test_a_scale_that_can_t_work_is_refused(options: dict) -> None:
    with pytest.raises(UserError, match="must be a number"):
        Rating("tiny", device="cpu", **options)


def test_a_model_that_isn_t_there_is_refused() -> None:
    with pytest.raises(UserError, match="nowhere"):
        Right.check({}, model="./nowhere", device="cpu")


def test_a_case_without_an_episode_fails() -> None:
    with pytest.raises(ValueError, match="no episode"):
        Right("tiny", device="cpu")([Case(completion="red", answer="red")])
