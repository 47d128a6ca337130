"""Runs in LeRobot's own environment: `lerobot-eval` with an untrained policy, or with the simulator's expert as the policy in
environments that a file in the form of EnvHub makes. Prints what LeRobot says."""

import json
import sys
from pathlib import Path

import torch
from lerobot.configs.parser import load_plugin
from lerobot.envs.utils import _call_make_env, _import_hub_module, _normalize_hub_result
from lerobot.processor import PolicyProcessorPipeline
from lerobot.scripts import lerobot_eval

ENV = """
from mmrl_interop.lerobot import make_envs

def make_env(n_envs=1, use_async_envs=False, cfg=None):
    return make_envs("robotics/pick", n_envs, {"dims": 4, "size": 32, "cameras": ["front", "wrist"]}, split="train")
"""


class Expert(torch.nn.Module):
    """Knows the simulator."""

    def __init__(self, envs):
        super().__init__()
        self.envs, self.seen = envs, []

    def reset(self):
        pass

    def select_action(self, observation):
        self.seen.append({key: list(v.shape) if torch.is_tensor(v) else v for key, v in observation.items()})
        return self.envs.envs_of_task._simulator.expert() * 1.5  # what is beyond 1 is cut off


def hub(folder):
    """Twice the same seeds, in other batches."""
    file = Path(folder, "env.py")
    file.write_text(ENV)
    same = PolicyProcessorPipeline(steps=[], to_transition=lambda x: x, to_output=lambda x: x)
    found = []
    for seeds in ([3, 4, 5, 2003], [5, 3]):
        [(name, tasks)] = _normalize_hub_result(
            _call_make_env(_import_hub_module(str(file), "me/pick"), len(seeds), False, None)
        ).items()
        envs = tasks[0]
        policy = Expert(envs)
        played = lerobot_eval.rollout(envs, policy, same, same, same, same, seeds=seeds)
        first = policy.seen[0]
        ends = played["done"].int().argmax(1)
        found.append(
            {
                "suite": name,
                "success": played["success"].any(1).tolist(),
                "rewards": [rewards[: end + 1].sum().item() for rewards, end in zip(played["reward"], ends, strict=True)],
                "shapes": {key: shape for key, shape in first.items() if key != "task"},
                "tasks": first["task"],
                "ends": ends.tolist(),
            }
        )
        envs.close()
    return found


def command(folder):
    load_plugin("mmrl_interop.lerobot")
    small = [
        "chunk_size=4",
        "n_action_steps=2",
        "dim_model=32",
        "n_heads=2",
        "dim_feedforward=32",
        "pretrained_backbone_weights=null",
    ]
    sys.argv = [
        "lerobot-eval",
        "--env.discover_packages_path=mmrl_interop.lerobot",
        "--env.type=mmrl",
        "--env.task=robotics/pick",
    ]
    sys.argv += ["--env.options={dims: 4, size: 32, max_steps: 6}", "--policy.type=act", "--policy.device=cpu"]
    sys.argv += ["--policy.push_to_hub=false", "--eval.n_episodes=3", "--eval.batch_size=2", f"--output_dir={folder}/out"]
    sys.argv += [f"--policy.{setting}" for setting in small]
    lerobot_eval.main()
    return json.loads(Path(folder, "out", "eval_info.json").read_text())


print(json.dumps({"hub": hub, "command": command}[sys.argv[1]](sys.argv[2])))
