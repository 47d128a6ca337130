"""Runs on interop/tools: one that was killed in the middle of a stage goes on as the unbroken one."""

import json

import pytest
from mmrl_interop.tools_task import ToolsTask

import runs

pytestmark = pytest.mark.slow
FILE = '''
import random

def price(fruit: str = "pear") -> int:
    """Look up a price.

    Args:
        fruit: Its name.
    """
    return len(fruit)

class Door:
    """Made once and reset often: what it draws depends on the row, and what it keeps ends with the episode."""
    def reset(self, **columns):
        self.place, self.tries = random.randint(1, 9), 0
        return f"Door {self.place}."
    def price(self) -> str:
        """Look."""
        self.tries += 1
        return f"{self.place} {self.tries}"
    def get_reward(self):
        return self.tries / self.place

def cost(completions, answer, **columns):
    return [len(str(completions[0])) % 7 / 7 + answer[0]]
'''
CALL = '<tool_call>{"name": "price", "arguments": {}}</tool_call>'


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Makes a run of two tasks whose policy learns to call, so that episodes have several turns."""
    monkeypatch.setattr(ToolsTask, "gold", lambda self, prompt: CALL)
    (tmp_path / "tools.py").write_text(FILE)
    rows = [{"prompt": f"What do {n} cost?", "answer": n} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"processes": 2}
    tasks = [
        {
            "id": "interop/tools",
            "name": "doors",
            "options": {"environment_factory": f"{tmp_path}/tools.py:Door", "test": 8, **own},
        },
        {
            "id": "interop/tools",
            "name": "prices",
            "options": {
                "path": str(tmp_path / "rows.jsonl"),
                "tools": [f"{tmp_path}/tools.py:price"],
                "reward_funcs": [f"{tmp_path}/tools.py:cost"],
                **own,
            },
        },
    ]
    stages = [
        {"kind": "sft", "steps": 50, "batch_size": 8, "learning_rate": 1e-2},
        {"kind": "rl", "steps": 5, "prompts_per_step": 4, "group_size": 4, "learning_rate": 3e-4},
    ]

    def make(name):
        return runs.toy_config(
            tmp_path / "runs",
            name=name,
            tasks=tasks,
            stages=stages,
            generate={"max_tokens": 64, "max_turns": 3, "temperature": 0.3},
            record={"rollouts_every": 1, "rollouts": 99},
        )

    return make


def test_a_run_that_was_killed_within_a_stage_goes_on_bit_for_bit(config):
    whole = runs.run(config("whole"))
    with pytest.raises(KeyboardInterrupt):
        runs.run(config("cut"), progress=runs.Silent(53))
    assert runs.trajectory(runs.run(config("cut"), resume=True)) == runs.trajectory(whole)
    metrics = [row["metrics"] for row in runs.rows(whole) if row.get("stage") == "rl" and "metrics" in row]
    called = [m["episode/calls"] - m["episode/failed"] for m in metrics]
    assert len(called) == 5 and sum(called) > 3 and any(m["grad_norm"] for m in metrics), (
        "episodes have turns, and are learned from"
    )
    assert {row["task"] for row in runs.trajectory(whole)[1]} == {"doors", "prices"}
