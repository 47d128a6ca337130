"""Normalised, physical and simulated numbers of actions: the published arithmetic, and back; what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from mmrl_robotics.small import Small

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import ActionSpec, Observation, TrajectoryData, units_of_bounds
from mmrl.api.specs import SimulatorSpec
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.units import GRIPPERS, Units, load_statistics, simulator_units

ACTION = {
    "mean": [0.01, 0.0, -0.02, 0.001, 0.0, 0.0, 0.6],
    "std": [0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.5],
    "min": [-0.4, -0.4, -0.4, -1.0, -1.0, -1.0, 0.0],
    "max": [0.4, 0.4, 0.4, 1.0, 1.0, 1.0, 1.0],
    "q01": [-0.03, -0.04, -0.03, -0.08, -0.09, -0.2, 0.0],
    "q99": [0.028, 0.041, 0.04, 0.081, 0.077, 0.2, 1.0],
    "mask": [True] * 6 + [False],
}
UNITS = (0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 1.0)
SPEC = SimulatorSpec(id="some/arm", target="-:-", action=ActionSpec(dims=7, gripper=6, units=UNITS))


def written(folder, data, name="stats.json"):
    (folder / name).write_text(json.dumps(data))
    return str(folder / name)


def openvla(folder, **sets):
    norm_stats = {name: {"action": action, "proprio": {}, "num_trajectories": 3} for name, action in sets.items()}
    return written(folder, {"model_type": "openvla", "norm_stats": norm_stats}, "config.json")


def policy(folder=None, **options):
    if folder is not None:
        options = {"statistics": openvla(folder, bridge_orig=ACTION), "gripper": "open-high", **options}
    return Small(PolicyConfig(model="mlp", kind="robotics/small"), seed=1, dims=7, state=3, hidden=[8], **options)


def test_quantiles_are_openvlas_arithmetic(tmp_path):
    """Against its `predict_action`, in numpy."""
    statistics = load_statistics(openvla(tmp_path, bridge_orig=ACTION), "bridge_orig")
    n = np.random.default_rng(0).uniform(-1, 1, (50, 7))
    low, high = np.array(ACTION["q01"]), np.array(ACTION["q99"])
    wanted = np.where(ACTION["mask"], 0.5 * (n + 1) * (high - low) + low, n)
    found = statistics.action.unnormalize(torch.from_numpy(n))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-9)
    assert statistics.action.unnormalize(-torch.ones(7)).tolist()[:6] == pytest.approx(ACTION["q01"][:6])
    assert statistics.action.unnormalize(torch.ones(7)).tolist()[:6] == pytest.approx(ACTION["q99"][:6])


@pytest.mark.parametrize("kind", ["quantiles", "min-max", "mean-std"])
def test_there_and_back(kind, tmp_path):
    statistics = load_statistics(openvla(tmp_path, some=ACTION), kind=kind)
    n = torch.rand(1000, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    torch.testing.assert_close(statistics.action.normalize(statistics.action.unnormalize(n)), n, atol=1e-6, rtol=1e-6)
    mean = statistics.action.unnormalize(torch.zeros(7))
    middle = {"quantiles": ("q01", "q99"), "min-max": ("min", "max"), "mean-std": ("mean", "mean")}[kind]
    assert mean[:6].tolist() == pytest.approx([(ACTION[middle[0]][i] + ACTION[middle[1]][i]) / 2 for i in range(6)], abs=1e-7)


@pytest.mark.parametrize("convention", sorted(GRIPPERS))
def test_grippers(convention):
    units = simulator_units("x", SPEC.action, convention)
    opened, closed = GRIPPERS[convention]
    physical = torch.zeros(4, 7)
    physical[:, 6] = torch.tensor([opened, closed, 0.6 * opened + 0.4 * closed, 0.4 * opened + 0.6 * closed])
    simulated = units.simulated(physical)
    assert simulated[:, 6].tolist() == [-1, 1, -1, 1], "ours opens below 0"
    assert units.physical(simulated)[:, 6].tolist() == [opened, closed, opened, closed]


def test_units_lead_to_the_simulators_numbers():
    units = simulator_units("x", SPEC.action, "open-high")
    physical = torch.tensor([[0.05, -0.1, 0.3, 0.15, -0.3, 0.0, 1.0]])
    assert units.simulated(physical)[0].tolist() == pytest.approx([0.5, -1, 1, 0.5, -1, 0, -1], abs=1e-6)
    turned = Units(sizes=(0.1, -0.1), gripper=None)
    assert turned.simulated(torch.tensor([0.05, 0.05])).tolist() == pytest.approx([0.5, -0.5])
    assert turned.physical(torch.tensor([0.5, -0.5])).tolist() == pytest.approx([0.05, 0.05])


def test_numbers_of_an_environment_itself_may_lie_around_another_than_0():
    """PushT's are pixels, 0 to 512; the second of these goes from -1 to 3."""
    spec = ActionSpec(dims=2, **units_of_bounds(([0.0, -1.0], [512.0, 3.0])))
    assert (spec.units, spec.offsets) == ((256.0, 2.0), (256.0, 1.0))
    units = simulator_units("x", spec, "")
    own = torch.tensor([[0.0, -1.0], [512.0, 3.0], [128.0, 1.0], [600.0, 2.0]])
    assert units.simulated(own).tolist() == [[-1, -1], [1, 1], [-0.5, 0], [1, 0.5]], "what is beyond is clipped"
    assert units.physical(units.simulated(own))[:3].tolist() == own[:3].tolist()
    assert units_of_bounds(None) == {} == units_of_bounds(([0.0, 1.0], [1.0, 1.0])), "an empty range has no unit"
    for offsets in ((1.0,), (1.0, float("nan"))):
        with pytest.raises(ValueError, match="must be as many finite numbers as there are units, 2"):
            ActionSpec(dims=2, units=(1.0, 1.0), offsets=offsets)


def test_a_gripper_is_opened_and_closed_whatever_its_offset():
    units = Units(sizes=(1.0, 0.5), offsets=(1.0, 7.0), gripper=1, convention="open-high")
    assert units.simulated(torch.tensor([1.5, 1.0])).tolist() == [0.5, -1.0]
    assert units.physical(torch.tensor([0.5, 1.0])).tolist() == [1.5, 0.0]


def test_a_policy_acts_in_the_simulators_numbers_and_imitates_in_its_own(tmp_path):
    plain, scaled = policy(), policy(tmp_path)
    scaled.fits("t", None, SPEC)
    seen = Observation(images={}, state=torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), instructions=["x"] * 5)
    seeds = torch.arange(5)
    one, two = (p.act(seen, seeds, seeds, 1.0) for p in (plain, scaled))
    assert torch.equal(one.choices, two.choices) and torch.equal(one.logprobs_nKC, two.logprobs_nKC)
    n = one.choices
    assert torch.equal(two.actions_nKA, scaled.units.simulated(scaled.statistics.action.unnormalize(n)))
    assert not torch.equal(two.actions_nKA, n)

    shown = torch.tensor([[0.2, -0.3, 0.1, 0.25, -0.2, 0.5, -1.0], [0.1, 0.0, 0.0, 0.0, 0.0, 0.1, 1.0]])
    track = TrajectoryData(
        instruction="x",
        images={},
        state=torch.zeros(3, 3),
        choices=shown[:, None],
        logprobs_TKC=torch.full((2, 1, 1), torch.nan),
        valid_TK=torch.ones(2, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(2, 1),
    )
    assert torch.equal(plain.chunked(track).choices[:, 0], shown)
    learned = scaled.chunked(track).choices[:, 0]
    torch.testing.assert_close(scaled.simulated(learned), shown, atol=1e-6, rtol=1e-5)
    assert learned[:, 6].tolist() == [1.0, 0.0], "open is 1 in the data"
    physical = scaled.units.physical(shown)
    again = scaled.chunked(
        TrajectoryData(**{f: getattr(track, f) for f in TrajectoryData.__slots__} | {"choices": physical[:, None]}), physical=True
    )
    assert torch.equal(again.choices[:, 0], learned)
    with pytest.raises(UserError, match="the actions have physical units, and the policy has no statistics"):
        plain.chunked(track, physical=True)


def test_numbers_beyond_one_are_cut_by_the_simulator_alone(tmp_path):
    """With means and standard deviations, 2 is nothing strange."""
    options = {"spread": 3.0, "statistics": openvla(tmp_path, a=ACTION), "statistics_kind": "mean-std", "gripper": "open-high"}
    mine = policy(**options)
    mine.fits("t", None, SPEC)
    seen = Observation(images={}, state=torch.zeros(40, 3), instructions=["x"] * 40)
    found = mine.act(seen, torch.arange(40), torch.arange(40), 1.0)
    n = found.choices[:, 0]
    assert (n.abs() > 2).any()
    wanted = n.double()[:, :6] * torch.tensor(ACTION["std"][:6]) + torch.tensor(ACTION["mean"][:6])
    wanted = (wanted / torch.tensor(UNITS[:6])).clamp(-1, 1).float()
    torch.testing.assert_close(found.actions_nKA[:, 0, :6], wanted, atol=1e-6, rtol=1e-5)
    plain = policy(spread=3.0).act(seen, torch.arange(40), torch.arange(40), 1.0)
    assert plain.actions_nKA.abs().max() == 1 and (plain.choices.abs() > 2).any()


def test_a_checkpoint_keeps_its_statistics(tmp_path):
    mine = policy(tmp_path)
    mine.save(tmp_path / "saved")
    (tmp_path / "config.json").unlink()
    saved = json.loads((tmp_path / "saved" / "acting.json").read_text())
    again = Small(
        PolicyConfig(model=str(tmp_path / "saved"), kind="robotics/small"),
        dims=7,
        state=3,
        hidden=[8],
        statistics=saved["statistics"],
        gripper=saved["gripper"],
        statistics_key="bridge_orig",
    )
    assert again.statistics == mine.statistics and again.gripper == "open-high"
    with pytest.raises(UserError, match="holds a policy with statistics of its data, and the run file has none"):
        policy().load(tmp_path / "saved")
    other = {**ACTION, "q99": [0.05] * 6 + [1.0]}
    with pytest.raises(UserError, match="holds a policy with statistics = "):
        policy(statistics=openvla(tmp_path, bridge_orig=other), gripper="open-high").load(tmp_path / "saved")
    with pytest.raises(UserError, match="statistics_key = 'fractal', and the policy's own statistics have 'bridge_orig'"):
        load_statistics(saved["statistics"], "fractal")


def test_layouts_of_others(tmp_path):
    ours = {k: v for k, v in ACTION.items() if k != "mask"}
    openpi = {
        "norm_stats": {"actions": ours, "state": {"mean": [1.0, 2.0], "std": [1.0, 4.0], "q01": [0.0, 0.0], "q99": [1.0, 1.0]}}
    }
    found = load_statistics(written(tmp_path, openpi), kind="mean-std")
    assert found.action.mask == (True,) * 7 and found.state.normalize(torch.tensor([2.0, 10.0])).tolist() == [1.0, 2.0]
    lerobot = {"action": {k: ACTION[k] for k in ("mean", "std")}, "observation.state": {"mean": [0.0], "std": [2.0]}}
    found = load_statistics(written(tmp_path, lerobot))
    assert found.action.kind == "mean-std" and found.state.unnormalize(torch.tensor([1.0])).tolist() == [2.0]
    still = {"action": {"mean": [0.0], "std": [1.0]}, "state": {"mean": [3.0, 0.0], "std": [0.0, 2.0]}}
    assert load_statistics(written(tmp_path, still)).state.normalize(torch.tensor([3.0, 2.0])).tolist() == [0.0, 1.0]
    still = {"action": {"q01": [0.0], "q99": [1.0]}, "state": {"q01": [3.0], "q99": [3.0]}}
    assert load_statistics(written(tmp_path, still)).state.normalize(torch.tensor([3.0])).tolist() == [-1.0]
    (tmp_path / "dataset_statistics.json").write_text(json.dumps({"mine": {"action": ACTION}}))
    openvla(tmp_path, bridge_orig=ACTION)
    assert load_statistics(str(tmp_path)).key == "mine", "a fine-tuned OpenVLA's own file comes before its config.json"


@pytest.mark.parametrize(
    "data, key, kind, message",
    [
        (
            {"norm_stats": {"a": {"action": ACTION}, "b": {"action": ACTION}}},
            "",
            "",
            "2 data sets: set .*statistics_key to one of a, b",
        ),
        (
            {"norm_stats": {"a": {"action": ACTION}, "b": {"action": ACTION}}},
            "c",
            "",
            "statistics_key = 'c' is not in .*: it has a, b",
        ),
        ({"action": {"mean": [0.0], "std": [1.0]}}, "a", "", "has the statistics of one data set: leave it out"),
        ({"action": ACTION}, "", "", "has quantiles, min-max, mean-std: set policy.options.statistics_kind"),
        ({"action": ACTION}, "", "median", "statistics_kind = 'median' is unknown: choose one of quantiles, min-max, mean-std"),
        ({"action": {"mean": [0.0], "std": [1.0]}}, "", "quantiles", "action has no q01 and q99: it has mean, std"),
        ({"action": {"mean": [0.0]}}, "", "", "action has no q01 and q99, min and max, or mean and std: it has mean"),
        ({"action": {"q01": [0.0, 0.0], "q99": [1.0]}}, "", "", "q01 has 2 numbers, and q99 1"),
        ({"action": {"q01": [0.0], "q99": [1.0], "mask": []}}, "", "", "q01 has 1 numbers, and mask 0"),
        ({"action": {"q01": [0.0, 0.5], "q99": [1.0, 0.5]}}, "", "", "q99 - q01 of number 1 is 0 and must be above 0"),
        ({"action": {"mean": [0.0], "std": [0.0]}}, "", "", "std of number 0 is 0 and must be above 0"),
        ({"action": {"q01": [float("nan")], "q99": [1.0]}}, "", "", "action.q01 has nan, which is not a finite number"),
        ({"action": {"q01": 0.0, "q99": 1.0}}, "", "", "action.q01 must be a list of numbers"),
        ({"hidden_size": 4096}, "", "", "has no statistics of actions"),
        ([1], "", "", "holds no table of statistics"),
    ],
)
def test_what_is_refused(data, key, kind, message, tmp_path):
    with pytest.raises(UserError, match=message) as error:
        load_statistics(written(tmp_path, data), key, kind)
    assert "\n" not in str(error.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*nothing.json"):
        load_statistics(str(tmp_path / "nothing.json"))
    with pytest.raises(UserError, match=r"has none of dataset_statistics.json, norm_stats.json, stats.json, config.json"):
        load_statistics(str(tmp_path))
    (tmp_path / "stats.json").write_text("{")
    with pytest.raises(UserError, match=r"stats.json can't be read as JSON"):
        load_statistics(str(tmp_path))


def test_policies_and_simulators_that_do_not_fit(tmp_path):
    with pytest.raises(UserError, match=r"are of actions of 7 numbers, and policy.options.dims = 4: make them equal"):
        Small(PolicyConfig(model="mlp"), dims=4, state=3, statistics=openvla(tmp_path, a=ACTION))
    with pytest.raises(UserError, match="gripper = 'up' must be one of '', 'open-high'"):
        policy(tmp_path, gripper="up")
    with pytest.raises(
        UserError, match=r"gripper = 'open-high' says what statistics mean, and policy.options.statistics names none"
    ):
        policy(gripper="open-high")
    bare = SimulatorSpec(id="some/bare", target="-:-", action=ActionSpec(dims=7, gripper=6))
    with pytest.raises(UserError, match=r"simulator 'some/bare' doesn't give its actions' units"):
        policy(tmp_path).fits("t", None, bare)
    with pytest.raises(UserError, match=r"has a gripper, and policy.options.gripper doesn't say"):
        policy(tmp_path, gripper="").fits("t", None, SPEC)
    none = SimulatorSpec(id="some/stick", target="-:-", action=ActionSpec(dims=7, units=UNITS))
    with pytest.raises(UserError, match=r"has no gripper, and policy.options.gripper = 'open-high': leave it out"):
        policy(tmp_path).fits("t", None, none)
    mine = policy(tmp_path)
    mine.fits("first", None, SPEC)
    mine.fits("again", None, SPEC)
    moved = replace(SPEC, id="some/moved", action=replace(SPEC.action, offsets=(0.1,) * 7))
    with pytest.raises(UserError, match=r"simulator 'some/moved' has units .* around \[0.1, .*and that of another"):
        mine.fits("moved", None, moved)
    other = SimulatorSpec(id="some/other", target="-:-", action=ActionSpec(dims=7, gripper=6, units=(0.2, *UNITS[1:])))
    with pytest.raises(
        UserError, match=r"task 'second': an action of simulator 'some/other' has units .*: a policy with statistics"
    ):
        mine.fits("second", None, other)
    policy().fits("t", None, bare)  # without statistics nothing is asked
    lost = policy(tmp_path)
    with pytest.raises(UserError, match=r"doesn't know the simulator's units: call fits\(\) first"):
        lost.simulated(torch.zeros(1, 7))


@pytest.mark.parametrize("units", [(0.1,), (0.1, 0.0), (0.1, float("inf"))])
def test_units_that_cannot_be(units):
    with pytest.raises(ValueError, match="must be 2 finite numbers, none of them 0"):
        ActionSpec(dims=2, units=units)


@pytest.mark.parametrize("mask", [["false"] * 7, 5, [0.0, 2, *[True] * 5], "true"])
def test_a_mask_that_is_none(mask, tmp_path):
    """The text "false" would count as true."""
    with pytest.raises(UserError, match=r"mask = .* must be a list of true and false"):
        load_statistics(openvla(tmp_path, a={**ACTION, "mask": mask}))


@pytest.mark.parametrize(
    ("ends", "fitting"), [((0.0, 1.0), ("open-high", "close-high")), ((-1.0, 1.0), ("open-positive", "close-positive"))]
)
def test_a_convention_for_a_gripper_fits_the_numbers_of_the_data(ends, fitting, tmp_path):
    data = {**ACTION, "q01": [*ACTION["q01"][:6], ends[0]], "q99": [*ACTION["q99"][:6], ends[1]]}
    for convention in GRIPPERS:
        made = policy(statistics=openvla(tmp_path, a=data), gripper=convention)
        if convention in fitting:
            made.fits("t", None, SPEC)
        else:
            with pytest.raises(UserError, match=f"the data's gripper goes from .*: choose one of {', '.join(fitting)}"):
                made.fits("t", None, SPEC)


def test_a_data_sets_folder_has_its_statistics_in_meta(tmp_path):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "stats.json").write_text(json.dumps({"action": ACTION}))
    assert len(load_statistics(str(tmp_path), kind="quantiles").action) == 7
