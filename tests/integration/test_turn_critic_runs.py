"""Runs whose episodes have several turns, with critics of turns: what they learn, and that a resumed run goes on with the same
bits."""

import sys

import pytest
import torch
from safetensors.torch import load_file

import runs
from mmrl.train.stages.turns import TurnCriticSteps

DOORS = """
from PIL import Image
from mmrl import Prompt, Reply, Task, TaskSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="doors/walk", target="doors:Walk", verifiers={"doors/through": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="doors/through", target="doors:through")]

def through(case):
    return case.outcome["through"]

class Walk(Task):
    # Two doors, each of which opens for half of all answers; behind the second one is a success.
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{i}", messages=[user_message(f"door {i}?")]) for i in range(40)]
    def environment(self, prompt):
        return Doors()

class Doors:
    opened = 0
    def step(self, completion):
        self.opened += sum(map(ord, completion)) % 2
        said = user_message("open" if self.opened else "shut", Image.new("RGB", (56, 56), (80 * self.opened, 0, 0)))
        return Reply(messages=[said], terminated=self.opened == 2, outcome={"through": float(self.opened == 2)})
    def close(self):
        pass
"""
STAGE = {"kind": "rl", "algorithm": "archer", "steps": 4, "prompts_per_step": 4, "group_size": 2, "learning_rate": 1e-3}
CRITIC = {"updates": 4, "batch_size": 16, "hidden": [16], "capacity": 40}


@pytest.fixture
def doors(tmp_path, monkeypatch):
    """Makes a configuration."""
    (tmp_path / "doors.py").write_text(DOORS)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "doors.py"))

    def made(name="a", critic=None, critic_of_tokens=None, **stage):
        beside = {"critic": critic_of_tokens} if critic_of_tokens else {}
        stages = [{**STAGE, "turn_critic": CRITIC | (critic or {}), **beside, **stage}]
        rest = {"tasks": [{"id": "doors/walk"}], "generate": {"max_tokens": 3, "max_turns": 3}, "evaluate": {"num_prompts": 0}}
        return runs.toy_config(tmp_path / "runs", name=name, stages=stages, **rest)

    yield made
    sys.modules.pop("doors", None)


DIGIRL = {"algorithm": "digirl", "critic": {"rule": "success", "replay": 6, "top": 0.5}}


ANEW = {"critic": {"answers": 6}, "critic_of_tokens": {"learning_rate": 1e-2}}


@pytest.mark.parametrize("keys", [{}, DIGIRL, ANEW], ids=["returns", "success", "answers anew"])
def test_a_resumed_run_goes_on_with_the_same_bits(doors, keys):
    whole = runs.run(doors("whole", **keys))
    with pytest.raises(KeyboardInterrupt):
        runs.run(doors("cut", **keys), progress=runs.Silent(3))
    again = runs.run(doors("cut", **keys), resume=True)
    assert runs.trajectory(again) == runs.trajectory(whole)
    files = {"turn-critic.safetensors", "turns.safetensors"}
    files |= {"conversations.safetensors"} if keys else set()
    files |= {"prompts.safetensors"} if keys is DIGIRL else set()
    (kept,) = [{p.name for p in f.glob("*.safetensors")} for f in sorted((whole.path / "checkpoints").glob("step-*"))[-1:]]
    assert kept == files | {"learner.safetensors"}
    measured = {key for row in runs.rows(whole) for key in row.get("metrics", {}) if key.startswith("turn_critic/")}
    replays = {"turn_critic/replayed", "turn_critic/imitated_share"} if keys is DIGIRL else set()
    baseline = {f"turn_critic/{name}" for name in ("answered", "baseline", "baseline_loss", "baseline_grad_norm")}
    assert measured == {"turn_critic/remembered", "turn_critic/value_error", *replays, *(baseline if keys is ANEW else ())}
    for file in files:
        mine, theirs = (load_file(sorted((f.path / "checkpoints").glob("step-*"))[-1] / file) for f in (again, whole))
        assert mine.keys() == theirs.keys() and all(torch.equal(x, theirs[name]) for name, x in mine.items()), file


@pytest.mark.parametrize("baseline", [None, {"learning_rate": 1e-2, "detach": True}], ids=["plain", "baseline"])
def test_what_is_remembered_is_answered_by_the_policy_as_it_is(doors, monkeypatch, baseline):
    """The answers are to observations of the memory, later ones too; each is worth what the critics say, less what a critic of
    tokens foresaw; and the learner finds them as likely as the sampler did."""
    later, moved, whole = [], [], TurnCriticSteps.batches

    def checked(steps, sampled, credit, at):
        found = whole(steps, sampled, credit, at)
        known = {tuple(e.observation(k).ids.tolist()): k for e in steps.conversations.kept for k in range(len(e))}
        for rollout in steps.anew:
            (turn,) = rollout.turns
            later.append(known[turn.observed_ids])
            assert turn.policy_version == at.version and not rollout.off_policy
        states = [steps.states[id(rollout)] for rollout in steps.anew]
        worth_N = torch.cat([steps.critics.answers(s) - steps.critics.values(s.seen_TH[:-1]) for s in states])
        for micro in (m for batch in found.dealt for m in batch.micro):
            if baseline:
                assert torch.equal(micro.returns_L, worth_N[micro.rollout_L])
                moved.append(micro.values_L.abs().max().item())
                assert torch.allclose(micro.advantages_L, worth_N[micro.rollout_L] - micro.values_L, atol=1e-6)
            else:
                assert torch.equal(micro.advantages_L, worth_N[micro.rollout_L]) and micro.returns_L is None
        return found

    monkeypatch.setattr(TurnCriticSteps, "batches", checked)
    ran = runs.run(doors(critic={"answers": 12}, critic_of_tokens=baseline))
    assert len(later) == 48 and {0, 1} <= set(later)
    figures = [row["metrics"] for row in runs.rows(ran) if "metrics" in row and "logprob_gap" in row["metrics"]]
    assert len(figures) == 4 and all(row["logprob_gap"] < 1e-3 for row in figures)
    assert all(row["turn_critic/answered"] == 12 for row in figures)
    assert not baseline or (moved[0] == 0 and moved[-1] > 0), "the baseline begins at 0, and learns"
