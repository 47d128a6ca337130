"""What a folder says of a policy that acts: it looks and samples as it was saved, and teaches those whose choices are its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from mmrl_robotics.small import Small

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.teachers import check_teacher
from mmrl.policies.acting.vla import VLA
from mmrl.policies.load import make_policy

SEEDS, CALLS = torch.arange(60, 64), torch.zeros(4, dtype=torch.int64)
QWEN, PI0 = "tiny:qwen3_vl:hidden=32,layers=1", "tiny:pi0:hidden=32,layers=1,chunk=5"


def seen(seed=0) -> Observation:
    draws = torch.Generator().manual_seed(seed)
    images = {name: torch.randint(0, 256, (4, 40, 40, 3), dtype=torch.uint8, generator=draws) for name in ("front", "wrist")}
    return Observation(images=images, state=torch.randn(4, 6, generator=draws), instructions=["push it", "x", "go", "push it"])


def changed(camera: str) -> Observation:
    """The same but for one camera."""
    shown = seen()
    images = {**shown.images, camera: 255 - shown.images[camera]}
    return Observation(images=images, state=shown.state, instructions=shown.instructions)


def made(kind: str, model: str, **options):
    return make_policy(PolicyConfig(kind=kind, model=model, options=options), device="cpu", seed=3)


def acts(policy, shown=None) -> torch.Tensor:
    return policy.act(shown or seen(), SEEDS, CALLS, 1.0).actions_nKA


def base(folder: Path) -> str:
    made("robotics/small", "mlp", dims=3, state=6, hidden=[8]).save(folder / "base")
    return str(folder / "base")


CAMERAS = {
    "cnn": ("robotics/small", "cnn", {"dims": 3, "size": 40, "hidden": [8]}),
    "vla": ("vla", QWEN, {"dims": 3, "head": "normal"}),
    "residual": ("robotics/residual", "cnn", {"size": 40, "hidden": [8], "state": 6}),
}


@pytest.mark.parametrize("case", CAMERAS)
def test_it_looks_through_the_camera_that_it_was_saved_with(case, tmp_path):
    kind, model, options = CAMERAS[case]
    if kind == "robotics/residual":
        options = {**options, "base": base(tmp_path)}

    def camera(name: str) -> dict:
        return {"cameras": [name]} if kind == "vla" else {"camera": name}

    policy = made(kind, model, **camera("wrist"), **options)
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(4)))
    policy.save(tmp_path / "saved")
    again = made(kind, str(tmp_path / "saved"))
    assert torch.equal(acts(again), acts(policy))
    assert torch.equal(acts(again, changed("front")), acts(again)), "it doesn't look there"
    assert (acts(again, changed("wrist")) - acts(again)).abs().max() > 1e-5
    other = made(kind, str(tmp_path / "saved"), **camera("front"))  # another simulator's name for what it looks through
    assert (acts(other, changed("front")) - acts(other)).abs().max() > 1e-5


def test_a_flow_has_as_many_steps_as_it_was_saved_with(tmp_path):
    policy = made("vla", QWEN, dims=3, head="flow", flow_steps=7)
    policy.save(tmp_path)
    again = made("vla", str(tmp_path))
    one, two = (p.act(seen(), SEEDS, CALLS, 1.0).choices for p in (policy, again))
    assert one.shape == (4, 1, 8, 3) and torch.equal(one, two)
    assert made("vla", str(tmp_path), flow_steps=2).act(seen(), SEEDS, CALLS, 1.0).choices.shape == (4, 1, 3, 3)


def test_how_pi0_samples_is_not_what_it_is(tmp_path):
    """As after a warm-up by imitation: steps, noise, chunks and cameras are the run file's, the rest the folder's."""
    made("pi0", PI0, dims=3, chunk=5, state=6).save(tmp_path)
    policy = made("pi0", str(tmp_path), chunk=2, steps=3, noise_level=0.2, noisy="one", cameras=["wrist"])
    found = policy.act(seen(), SEEDS, CALLS, 1.0)
    assert found.actions_nKA.shape == (4, 2, 3) and found.choices.shape == (4, 3, 5, 32)
    for name, value in (("dims", 4), ("state", 5), ("prompt", "do {instruction}"), ("crop", 0.9)):
        with pytest.raises(
            UserError, match=f"holds a policy with {name} = .*, and the run file says .*: set policy.options.{name}"
        ):
            made("pi0", str(tmp_path), **{name: value})


def trajectory_data(instruction="push it", side=40, choices=(2, 5, 5, 32)) -> TrajectoryData:
    length = choices[0]
    return TrajectoryData(
        instruction=instruction,
        images={name: torch.zeros(length + 1, side, side, 3, dtype=torch.uint8) for name in ("front", "wrist")},
        state=torch.zeros(length + 1, 6),
        choices=torch.zeros(choices),
        logprobs_TKC=torch.zeros(length, 1, 1),
        valid_TK=torch.ones(length, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(length, 1),
    )


@pytest.mark.parametrize(
    ("kind", "model", "options"),
    [("vla", QWEN, {"dims": 3}), ("vla", QWEN, {"dims": 3, "size": 64}), ("pi0", PI0, {"dims": 3, "chunk": 2})],
)
def test_what_a_call_counts_depends_on_nothing_that_was_read_before(kind, model, options):
    fresh, used = (made(kind, model, **options) for _ in range(2))
    shown = seen()
    used.act(
        Observation(images=shown.images, state=shown.state, instructions=["a much longer text to read " * 9] * 4),
        SEEDS,
        CALLS,
        0.0,
    )
    trajectories = [trajectory_data(), trajectory_data("stack the ball on the box")]
    assert fresh.tokens_per_call(trajectories) == used.tokens_per_call(trajectories) == fresh.tokens_per_call(trajectories[::-1])
    assert (
        fresh.tokens_per_call(trajectories) == fresh.tokens_per_call(trajectories[1:]) > fresh.tokens_per_call(trajectories[:1])
    )


def test_what_a_call_counts_is_what_is_computed():
    """The ids behind each other, padding left out: of the model's own inputs for the same call."""
    policy = made("vla", QWEN, dims=3, decoding="parallel")
    images = {"front": trajectory_data().images["front"][:1]}
    ids = policy.seeing.read(Observation(images=images, state=None, instructions=["push it"]), policy.slot_ids[None]).ids_nS
    assert policy.tokens_per_call([trajectory_data()]) == ids.shape[1]
    assert policy.tokens_per_call([trajectory_data(side=200)]) > policy.tokens_per_call([trajectory_data()])
    pi0 = made("pi0", PI0, dims=3, chunk=2, steps=4)
    read = len(pi0._ids("push it", 2)) + 1
    assert pi0.tokens_per_call([trajectory_data()]) == read + 4 * 5
    assert made("pi0", PI0, dims=3, chunk=2, noisy="one").tokens_per_call([trajectory_data()]) == read + 5
    assert made("pi0", PI0, dims=3, chunk=2, steps=2).tokens_per_call([trajectory_data(choices=(2, 1, 5, 32))]) == read + 4 * 5
    assert made("pi0", PI0, dims=3, chunk=2, cameras=["wrist"]).tokens_per_call([trajectory_data()]) == read - 16 + 4 * 5


# -- teachers -------------------------------------------------------------------------------------------------------------


def small(**options) -> PolicyConfig:
    return PolicyConfig(kind="robotics/small", model="mlp", options={"dims": 2, "state": 2, **options})


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"head": "flow"}, r"teacher '.*' has head = 'flow', and the policy 'normal', .*: take one with the same head"),
        ({"chunk": 2}, r"has chunk = 2, and the policy 1, so it can't say how likely"),
        ({"dims": 3}, r"has dims = 3, and the policy 2"),
    ],
)
def test_a_teacher_of_other_choices_is_refused_before_and_after_it_is_loaded(teacher, message, tmp_path):
    made("robotics/small", "mlp", **{"dims": 2, "state": 2, **teacher}).save(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        check_teacher(Small, small(), str(tmp_path))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=message):
        made("robotics/small", "mlp", dims=2, state=2).refuse_teacher(made("robotics/small", str(tmp_path)), str(tmp_path))


def test_a_teacher_of_the_same_choices_may_see_otherwise(tmp_path):
    made("robotics/small", "cnn", dims=2, size=40, camera="wrist", hidden=[4]).save(tmp_path)
    check_teacher(Small, small(), str(tmp_path))
    made("robotics/small", "mlp", dims=2, state=2).refuse_teacher(made("robotics/small", str(tmp_path)), "it")


def test_steps_are_the_run_files_for_both(tmp_path):
    """A setting that is free is overridden in the teacher as in the policy; one that nobody names is the folder's."""
    made("vla", QWEN, dims=3, head="flow", flow_steps=3).save(tmp_path)
    given = {"dims": 3, "head": "flow"}
    check_teacher(VLA, PolicyConfig(kind="vla", model=QWEN, options={**given, "flow_steps": 5}), str(tmp_path))
    with pytest.raises(UserError, match="has flow_steps = 3, and the policy 4"):
        check_teacher(VLA, PolicyConfig(kind="vla", model=QWEN, options=given), str(tmp_path))


def test_a_teacher_of_another_kind_or_of_other_numbers_is_refused(tmp_path):
    made("robotics/small", "mlp", dims=3, state=6).save(tmp_path / "small")
    with pytest.raises(UserError, match=r"holds a policy of another kind than policy\.kind = 'vla'"):
        check_teacher(VLA, PolicyConfig(kind="vla", model=QWEN, options={"dims": 3}), str(tmp_path / "small"))
    numbers = {"action": {"mean": [0.0] * 2, "std": [2.0] * 2}}
    (tmp_path / "stats.json").write_text(json.dumps(numbers))
    mine, other = (
        made("robotics/small", "mlp", dims=2, state=2),
        made("robotics/small", "mlp", dims=2, state=2, statistics=str(tmp_path / "stats.json")),
    )
    with pytest.raises(UserError, match=r"teacher 'it' has statistics = .*, and the policy None"):
        mine.refuse_teacher(other, "it")
    other.refuse_teacher(other.clone(), "it")


def test_a_pi0_that_foresees_otherwise_is_no_teacher():
    policy, other = (made("pi0", f"tiny:pi0:hidden=32,layers=1,chunk={n}", dims=3, chunk=2) for n in (5, 6))
    with pytest.raises(UserError, match="has actions foreseen = 6, and the policy 5"):
        policy.refuse_teacher(other, "it")


def test_a_vla_that_was_saved_with_one_camera_looks_through_it(tmp_path):
    """`camera` was a text before there were several."""
    made("vla", QWEN, dims=3, head="normal").save(tmp_path)
    kept = json.loads((tmp_path / "acting.json").read_text())
    assert kept.pop("cameras") == [] and kept.pop("state") == 0
    for camera, wanted in (("wrist", ["wrist"]), ("", [])):
        (tmp_path / "acting.json").write_text(json.dumps({**kept, "camera": camera}))
        assert made("vla", str(tmp_path)).seeing.cameras == wanted
    assert made("vla", str(tmp_path), cameras=["front", "wrist"]).seeing.cameras == ["front", "wrist"]
