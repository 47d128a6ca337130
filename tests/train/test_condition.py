"""RECAP: which completions are called good, and which prompts they are trained under."""

from types import SimpleNamespace

import pytest
import torch

from mmrl.api.episodes import Conversation, Trajectory
from mmrl.api.sampling import Group
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.config.sections import ConditionConfig
from mmrl.policies.batches import Credit
from mmrl.train.sampling.condition import condition_labels, relabel, with_condition
from mmrl.train.sampling.groups import Sampled

NAN = float("nan")


def labels(advantages, seed=0, **config):
    """`+` for positive, `-` for negative, `.` for neither."""
    config = ConditionConfig(positive="+", negative="-", **{"drop": 0.0, **config})
    return "".join(label or "." for label in condition_labels(advantages, config, seed))


@pytest.mark.parametrize(
    ("top", "advantages", "expected"),
    [
        (0.3, [9, 1, 8, 2, 7, 3, 6, 4, 5, 0], "+-+-+-----"),
        (0.5, [1, 3, 2, 4], "-+-+"),
        (0.01, [1, 3, 2, 4], "---+"),  # at least one
        (0.99, [1, 3, 2, 4], "-+++"),  # never the worst
        (0.25, [1, 1, 0, 0], "++--"),  # both of a tie are as good as each other
        (0.5, [1.5, -0.5, -0.5, -0.5], "+---"),  # not the failures that tie with the second best
        (0.3, [0, 0, 0, 0], "----"),  # nothing was better than anything
        (0.75, [2, 1, 1, 0, 0], "+++--"),  # round(3.75) is 4: the fourth is 0, the worst
        (0.5, [NAN, 2, NAN, 1], "-+--"),  # the share is of those that could be scored
        (0.5, [NAN, NAN], "--"),
        (0.5, [], ""),
        (0.5, [7.0], "-"),
    ],
)
def test_the_top_share_is_positive_with_its_ties_and_never_the_worst(top, advantages, expected):
    assert labels(advantages, top=top) == expected


def test_a_share_hears_neither_whatever_it_is_and_the_seed_decides_which():
    advantages = [float(i % 10) for i in range(4000)]
    plain, dropped = labels(advantages, top=0.3), labels(advantages, top=0.3, drop=0.25)
    assert plain.count("+") == 1200 and abs(dropped.count(".") - 1000) < 120  # 4.4 standard deviations
    assert all(d in (p, ".") for p, d in zip(plain, dropped, strict=True)), "the others hear what they would have heard"
    for kind in "+-":
        share = sum(d == "." for p, d in zip(plain, dropped, strict=True) if p == kind) / plain.count(kind)
        assert abs(share - 0.25) < 0.06
    assert labels(advantages, top=0.3, drop=0.25) == dropped != labels(advantages, 1, top=0.3, drop=0.25)
    assert "." not in plain


def test_the_condition_stands_at_the_end_of_the_prompt():
    prompt = Prompt(messages=[user_message("How many?", "picture.png")])
    assert with_condition(prompt, "good").text == "How many?\n\ngood" and with_condition(prompt, "good").images == (
        "picture.png",
    )
    assert with_condition(prompt, "") is prompt
    assert with_condition(Prompt(messages=[{"role": "user", "content": "How many?"}]), "good").text == "How many?\ngood"


# -- relabelled ---------------------------------------------------------------------------------------------------------

ENCODED = []


def encode(prompts):
    ENCODED.extend(prompt.text for prompt in prompts)
    return [SimpleNamespace(ids=torch.tensor(list(prompt.text.encode()))) for prompt in prompts]


def gathered(lengths):
    """Groups of rollouts of these lengths, sampled as if good."""
    groups = []
    for n, sizes in enumerate(lengths):
        prompt = with_condition(Prompt(id=f"p{n}", messages=[{"role": "user", "content": f"p{n}"}]), "good")
        inputs = SimpleNamespace(ids=torch.tensor(list(prompt.text.encode())))
        rollouts = [
            Conversation(
                prompt=prompt,
                group=n,
                turns=(
                    Turn(
                        observed_ids=tuple(inputs.ids.tolist()), token_ids=(5,) * size, logprobs=(-2.0,) * size, text=f"{n}.{k}"
                    ),
                ),
                status=Status.FINISHED,
                inputs=inputs,
            )
            for k, size in enumerate(sizes)
        ]
        groups.append(
            Group(number=n, place=("a", n), prompt=prompt, inputs=inputs, rollouts=rollouts, scores=[Score(0.0)] * len(sizes))
        )
    return Sampled(groups=groups, sampled=groups)


class Plain:
    """The prompts without a condition, by their place."""

    def __getitem__(self, place):
        name = f"p{place[1]}"
        return Prompt(id=name, messages=[{"role": "user", "content": name}])


def shown(found, credit, **config):
    config = ConditionConfig(positive="good", negative="bad", **{"drop": 0.0, "top": 0.5, **config})
    ENCODED.clear()
    answers, credit, share = relabel(found, credit, config, SimpleNamespace(encode=encode), Plain(), 7)
    assert share == sum(r.prompt.text.endswith("good") for r in answers) / len(answers)
    return answers, credit


def test_every_completion_is_trained_under_what_it_deserved():
    found = gathered([[2, 2, 2], [2, 2, 2]])
    answers, credit = shown(found, Credit(advantages=torch.tensor([3.0, -1.0, 2.0, 1.0, -2.0, torch.nan])), top=0.4)
    assert [(r.turns[0].text, r.prompt.text) for r in answers] == [
        ("0.0", "p0\ngood"),
        ("0.1", "p0\nbad"),
        ("0.2", "p0\ngood"),
        ("1.0", "p1\nbad"),
        ("1.1", "p1\nbad"),
        ("1.2", "p1\nbad"),
    ]
    assert credit.advantages.tolist()[:5] == [1.0] * 5 and credit.advantages[5].isnan(), "failed ones stay out"
    assert credit.values_NT is None and credit.returns_NT is None
    for r in answers:
        assert r.turns[0].observed_ids == tuple(r.prompt.text.encode()) == tuple(r.inputs.ids.tolist()), "the packer insists"
        assert r.turns[0].token_ids == (5, 5) and r.turns[0].logprobs == (-2.0, -2.0)
        assert r.off_policy == (not r.prompt.text.endswith("good"))
    assert answers[0].inputs is answers[2].inputs is found.groups[0].inputs and answers[0].prompt is found.groups[0].prompt
    assert ENCODED == ["p0\nbad", "p1\nbad"], "each prompt once"
    assert len({id(r.inputs) for r in answers}) == 3, "rollouts that share a prompt share a row"
    assert [r.group for r in found.rollouts] == [0, 0, 0, 1, 1, 1], "what was gathered is as it was"


def test_what_hears_neither_is_trained_under_the_prompt_as_the_task_has_it():
    found = gathered([[1] * 40])
    answers, credit = shown(found, Credit(advantages=torch.arange(40.0)), drop=0.5)
    texts = {label: [r for r in answers if r.prompt.text == label] for label in ("p0", "p0\ngood", "p0\nbad")}
    assert sum(map(len, texts.values())) == 40 and all(len(rollouts) >= 4 for rollouts in texts.values())
    assert all(r.off_policy for r in texts["p0"]) and credit.advantages.tolist() == [1.0] * 40
    assert len({id(r.inputs) for r in answers}) == 3


def test_an_episode_in_a_simulator_is_trained_under_the_instruction_that_it_deserved():
    nothing = torch.zeros(1, 1)
    track = TrajectoryData(instruction="lift it good", images={}, state=None, choices=nothing, logprobs_TKC=nothing[None],
                  valid_TK=nothing == 0, rewards_TK=nothing)  # fmt: skip
    prompt = with_condition(Prompt(id="p", messages=[], seed=3), "good")
    rollouts = [Trajectory(prompt=prompt, group=0, status=Status.FINISHED, data=track) for _ in range(2)]
    lost = Trajectory(prompt=prompt, group=0, status=Status.ENVIRONMENT_ERROR, data=None)
    group = Group(number=0, place=("a", 0), prompt=prompt, inputs=None, rollouts=[*rollouts, lost], scores=[Score(0.0)] * 3)
    config = ConditionConfig(positive="good", negative="bad", drop=0.0, top=0.5)
    advantages = Credit(advantages=torch.tensor([1.0, 0.0, torch.nan]))
    bare = Prompt(id="p", messages=[], seed=3)
    answers, credit, _ = relabel(Sampled(groups=[group], sampled=[group]), advantages, config, None, {("a", 0): bare}, 7)
    assert [r.data and r.data.instruction for r in answers] == ["lift it good", "lift it bad", None]
    assert credit.advantages.isnan().tolist() == [False, False, True]
    assert answers[1].answering(bare, None).data.instruction == "lift it"


def test_credit_of_tokens_is_averaged_over_the_tokens_that_there_are():
    """Means 1 and 0.9; over the padding too they would be 0.5 and 0.9. A failed row is NaN throughout."""
    advantages = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.9, 0.9, 0.9, 0.9], [torch.nan] * 4, [-5.0, 0.0, 0.0, 0.0]])
    answers, credit = shown(gathered([[2, 4, 3, 1]]), Credit(advantages=advantages), top=0.34)
    assert [r.prompt.text for r in answers] == ["p0\ngood", "p0\nbad", "p0\nbad", "p0\nbad"]
    assert credit.advantages.isnan().tolist() == [False, False, True, False] and credit.advantages.ndim == 1


def test_a_step_that_nothing_is_learned_from_stays_out_as_a_whole():
    answers, credit = shown(gathered([[1, 1]]), Credit(advantages=torch.full((2,), torch.nan)))
    assert credit.advantages.isnan().all() and [r.prompt.text for r in answers] == ["p0\nbad"] * 2
