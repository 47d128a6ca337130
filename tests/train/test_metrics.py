"""The figures of a step, worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch

from footage import trajectory_data
from mmrl.api.episodes import Conversation, Trajectory
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.compute import ranks
from mmrl.run_folder.metrics import REDUCTIONS
from mmrl.train.metrics import credit_share, most_common_share, rl_metrics, zero_std_share


def rollout(group, *tokens, task="a/one", status=Status.FINISHED, text="", answer=None):
    """A rollout with a turn for each number of tokens; by default one turn of one token."""
    turns = tuple(Turn(observed_ids=(), token_ids=(7,) * n, logprobs=(0.0,) * n, text=text) for n in tokens or (1,))
    prompt = Prompt(messages=[user_message("x")], task=task, answer=answer)
    return Conversation(prompt=prompt, group=group, turns=turns, status=status)


def test_the_figures_of_a_step():
    cut = Status.TRUNCATED_LENGTH
    rollouts = [
        rollout(0, 1),
        rollout(0, 2),
        rollout(1, 3),
        rollout(1, 4),
        rollout(2, 5, task="b/two", status=cut),
        rollout(2, 9, task="b/two", status=cut),
    ]
    scores = [
        Score(1.0, {"v": 1.0, "w": 0.5}),
        Score(0.0, {"v": 0.0, "w": 0.0}),
        Score(None, {"w": 1.0}, "v failed: no"),
        Score(0.5, {"v": 0.5, "w": 0.5}),
        Score(0.5, {"u": 0.25}),
        Score(1.0, {"u": 0.75}),
    ]
    advantages = torch.tensor([1.0, -1.0, torch.nan, 0.0, 0.0, 0.0])
    assert rl_metrics(rollouts, scores, advantages) == pytest.approx(
        {
            "reward/mean": 0.6,  # of the five that were scored
            "reward/std": math.sqrt((0.16 + 0.36 + 0.01 + 0.01 + 0.16) / 5),
            "reward/u": 0.5,
            "reward/v": 0.5,
            "reward/w": 0.5,
            "task/a/one/reward": 0.5,
            "task/a/one/length": 2.5,
            "task/a/one/zero_std_share": 0.5,
            "task/a/one/reward/v": 0.5,
            "task/a/one/reward/w": 0.5,
            "task/b/two/reward": 0.75,
            "task/b/two/length": 7.0,
            "task/b/two/zero_std_share": 1.0,
            "task/b/two/reward/u": 0.5,
            "length/mean": 4.0,
            "length/max": 9.0,
            "length/truncated_share": 1 / 3,
            "judge/failed_share": 1 / 6,
            "zero_std_share": 2 / 3,
            "uncredited_share": 1 / 3,  # the last group
        }
    )


def test_a_step_in_which_every_score_failed_has_gaps_and_no_zeros():
    found = rl_metrics([rollout(0), rollout(0)], [Score(None), Score(None)], torch.full((2,), torch.nan))
    assert not [k for k in found if "reward" in k]
    assert found["judge/failed_share"] == 1.0 and found["zero_std_share"] == 1.0 and found["length/mean"] == 1.0


def test_a_group_taught_something_when_any_of_its_completions_did():
    rollouts = [rollout(g) for g in (5, 5, 5, 2, 2, 9)]
    share = lambda *values: zero_std_share(rollouts, torch.tensor(values))  # noqa: E731
    assert share(0.0, 0.0, -0.5, 0.0, 0.0, 0.0) == pytest.approx(2 / 3)
    assert share(0.0, 1.0, -1.0, torch.nan, 0.5, 0.0) == pytest.approx(1 / 3)
    assert share(torch.nan, 0.0, 0.0, torch.nan, torch.nan, 0.0) == 1.0
    assert share(0.0, 1.0, 0.0, 1.0, 0.0, 1.0) == 0.0


def test_advantages_of_tokens_count_by_rollout():
    nan = torch.nan
    rollouts = [rollout(g) for g in (0, 0, 1, 1, 2, 2)]
    of_tokens = torch.tensor([[0.0, 0.0], [0.0, 0.5], [nan, nan], [0.0, 0.0], [nan, nan], [nan, nan]])
    assert zero_std_share(rollouts, of_tokens) == pytest.approx(2 / 3)
    metrics = rl_metrics(rollouts[:4], [Score(1.0)] * 4, of_tokens[:4])
    assert metrics["zero_std_share"] == metrics["task/a/one/zero_std_share"] == 0.5


def test_tokens_with_credit_are_counted_among_those_that_are_trained():
    credit = torch.tensor([[0.0, 0.5, 0.0], [-1.0, 0.0, 0.0], [torch.nan] * 3])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 1]]).bool()
    assert credit_share(credit, mask) == 2 / 4 and credit_share(credit, mask & False) == 0


def test_a_conversation_is_as_long_as_its_turns_together():
    rollouts = [rollout(0, 3, 4, 5), rollout(0, 2)]
    found = rl_metrics(rollouts, [Score(1.0), Score(0.0)], torch.tensor([1.0, -1.0]))
    assert (found["length/mean"], found["length/max"], found["task/a/one/length"], found["turns/mean"]) == (7.0, 12.0, 7.0, 2.0)


def test_turns_are_no_figure_where_all_have_one():
    assert "turns/mean" not in rl_metrics([rollout(0)] * 2, [Score(1.0)] * 2, torch.zeros(2))


@pytest.mark.parametrize(("chunk", "calls"), [(1, 3.0), (2, 2.0)])
def test_calls_of_a_policy_that_acts_are_counted(chunk, calls):
    """An episode of three steps; one that was lost before its first call counts nowhere."""
    valid = torch.arange(-(-3 // chunk) * chunk).view(-1, chunk) < 3
    data = trajectory_data({}, valid.tolist())
    episode = Trajectory(prompt=Prompt(messages=[], task="t"), group=0, status=Status.FINISHED, data=data)
    lost = replace(episode, data=None, group=1)
    found = rl_metrics([episode, lost], [Score(1.0), Score(None)], torch.tensor([1.0, torch.nan]))
    assert found["policy/calls"] == calls and "policy/calls" not in rl_metrics([rollout(0)], [Score(1.0)], torch.zeros(1))


def groups(*votes):
    """Rollouts of a group for each (answer, texts)."""
    return [rollout(i, text=text, answer=answer) for i, (answer, texts) in enumerate(votes) for text in texts]


def test_each_group_has_one_vote_for_its_most_frequent_text():
    rollouts = groups(("a", "xxy"), ("b", "xyx"), ("c", "yyx"), ("a", "xzx"))
    assert most_common_share(rollouts) == 0.75, "x in three of four groups; among the completions it is in 7 of 12"
    assert rl_metrics(rollouts, [Score(1.0)] * 12, torch.zeros(12))["answers/most_common_share"] == 0.75
    assert most_common_share(groups(("a", "pp"), ("b", "qq"), ("c", "rr"), ("d", "ss"), ("e", "tq"))) == 0.2, (
        "equal: the first counts"
    )


def test_few_groups_say_nothing_about_collapse_and_equal_answers_are_no_collapse():
    assert most_common_share(groups(("a", "xx"), ("b", "xx"), ("c", "xx"))) == 0.0
    assert most_common_share(groups(("a", "xx"), ("b", "xx"), ("c", "xx"), ("d", "xx"))) == 1.0
    assert most_common_share(groups(*[("a", "xx")] * 5)) is None
    assert most_common_share(groups(*[([1, 2], "xx")] * 3, ([1, 3], "xx"))) == 1.0, "an answer may be anything"
    assert "answers/most_common_share" not in rl_metrics(groups(*[("a", "x")] * 5), [Score(1.0)] * 5, torch.zeros(5))


def test_what_several_learners_measured_is_added_up_or_averaged_as_the_table_says(monkeypatch):
    one = {"simulator/lost": 2.0, "policy/idle_share": 0.5, "own/figure": 4.0}
    monkeypatch.setattr(
        ranks, "all_gather_object", lambda own: [own, {"simulator/lost": 1.0, "policy/idle_share": 0.25}, {"own/figure": 8.0}]
    )
    found = ranks.reduce_metrics(one, REDUCTIONS)
    assert found == {"simulator/lost": 3.0, "policy/idle_share": 0.375, "own/figure": 6.0}, "by ranks that have it"
    assert ranks.reduce_metrics(one, {"simulator/lost": "max"})["simulator/lost"] == 2.0
