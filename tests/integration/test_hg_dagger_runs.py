"""HG-DAgger: what another did in the policy's place is imitated, and nothing else; a run resumes bit for bit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.train.resolve import resolve
from mmrl.train.update.learner import Learner

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
SMALL = {"kind": "robotics/small", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [32], "chunk": 1}}
FLOW = {"kind": "robotics/small", "model": "mlp", "options": {**SMALL["options"], "head": "flow"}}  # type: ignore[dict-item]
SQUASHED = {"kind": "squashed", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [32]}}
STEERED = {"kind": "steered", "model": "mlp", "options": {"base": {**FLOW, "options": FLOW["options"] | {"chunk": 2}}}}  # type: ignore[operator]
STAGE = {"kind": "hg-dagger", "steps": 3, "prompts_per_step": 4, "updates": 4, "batch_size": 16, "learning_rate": 3e-3}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))


def config(folder: Path, name: str = "dial", policy: Any = SMALL, helps: float = 0.3, evaluated: int = 0, **stage: Any) -> Any:
    """helps: a person takes over where a turn is so much further than theirs; 9: there is no person."""
    data = {
        "name": name,
        "runs_dir": str(folder),
        "policy": policy,
        "tasks": [{"id": "dial/turn", "options": {"n": 500, "helps": helps}, "verifiers": {"dial/success": 1.0}}],
        "stages": [STAGE | stage],
        "simulate": {"num_envs": 4},
        "evaluate": {"num_prompts": evaluated},
        "record": {"trackers": [], "rollouts": 4},
        "train": {"threads": 1},
    }
    return parse_config(data)


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


def metrics(folder: Path) -> list[dict[str, float]]:
    return [row["metrics"] for row in runs.rows(folder) if "metrics" in row]


def of_the_expert(state: torch.Tensor) -> torch.Tensor:
    """What the expert, and the person, does in a state (pointer, mark)."""
    return torch.tensor([max(-1.0, min(1.0, float(state[1] - state[0]) / 0.5)), -0.5])


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(state, action) of each call that an update of the policy learned from."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    real = Learner.update

    def update(self: Learner, batches: Any, *given: Any, **keys: Any) -> Any:
        for batch in batches:
            for micro in batch.micro:
                found.extend(zip(micro.observation.state, micro.choices.flatten(1), strict=True))
        return real(self, batches, *given, **keys)

    monkeypatch.setattr(Learner, "update", update)
    return found


@pytest.mark.parametrize("demonstrations", [0, 2])
def test_it_imitates_what_another_did_and_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demonstrations: int
) -> None:
    """Each imitated action is the one that the person, or the expert, has for its state; the policy's own are others."""
    learned = watched(monkeypatch)
    folder = runs.run(config(tmp_path, helps=0.8, expert_episodes=demonstrations)).path
    assert len(learned) == 3 * 4 * 16
    for state, action in learned:
        assert torch.allclose(action, of_the_expert(state), atol=1e-5)
    kept = load_file(last(folder) / "experience.safetensors")
    episodes = [{key: kept[f"{n}/{key}"] for key in ("others", "state", "actions")} for n in range(12) if f"{n}/others" in kept]
    assert 0 < len(episodes) < 12 and all(one["others"].any() for one in episodes), "the others have nothing to learn from"
    whole = {key: torch.cat([one[key] for one in episodes]) for key in episodes[0]}
    others = whole["others"]
    assert not others.all() and (whole["actions"][~others, 0] - whole["actions"][~others, 0].clamp(-0.2, 0.2)).any()
    theirs = {tuple(state.tolist()) for state in whole["state"][others]}
    from_them = [tuple(state.tolist()) in theirs for state, _ in learned]
    assert any(from_them) and all(from_them) == (not demonstrations)
    calls = [row["hg_dagger/calls"] for row in metrics(folder)]
    assert (calls[-1] == others.sum()) == (not demonstrations) and calls[-1] >= others.sum() and calls == sorted(calls)


def test_where_nobody_takes_over_nothing_is_learned(tmp_path: Path) -> None:
    folder = runs.run(config(tmp_path, helps=9.0, steps=1)).path
    (row,) = metrics(folder)
    assert row["hg_dagger/calls"] == 0 and "loss" not in row


RESUMED: dict[str, dict[str, Any]] = {
    "person": {"group_size": 2, "ema_decay": 0.5, "optimizer_every": 2},
    "expert": {"policy": FLOW, "helps": 9.0, "interventions": 0.7, "expert_episodes": 2, "capacity": 6},
}


@pytest.mark.parametrize("way", RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, way: str) -> None:
    stage = RESUMED[way]
    whole = runs.run(config(tmp_path, "whole", **stage)).path
    with pytest.raises(KeyboardInterrupt):
        runs.run(config(tmp_path, "broken", **stage), progress=runs.Silent(stop_after=2))
    resumed = runs.run(config(tmp_path, "broken", **stage), resume=True).path
    files = {path.name for path in last(whole).glob("*.safetensors")}
    assert files == {"learner.safetensors", "experience.safetensors"}
    for file in (*files, "policy/acting.safetensors"):
        one, two = load_file(last(whole) / file), load_file(last(resumed) / file)
        assert one.keys() == two.keys() and one and all(torch.equal(one[name], two[name]) for name in one), file


@pytest.mark.slow
def test_it_learns_from_a_person_s_corrections_alone(tmp_path: Path) -> None:
    """What the policy does on its own: before and after."""
    stage = {"steps": 8, "prompts_per_step": 8, "updates": 40, "batch_size": 32}
    given = config(tmp_path, evaluated=128, **stage).model_dump(exclude_unset=True)
    (helped,) = given["tasks"]
    alone = helped | {"name": "alone", "options": {"n": 500}}
    given["stages"][0]["tasks"] = {"helped": 1.0}
    folder = runs.run(parse_config(given | {"tasks": [helped | {"name": "helped"}, alone]})).path
    summary = json.loads((folder / "summary.json").read_text())
    before, after = (summary[name]["alone"]["value"] for name in ("before", "last"))
    shares = [row["episode/intervened_share"] for row in metrics(folder)]
    assert before < 0.3 and after > 0.9 and sum(shares[4:]) < 0.7 * sum(shares[:4]), "who learns is corrected less"


REFUSED = [
    ("words", {"policy": {"model": "tiny:qwen2_5_vl"}}, "but policy.kind = 'vlm' writes"),
    ("noise", {"policy": STEERED}, "chooses noise, which nobody else's actions have: use another policy"),
    ("chunks", {"policy": {**FLOW, "options": {**FLOW["options"], "chunk": 2}}, "interventions": 0.5}, "chunk = 1"),  # type: ignore[dict-item]
    ("gripper", {"policy": {**SQUASHED, "options": {**SQUASHED["options"], "gripper_choices": 2}}}, 'kind = "off-policy" alone'),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("keys", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_it_cannot_do_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(config(tmp_path, **keys))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_residual_policy_is_refused(tmp_path: Path) -> None:
    base = {**SMALL, "model": "mlp"}
    policy = {**SQUASHED, "options": {"dims": 2, "base": base, "residual": 0.2, "hidden": [8]}}
    with pytest.raises(UserError, match=r"^step 1: a residual policy corrects another and can't imitate: train its base"):
        runs.run(config(tmp_path, policy=policy, steps=1))
