"""R1-Reward's whole reward: what the judge is asked, how its answers are read, and what they make of the reward."""

import pytest
from mmrl_vqa.r1_reward_judge import JudgedReward, read, reasons, verdict

from mmrl import Case, UserError
from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.registry import plugins

RIGHT = "<think>one\ntwo\nthree\nthe first is better</think><answer>1</answer>"


class Endpoint:
    """Answers with these texts in turn, and keeps what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def ask(self, questions):
        self.asked += questions
        return [self.answers.pop(0) for _ in questions]


def judged(*answers):
    made = JudgedReward(model="tiny")
    made.endpoint = Endpoint(*(Answer(text=a, finished=True, num_tokens=1) if isinstance(a, str) else a for a in answers))
    return made


def value(verifier, completion=RIGHT, answer="1"):
    return verifier([Case(completion=completion, answer=answer)])[0].value


@pytest.mark.parametrize(("said", "reward"), [("1", 2.0), ("0", 1.0), ("output: 1", 2.0), ("no: 0", 1.0), ("10", 1.0)])
def test_a_right_answer_earns_more_or_less_by_the_judges_digit(said, reward):
    assert value(judged(said)) == reward, "0.5 + 1 x (1 + 0.5 x consistency)"


def test_a_digit_that_cannot_be_read_is_asked_for_three_times_and_then_counts_nothing():
    verifier = judged("perhaps", "well", "1")
    assert value(verifier) == 2.0 and [q.seed for q in verifier.endpoint.asked] == [0, 1, 2]
    assert value(judged("perhaps", "well", "no idea")) == 1.5
    assert value(judged("perhaps", NoAnswer("host: status 500"))) is None, "an endpoint that fails is no reward"


def test_a_wrong_answer_is_not_asked_about():
    verifier = judged()
    assert value(verifier, answer="2") == 0.5 and value(verifier, "<think>a</think> <answer>3</answer>", "2") == 0.0
    assert not verifier.endpoint.asked


def test_the_judge_reads_the_last_lines_and_the_answer_in_words():
    assert reasons(RIGHT) == "two;three;the first is better</think>"
    texts = ("<answer>1</answer>", "<answer> 2\n</answer>", "<answer>7</answer>", "<answer>a dog</answer>", " just text ")
    said = [verdict(text) for text in texts]
    assert said == ["response 1 is better", "response 2 is better", "two response are the same", "a dog", "just text"]
    assert [read(text) for text in ("1", "0", "01", "none")] == [1.0, -1.0, -1.0, None]
    verifier = judged("1")
    value(verifier)
    (question,) = verifier.endpoint.asked
    assert "two;three;the first is better</think>\n=====" in question.messages[0]["content"] and question.temperature == 0.1


def test_options_that_cannot_work_are_refused_before_a_run():
    with pytest.raises(UserError, match="base_url = 'nowhere' is no address"):
        JudgedReward.check({}, model="m", base_url="nowhere")
    with pytest.raises(UserError, match="key_variable = 'HOME'"):
        JudgedReward.check({}, model="m", key_variable="HOME")
    spec = plugins.registry().get("verifiers", "vqa/judged-reward@r1-reward")
    assert (spec.low, spec.high) == (0.0, 2.0)
    assert all(value(JudgedReward(model="tiny"), f"{RIGHT}" + "\n" * n) in (1.0, 2.0, 0.5, 1.5) for n in range(2))
