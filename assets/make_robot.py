"""Makes `assets/models/tabletop-pick`: a tiny vision-language-action model that is to be improved by reinforcement.

    python assets/make_robot.py [--steps 4000] [--sloppy 60]

A Qwen3-VL of 1.6 million random weights imitates the embedded table's expert (`clean`), and then for a little while an expert
that is clumsy on purpose (`expert_slop`): it closes its gripper from too far away, and its hand shakes. What is shipped is this
second model, which sees well and acts badly. Prints one JSON object with the held-out success of both. About ten minutes on two
quiet cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TO = HERE / "models" / "tabletop-pick"
WORDS = ("pick up the", *(f" {w}" for w in ("red", "green", "blue", "yellow", "cube", "ball", "cylinder")))
RUN_FILE = """\
name = "{name}"
runs_dir = "{runs}"
policy = {{ kind = "vla", model = "{model}", options = {{ dims = 4, bins = 32, prompt = "{{instruction}}" }} }}
evaluate = {{ num_prompts = 256 }}
simulate = {{ num_envs = 128 }}
record = {{ rollouts_every = 0, trackers = [] }}

[[tasks]]
id = "robotics/pick"
options = {{ dims = 4, size = 64, templates = 1, demos = {demos}, max_steps = 10, expert_slop = {slop} }}

[[stages]]
kind = "sft"
split = "demo"
steps = {steps}
batch_size = 64
optimizer = "{optimizer}"
beta1 = 0.95
learning_rate = {rate}
schedule = "linear"
warmup_steps = 20
min_lr_ratio = 0.1
"""


def random_model(folder: Path) -> None:
    """With a token for each word of the instructions; weights drawn so that a short training can use them."""
    import torch

    from mmrl.policies.vlm import tiny

    model, processor = tiny.build("qwen3_vl", words=WORDS)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Conv3d) and name != "lm_head":  # that one is the embedding
                module.weight.normal_(0, 1 / math.sqrt(module.weight[0].numel()), generator=generator)
                if any(part in name for part in ("o_proj", "down_proj", "attn.proj", "linear_fc2")):
                    module.weight.mul_(0.5)  # what is added to the residual stream
            elif name.endswith("pos_embed"):
                module.weight.normal_(0, 1, generator=generator)
            elif name.endswith("embed_tokens"):
                module.weight.normal_(0, 0.05, generator=generator)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def trained(runs: Path, name: str, **settings: object) -> tuple[Path, dict[str, float]]:
    """(the policy that a run left, its held-out success)."""
    path = runs / f"{name}.toml"
    path.write_text(RUN_FILE.format(name=name, runs=runs, **settings))
    subprocess.run([sys.executable, "-m", "mmrl", "train", str(path)], check=True, stdout=sys.stderr, env=dict(os.environ))
    last = json.loads((runs / name / "summary.json").read_text())["last"]["robotics/pick"]
    (policy,) = (runs / name / "checkpoints").glob("step-*/policy")
    return policy, {key: round(last[key], 4) for key in ("value", "low", "high")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="of clean imitation")
    parser.add_argument("--sloppy", type=int, default=60, help="of imitating the clumsy expert")
    parser.add_argument("--slop", type=float, default=1.0, help="how clumsy it is, 0 to 1")
    args = parser.parse_args()
    runs = Path(tempfile.mkdtemp())
    random_model(runs / "random")
    muon = {"optimizer": "muon", "rate": 3e-3}
    clean, before = trained(runs, "clean", model=runs / "random", steps=args.steps, demos=20_000, slop=0.0, **muon)
    adamw = {"optimizer": "adamw", "rate": 3e-4}
    sloppy, after = trained(runs, "sloppy", model=clean, steps=args.sloppy, demos=2000, slop=args.slop, **adamw)
    shutil.rmtree(TO, ignore_errors=True)
    shutil.copytree(sloppy, TO)
    size = sum(path.stat().st_size for path in TO.iterdir())
    found = {"model": str(TO.relative_to(HERE.parent)), "megabytes": round(size / 1e6, 2), "clean": before, "shipped": after}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
