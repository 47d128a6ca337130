"""The expert does every task, from any start, and is clumsy only on purpose."""

from collections.abc import Callable

import pytest
import torch
from mmrl_tabletop import VARIANTS
from mmrl_tabletop.settings import TASKS
from mmrl_tabletop.table import Table

from mmrl.testing.cases import mostly_slow

N = 256


def run(table: Table, seeds: range, variant: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(whether, after how many steps) the expert succeeds within the horizon, without drawing anything."""
    table._renderer = lambda scene: {}
    table.reset(torch.tensor(list(seeds)), variant=variant)
    return finish(table)


def finish(table: Table) -> tuple[torch.Tensor, torch.Tensor]:
    """`run` from wherever the environments are."""
    done, steps = torch.zeros(table.num_envs, dtype=torch.bool), torch.zeros(table.num_envs)
    for step in range(1, table.max_steps + 1):
        moved = table.step(table.expert(), ~done)
        new = moved.success_N & ~done
        steps[new] = step
        done = done | new
    return done, steps


@pytest.mark.parametrize("distractors,dims", mostly_slow([(0, 7), (1, 4), (2, 7), (4, 4)], everyday=1))
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_succeeds(table: Callable[..., Table], task: str, dims: int, distractors: int) -> None:
    done, steps = run(table(N, task=task, dims=dims, distractors=distractors), range(5000, 5000 + N))
    assert done.float().mean() >= 0.95
    assert steps[done].mean() < 0.7 * table(1, task=task).max_steps, "the horizon leaves room for a policy"


@pytest.mark.parametrize(
    "options",
    mostly_slow(
        [{"radius": 0.05}, {"radius": 0.08}, {"alike": True, "distractors": 3}, {"step": 0.06, "horizon": 48}], everyday=1
    ),
)
@pytest.mark.parametrize("task", TASKS)
def test_with_other_options(table: Callable[..., Table], task: str, options: dict) -> None:
    assert run(table(N, task=task, **options), range(7000, 7000 + N))[0].float().mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("task", mostly_slow(TASKS, everyday=1))
def test_variants_can_be_done(table: Callable[..., Table], task: str) -> None:
    """All variants side by side, 64 environments each."""
    one = table(64 * len(VARIANTS), task=task, horizon=40)
    one._renderer = lambda scene: {}
    for k, variant in enumerate(VARIANTS):
        one.reset(torch.arange(900, 964), torch.arange(64 * k, 64 * (k + 1)), variant=variant)
    rates = finish(one)[0].view(len(VARIANTS), 64).float().mean(1).tolist()
    assert {v: rate for v, rate in zip(VARIANTS, rates, strict=True) if rate < 0.9} == {}


@pytest.mark.parametrize("task", mostly_slow(TASKS, everyday=1))
def test_it_recovers_from_any_state(table: Callable[..., Table], task: str) -> None:
    """Memoryless: after random actions it goes on to success, unless something fell off the table."""
    one = table(N, task=task, horizon=60)
    one._renderer = lambda scene: {}
    seeds = torch.arange(N)
    one.reset(seeds)
    generator = torch.Generator().manual_seed(0)
    every = torch.ones(N, dtype=torch.bool)
    for _ in range(8):
        lost = one.step(torch.rand(N, 7, generator=generator) * 2 - 1, every).terminated_N
    done = torch.zeros(N, dtype=torch.bool)
    for _ in range(60):
        done |= one.step(one.expert(), every & ~done).success_N
    assert done[~lost].float().mean() >= 0.9


def test_slop_makes_it_worse_and_never_out_of_range(table: Callable[..., Table]) -> None:
    rates = [run(table(N, task="put-on", expert_slop=slop), range(N))[0].float().mean().item() for slop in (0.0, 0.6, 1.0)]
    assert rates[0] > 0.98 > rates[1] > rates[2]


def test_slop_comes_from_the_seed(table: Callable[..., Table]) -> None:
    one = table(3, expert_slop=1.0)
    one.reset(torch.tensor([5, 6, 5]))
    wanted = one.expert()
    assert (wanted[0] == wanted[2]).all() and not (wanted[0] == wanted[1]).all()
    assert (one.expert() == wanted).all()
