"""Steps of a million rows are counted by what is alike in them, with the numbers of one row after the other."""

import time
from dataclasses import replace

import pytest

from mmrl.config.load import parse_config
from mmrl.train.plan import predict
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.attention import BLOCK, blocks
from mmrl.train.plan.machines import GPUS
from mmrl.train.plan.published import PUBLISHED
from mmrl.train.plan.workload import MOST, Sizes, dealt, workload

SHAPES = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "it")


def run_file(budget, stage, packing="shared-prefix"):
    data = {"name": "x", "tasks": [{"id": "classification/digits"}], "policy": {"model": "Qwen/Qwen2.5-VL-3B"}}
    train = {"micro_batch_tokens": budget, "packing": packing}
    return parse_config(data | {"stages": [{"kind": "rl", "steps": 1, **stage}], "train": train})


def one_by_one(groups, prompt, completion, budget):
    """Completions in each row of each micro-batch."""
    most = max(1, (budget - prompt) // completion)
    members = sorted(min(most, size - start) for size in groups for start in range(0, size, most))
    made = [[]]
    for n in members:
        if made[-1] and (len(made[-1]) + 1) * (prompt + n * completion) > budget:
            made.append([])
        made[-1].append(n)
    return made


@pytest.mark.parametrize("minibatches", [1, 3, 50])
@pytest.mark.parametrize("budget", [10, 700, 2000, 9000, 10**9])
def test_micro_batches_are_those_that_are_filled_row_by_row(budget, minibatches):
    stage = {"prompts_per_step": 9, "group_size": 7, "minibatches": minibatches, "noisy": {"share": 0.5}}
    config = run_file(budget, stage)
    work = workload(config, config.stages[0], SHAPES, Sizes(text=100, images=0, completion=90))
    groups = [size for n, size in work.trained for _ in range(n)]
    parts = [part for k in range(minibatches) if (part := groups[k::minibatches])]
    rows = [each for part in parts for each in one_by_one(part, work.prompt_tokens, 90, budget)]
    assert sorted(sorted(n for n, many in m.members for _ in range(many)) for m in work.micro.elements()) == sorted(rows)
    assert sum(m.targets for m in work.micro.elements()) == 90 * sum(groups) and work.updates == len(parts)


def test_groups_of_several_sizes_are_dealt_in_turn():
    groups = [5] * 4 + [2] * 3
    found = {part: n for part, n in dealt(((4, 5), (3, 2)), 3).items()}
    turns = [groups[k::3] for k in range(3)]
    assert turns == [[5, 5, 2], [5, 2], [5, 2]] and found == {((5, 2), (2, 1)): 1, ((5, 1), (2, 1)): 2}


@pytest.mark.parametrize(
    "stage",
    [
        {"prompts_per_step": 1, "group_size": MOST},
        {"prompts_per_step": MOST // 64, "group_size": 64, "minibatches": 8},
        {"kind": "sft", "batch_size": MOST},
    ],
)
def test_a_step_of_a_billion_tokens_is_planned_in_seconds(stage):
    """A row of all of them has eight million blocks of 128, and the advice looks at a hundred settings."""
    config = run_file(10**9, stage)
    config = config.model_copy(update={"generate": config.generate.model_copy(update={"max_tokens": 4097})})
    start = time.process_time()
    plan = predict(config, replace(GPUS["h200"], name="x"), online=False)
    assert time.process_time() - start < 20 and plan.changes
    work = plan.stages[0].work
    assert sum(m.targets * n for m, n in work.micro.items()) == MOST * work.completion
    assert len(work.micro) < 9


def test_blocks_of_a_long_row_by_hand():
    """Completions of whole blocks behind a prompt of ten: each sees the prompt and itself."""
    whole, many = 32 * BLOCK, 2**20
    assert blocks(10 * BLOCK, whole, many) == 10 * 11 // 2 + many * (32 * 10 + 32 * 33 // 2)
