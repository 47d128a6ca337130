"""Runs whose episodes have several turns, with critics of turns: what they learn, and that a resumed run goes on with the same
bits."""

import sys

import pytest
import torch
from safetensors.torch import load_file

import runs

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

    def made(name="a", critic=None, **stage):
        stages = [{**STAGE, "turn_critic": CRITIC | (critic or {}), **stage}]
        rest = {"tasks": [{"id": "doors/walk"}], "generate": {"max_tokens": 3, "max_turns": 3}, "evaluate": {"num_prompts": 0}}
        return runs.toy_config(tmp_path / "runs", name=name, stages=stages, **rest)

    yield made
    sys.modules.pop("doors", None)


DIGIRL = {"algorithm": "digirl", "critic": {"rule": "success", "replay": 6, "top": 0.5}}


@pytest.mark.parametrize("keys", [{}, DIGIRL], ids=["returns", "success"])
def test_a_resumed_run_goes_on_with_the_same_bits(doors, keys):
    whole = runs.run(doors("whole", **keys))
    with pytest.raises(KeyboardInterrupt):
        runs.run(doors("cut", **keys), progress=runs.Silent(3))
    again = runs.run(doors("cut", **keys), resume=True)
    assert runs.trajectory(again) == runs.trajectory(whole)
    files = {
        "turn-critic.safetensors",
        "turns.safetensors",
        *(("prompts.safetensors", "conversations.safetensors") if keys else ()),
    }
    (kept,) = [{p.name for p in f.glob("*.safetensors")} for f in sorted((whole.path / "checkpoints").glob("step-*"))[-1:]]
    assert kept == files | {"learner.safetensors"}
    measured = {key for row in runs.rows(whole) for key in row.get("metrics", {}) if key.startswith("turn_critic/")}
    replays = {"turn_critic/replayed", "turn_critic/imitated_share"} if keys else set()
    assert measured == {"turn_critic/remembered", "turn_critic/value_error", *replays}
    for file in files:
        mine, theirs = (load_file(sorted((f.path / "checkpoints").glob("step-*"))[-1] / file) for f in (again, whole))
        assert mine.keys() == theirs.keys() and all(torch.equal(x, theirs[name]) for name, x in mine.items()), file
