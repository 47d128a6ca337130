"""What a simulator is asked: what can be meant passes as it is, and the rest is refused in one line."""

import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.checks import check_count, check_states, check_variant, checked_actions, checked_ids, checked_seeds

ALL = torch.ones(3, dtype=torch.bool)


def test_what_can_be_meant_passes() -> None:
    assert checked_ids(None, 3, "cpu").tolist() == [0, 1, 2]
    assert checked_ids(torch.tensor([2, 0]), 3, "cpu").tolist() == [2, 0]
    assert checked_ids(torch.tensor([], dtype=torch.int64), 3, "cpu").tolist() == []
    assert checked_seeds(torch.tensor([-5, 2**62]), 2, "cpu").tolist() == [-5, 2**62]
    check_count("toy", 1)
    check_states("toy", 2, 2)
    for variant in (None, "far"):
        check_variant("toy", variant, ("far",))


def test_actions_are_clipped_and_those_of_idle_rows_are_nothing() -> None:
    given = torch.tensor([[0.5, -7.0], [torch.nan, 1.0], [torch.inf, 0.0]], dtype=torch.float64)
    actions, active = checked_actions(given, torch.tensor([True, False, True]), 3, 2, "cpu")
    assert actions.dtype == torch.float32 and active.tolist() == [True, False, True]
    assert actions.tolist() == [[0.5, -1.0], [0.0, 0.0], [1.0, 0.0]]
    assert given[0, 1] == -7, "what was given is not changed"


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda: check_count("toy", 0), "toy: num_envs = 0 must be a whole number of 1 or more"),
        (lambda: check_count("toy", True), "num_envs = True must be"),
        (lambda: check_count("toy", 2.0), "num_envs = 2.0 must be"),
        (
            lambda: checked_ids(torch.tensor([0, 0]), 3, "cpu"),
            r"env_ids_n must be int64 \[n\] without repetitions, not torch.int64 \[2\]",
        ),
        (
            lambda: checked_ids(torch.tensor([0.0]), 3, "cpu"),
            r"env_ids_n must be int64 \[n\] without repetitions, not torch.float32 \[1\]",
        ),
        (
            lambda: checked_ids(torch.tensor(1), 3, "cpu"),
            r"env_ids_n must be int64 \[n\] without repetitions, not torch.int64 \[\]",
        ),
        (lambda: checked_ids(torch.tensor([3]), 3, "cpu"), r"env_ids_n = \[3\] must be from 0 to 2: there are 3 environments"),
        (lambda: checked_ids(torch.tensor([-1]), 3, "cpu"), r"env_ids_n = \[-1\] must be from 0 to 2"),
        (
            lambda: checked_seeds(torch.tensor([1]), 2, "cpu"),
            r"the seeds of 2 environments must be int64 \[2\], not torch.int64 \[1\]",
        ),
        (lambda: checked_seeds(torch.tensor([1.0, 2.0]), 2, "cpu"), r"must be int64 \[2\], not torch.float32 \[2\]"),
        (lambda: check_variant("toy", "fair", ("far", "near")), "toy has no variant 'fair': it has far, near"),
        (lambda: check_variant("toy", "far", ()), "toy has no variant 'far': it has none"),
        (lambda: checked_actions(torch.zeros(3, 3), ALL, 3, 2, "cpu"), r"actions must be float32 \[3, 2\], .* \[3, 3\]"),
        (lambda: checked_actions(torch.zeros(6), ALL, 3, 2, "cpu"), r"must be float32 \[3, 2\], not torch.float32 \[6\]"),
        (lambda: checked_actions(ALL[:, None].expand(3, 2), ALL, 3, 2, "cpu"), "not torch.bool"),
        (lambda: checked_actions(torch.zeros(3, 2), ALL.float(), 3, 2, "cpu"), r"active must be bool \[3\], .*float32"),
        (lambda: checked_actions(torch.zeros(3, 2), ALL[:2], 3, 2, "cpu"), r"active must be bool \[3\], not torch.bool \[2\]"),
        (
            lambda: checked_actions(torch.tensor([[0.0, 0.0], [0.0, torch.nan], [0.0, 0.0]]), ALL, 3, 2, "cpu"),
            "the action of environment 1 has NaN: check the policy's output",
        ),
        (lambda: check_states("toy", 2, 1), "toy: 2 environments can't be put into 1 states"),
    ],
)
def test_the_rest_is_refused(ask, message) -> None:
    with pytest.raises(UserError, match=message) as error:
        ask()
    assert "\n" not in str(error.value)
