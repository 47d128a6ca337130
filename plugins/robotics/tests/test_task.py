"""Tasks that act: which starts are in which split, what is paid, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from mmrl_robotics.task import CALLS, Episodes
from mmrl_robotics.verifiers import at_end, quick, success

from mmrl import Case, UserError
from mmrl.api.simulators.types import potential

GOLDEN = Path(__file__).parents[4] / "shared" / "golden" / "algorithms.jsonl"


def test_no_start_is_in_two_splits_and_all_are_the_same_everywhere():
    task = Episodes(simulator="tabletop/table", demos=50, starts=300, held_out=40)
    seeds = {split: {p.seed for p in task.prompts(split, 0)} for split in task.splits}
    assert [len(seeds[s]) for s in ("demo", "train", "test")] == [50, 300, 40]
    assert not seeds["demo"] & seeds["train"] and not seeds["train"] & seeds["test"] and not seeds["demo"] & seeds["test"]
    assert [p.id for p in task.prompts("test", 0)[:2]] == ["test-0", "test-1"]
    ids = [p.id for split in task.splits for p in task.prompts(split, 0)]
    assert len(set(ids)) == len(ids)
    demo = task.prompts("demo", 0)
    assert len(demo) == 50 * CALLS and [p.meta["call"] for p in demo[:CALLS]] == list(range(CALLS))
    assert len({p.seed for p in demo[:CALLS]}) == 1, "moments of one episode"


def test_a_variant_is_for_what_is_trained_and_held_out_and_not_for_demonstrations():
    task = Episodes(simulator="tabletop/table", variant="vision.texture-05", demos=2)
    assert task.prompts("test", 0)[0].meta["variant"] == task.prompts("train", 0)[0].meta["variant"] == "vision.texture-05"
    assert "variant" not in task.prompts("demo", 0)[0].meta


@pytest.mark.parametrize(
    "options, message",
    [
        ({"demos": 0}, "demos = 0 must be a whole number from 1"),
        ({"starts": "many"}, "starts = 'many' must be a whole number"),
        ({"max_steps": 0}, "max_steps = 0 must be a whole number from 1"),
        ({"reward": "dense"}, "reward = 'dense' is unknown: choose one of stages, own, none"),
        ({"stages": {"grasped": "much"}}, r"stages.grasped = 'much' must be a number"),
        ({"stages": {"grasped": float("nan")}}, r"stages.grasped = nan must be a number"),
        ({"until_success": True}, "the option 'until_success' is called 'terminate_on_success' since version 0.2: rename it"),
        ({"potential_based": "yes"}, "potential_based = 'yes' must be true or false"),
        ({"time_limit_terminates": 1}, "time_limit_terminates = 1 must be true or false"),
        ({"potential_based": True, "reward": "own"}, 'potential_based = true is for stages, and reward = "own" has none'),
        ({"potential_based": False, "reward": "none"}, 'potential_based = false is for stages, and reward = "none" has none'),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        Episodes(simulator="tabletop/table", **options)


def test_the_difference_is_what_stages_pay_unless_it_is_switched_off():
    paid = [Episodes(simulator="tabletop/table", **options).simulation for options in ({}, {"potential_based": False})]
    assert [(s.reward, s.potential_based) for s in paid] == [("stages", True), ("stages", False)]
    assert Episodes(simulator="tabletop/table", reward="own").simulation.reward == "own"


def test_what_an_episode_was_worth():
    case = Case(completion="", outcome={"success": 1.0, "success_at_end": 0.0, "steps": 20.0})
    assert (success(case), at_end(case), quick(case), quick(case, limit=10)) == (1.0, 0.0, pytest.approx(0.9), 0.5)
    assert quick(Case(completion="", outcome={"success": 0.0, "success_at_end": 0.0, "steps": 3.0})) == 0.0


ROWS = [  # of the published function: grasped, held for five steps, success, the potential before, what it paid
    (0, 0, 0, 0.0, 0.0),
    (1, 0, 0, 0.0, 0.1),
    (1, 1, 0, 0.1, 0.1),
    (1, 1, 1, 0.2, 1.0),
    (1, 1, 1, 1.2, 0.0),
    (0, 0, 0, 1.2, -1.2),
    (0, 0, 1, 0.0, 0.0),
]


def paid(grasped, held, solved, before):
    stages = {"grasped": 0.1, "held": 0.1, "grasped & success": 1.0}
    parts = {"grasped": grasped, "held": held, "success": solved}
    return float(potential(stages, {k: torch.tensor([float(v)]) for k, v in parts.items()})[0]) - before


@pytest.mark.parametrize("grasped, held, solved, before, wanted", ROWS)
def test_stages_are_rl4vlas(grasped, held, solved, before, wanted):
    assert paid(grasped, held, solved, before) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.skipif(not GOLDEN.exists(), reason="the table of published values isn't here")
def test_stages_are_those_of_the_published_table():
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    rows = [r for r in rows if r["system"] == "RL4VLA"]
    assert len(rows) >= 7
    for row in rows:
        given = row["inputs"]
        found = paid(given["is_src_obj_grasped"], given["consecutive_grasp"], given["success"], given["previous_potential"])
        assert found == pytest.approx(row["value"], abs=1e-6)
