"""Self-play: what proposals are, what they pay against VisPlay's released code, and in a step."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmrl_vqa.self_play.proposals import (
    Proposal,
    agreement,
    canonical,
    cluster_shares,
    difficulty,
    distances,
    read,
    well_formed,
    written,
)
from mmrl_vqa.self_play.propose import Propose
from mmrl_vqa.self_play.rule import SelfPlay
from mmrl_vqa.table import Table

from mmrl import Case, Prompt, UserError, user_message
from mmrl.api.sampling import Group
from mmrl.api.types import Score
from mmrl.registry.plugins import registry
from mmrl.run_folder.figures import metric_name

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "visplay.jsonl"
*STEPS, TEXTS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def test_distances_and_clusters_are_those_of_the_released_code():
    assert numpy.abs(distances(TEXTS["texts"]) - numpy.array(TEXTS["distances"])).max() < 1e-11
    assert cluster_shares(TEXTS["texts"]) == TEXTS["shares"] and len(set(TEXTS["shares"])) > 2
    assert cluster_shares(["one"]) == [1.0] and cluster_shares([]) == []


@given(st.lists(st.sampled_from(["<type>", "</type>", "<question>", "</question>", "<answer>", "</answer>", " \n", "a / b"])))
def test_what_is_written_is_read(pieces):
    text = "".join(pieces)
    found = read(text)
    assert found is None or all(f"<{name}>" in text for name in Proposal._fields)
    proposal = Proposal("numerical", "How many?", "3")
    assert read(written(proposal)) == proposal and (found is None) is (read(f" {text}\n") is None)


@pytest.mark.parametrize(
    "type, answer, kind, said, vote",
    [
        ("multiple choice", "B", "choice", "(b) red", "B"),
        ("multiple choice", "B", "choice", "a red car", "red car"),
        ("multiple choice", "Yes", "yes-no", "Yes.", "yes"),
        ("numerical", "3", "number", "3.0 apples", "3"),
        ("regression", "0.5", "number", "about half", "about half"),
        ("essay", "red", "text", "The Red", "red"),
    ],
)
def test_answers_vote_by_their_kind(type, answer, kind, said, vote):
    assert Proposal(type, "q", answer).kind == kind and canonical(said, kind) == vote


def test_a_question_pays_where_its_answers_are_at_odds():
    assert [difficulty(v) for v in (["1"] * 4, ["1", "1", "2", "3"], ["1", "", "", ""], [""])] == [0.0, 0.5, 0.25, 0.0]
    assert [agreement(v) for v in (["1"] * 4, ["1", "1", "2", ""], [""])] == [1.0, 2 / 3, 0.0]


class Sampler:
    """Answers each posed question with the next row."""

    def __init__(self, answers, **tasks):
        self.answers, self.tasks, self.posed = answers, tasks, []

    seed = 5

    def task(self, label):
        return self.tasks[label.replace("/", "_")]

    def again(self, groups, prompt_of):
        assert len({group.number for group in groups}) == len(groups), "groups of one number are one group to the engine"
        prompts = [prompt_of(group) for group in groups]
        self.posed += prompts
        return [
            group_of(g.number, p, [f"<answer>{a}</answer>" for a in self.answers[p.id]])
            for g, p in zip(groups, prompts, strict=True)
        ]


def group_of(number, prompt, completions):
    rollouts = [SimpleNamespace(completion=completion, environment_reward=0.0) for completion in completions]
    scores = [Score(0.0) for _ in completions]
    return Group(number=number, place=(prompt.task, number), prompt=prompt, inputs=None, rollouts=rollouts, scores=scores)


@pytest.fixture
def solver():
    return Table(path="assets/samples/questions.jsonl", style="short")


def played(row, solver, **options):
    """(the groups that a step goes on with, the group of proposals, the sampler)."""
    prompt = Prompt(id="p", task="vqa/propose", messages=[user_message("Ask.", "a.png")], seed=4)
    asking, other = group_of(0, prompt, row["completions"]), group_of(1, Prompt(id="o", task="x", messages=[]), ["a"])
    answers = {f"p-{n}": said for n, said in enumerate(row["answers"])}
    sample = Sampler(answers, vqa_propose=Propose(), vqa_table=solver)
    return SelfPlay(**options)([asking, other], sample), asking, sample


@pytest.mark.parametrize("row", STEPS, ids=range(len(STEPS)))
def test_proposals_are_paid_as_by_the_released_code(row, solver):
    found = [read(completion) for completion in row["completions"]]
    whole = [list(one) if one and one.is_whole else None for one in found]
    assert whole == row["parsed"] and "VisPlay @3aa895b" in row["how"]
    assert [well_formed(Case(completion=c, answer=None)) for c in row["completions"]] == [float(w is not None) for w in whole]
    _, asking, sample = played(row, solver)
    assert [score.value for score in asking.scores] == pytest.approx(row["rewards"], abs=1e-9)
    assert len(sample.posed) == sum(w is not None for w in whole)


def test_a_step_trains_on_both_roles(solver):
    asked = [Proposal("numerical", f"How many {what}?", "9") for what in ("red cars", "dogs at all", "men with hats")]
    row = {"completions": [*map(written, asked), "no question"], "answers": [["1", "1", "2", ""], ["3"] * 4, list("4567")]}
    found, asking, _ = played(row, solver)
    assert [group.prompt.id for group in found] == ["o", "p", "p-0"]  # all agree on p-1, nobody on p-2
    answers = found[2]
    assert [score.value for score in answers.scores] == [1.0, 1.0, 0.0, 0.0], "the majority is right, whatever was proposed"
    assert "How many red cars?" in answers.prompt.text and answers.prompt.images == ("a.png",) and answers.prompt.seed == 4
    assert [group.prompt.id for group in asking.others] == ["p-0", "p-1", "p-2"] and answers.prompt.task == "vqa/table"
    assert [score.value for score in asking.scores] == pytest.approx([0.5 - 0.25, -0.25, 0.25 - 0.25, -1.25])
    counts = SelfPlay().counts([asking, *asking.others])
    assert counts == pytest.approx(
        {
            "sampling/questions": 3,
            "sampling/questions_fit": 1,
            "sampling/questions_share": 0.75,
            "sampling/agreement": (2 / 3 + 1 + 0.25) / 3,
        }
    )
    assert [g.prompt.id for g in played(row, solver, train="questioner")[0]] == ["o", "p"]
    assert [g.prompt.id for g in played(row, solver, train="solver")[0]] == ["o", "p-0"]
    drawn = [g.prompt.id for g in played(row, solver, train="solver", most=1.0)[0]]
    assert drawn in (["o", "p-0"], ["o", "p-1"]) and drawn == [
        g.prompt.id for g in played(row, solver, train="solver", most=1.0)[0]
    ], "learner processes must draw the same"
    assert len(played(row, solver, train="solver", most=1.0, questions=3)[0]) == 3
    free = played(row, solver, repetition=0.0)[1]
    assert [score.value for score in free.scores] == pytest.approx([0.5, 0.0, 0.25, -1.0])


def test_the_gold_question_has_a_right_answer(tmp_path):
    from PIL import Image

    for name, box in (("left", (0, 0, 32, 64)), ("lower", (0, 32, 64, 64))):
        picture = Image.new("RGB", (64, 64), "black")
        picture.paste("white", box)
        picture.save(tmp_path / f"{name}.png")
    task = Propose(path=str(tmp_path), size=0)
    answers = {p.id: read(task.gold(p)).answer for split in task.source.ids for p in task.prompts(split, 0)}
    assert answers == {"left.png": "A", "lower.png": "D"}


@pytest.mark.parametrize(
    "options, why",
    [
        ({"train": "all"}, "train = 'all' is unknown"),
        ({"least": 0.9}, "the lower one first"),
        ({"most": float("nan")}, "must be shares from 0 to 1"),
        ({"repetition": -1}, "repetition = -1 must be a number from 0"),
        ({"questions": 0}, "questions = 0"),
        ({"solver": 3}, "solver = 3"),
    ],
)
def test_options_that_can_not_work_are_refused(options, why):
    with pytest.raises(UserError, match=why):
        SelfPlay(**options)


def test_a_share_of_well_formed_questions_is_not_called_accuracy():
    spec = registry().get("verifiers", "vqa/proposal")
    assert metric_name(spec) == "vqa/proposal"


def test_tasks_that_can_not_play_are_refused(solver):
    SelfPlay().check_tasks({"vqa/propose": Propose(), "vqa/table": solver})
    with pytest.raises(UserError, match="questioner = 'vqa/propose' is no task of the run"):
        SelfPlay().check_tasks({"vqa/table": solver})
    maye = Table(path="assets/samples/questions.jsonl", style="maye")
    for task in (Propose(), maye):
        with pytest.raises(UserError, match="must be a task of questions in a table"):
            SelfPlay().check_tasks({"vqa/propose": Propose(), "vqa/table": task})
    with pytest.raises(UserError, match="size = 12"):
        Propose(size=12)
