"""Writes tests/golden/perception.jsonl: what the released code of PAPO, VPPO and NoisyRollout makes of numbers and steps.

    git clone https://github.com/MikeWangWZHL/PAPO && git -C PAPO checkout fb63bf4
    git clone https://github.com/YangnengChen/VPPO-RL && git -C VPPO-RL checkout 26d5ae4
    git clone https://github.com/NUS-TRAIL/NoisyRollout && git -C NoisyRollout checkout 09347dd
    python tests/support/golden_perception.py PAPO VPPO-RL NoisyRollout

Of PAPO: its divergence with `low_var_kl` and its gradient (`compute_kl`), and which squares of an image are black
(`random_patch_blackening`). Of VPPO: the lines of `DataParallelPPOActor.update_policy` that choose tokens and scale advantages,
with one micro-batch to a mini-batch. Of NoisyRollout: levels of noise over a run, and the share of a picture that is left at a
level (`ImageAugmenter`).
"""

from __future__ import annotations

import ast
import json
import math
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

OUT = Path(__file__).parents[1] / "golden" / "perception.jsonl"


def definitions(path: Path, *names: str, **known: Any) -> dict[str, Any]:
    """These functions and classes of a file, without its imports and annotations."""
    tree = ast.parse(path.read_text())
    chosen = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names]
    space = {"torch": torch, "np": np, "Image": Image, "math": math, **known}
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *chosen], []), str(path), "exec"), space)
    return space


def between(text: str, first: str, last: str) -> Any:
    """The lines from the one that starts with `first` up to the one that starts with `last`, as code."""
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    end = next(i for i, line in enumerate(lines) if i > start and line.strip().startswith(last))
    return compile(textwrap.dedent("".join(lines[start:end])), first, "exec")


def divergences(repository: Path) -> list[dict]:
    found = definitions(repository / "verl" / "trainer" / "core_algos.py", "compute_kl", Literal=None, F=torch.nn.functional)
    noise, rows = torch.Generator().manual_seed(0), []
    for scale in (0.3, 3.0, 30.0):
        seen = (-torch.rand(12, generator=noise) * scale).requires_grad_()
        masked = -torch.rand(12, generator=noise) * scale
        value = found["compute_kl"](seen, masked, "low_var_kl")
        value.sum().backward()
        rows.append(
            {"of": "papo", "seen": seen.tolist(), "masked": masked.tolist(), "kl": value.tolist(), "slope": seen.grad.tolist()}
        )
    return rows


def masks(repository: Path) -> list[dict]:
    """The squares that are black in a white image of 5 x 3 squares, the last of which are cut, by its draws."""
    rows = []
    for seed in range(3):
        draws = np.random.default_rng(seed).random(15).tolist()
        fed = iter(draws)
        own = SimpleNamespace(**{name: getattr(np, name) for name in ("array", "float32", "uint8")})
        own.random = SimpleNamespace(rand=lambda fed=fed: next(fed))
        mask = definitions(repository / "verl" / "trainer" / "papo_utils.py", "random_patch_blackening", np=own)
        image = np.asarray(mask["random_patch_blackening"](Image.new("RGB", (66, 40), (255,) * 3), 14, 0.6))
        rows.append({"of": "mask", "draws": draws, "black": (image[..., 0] == 0).astype(int).sum(1).tolist()})
    return rows


def chosen_tokens(repository: Path) -> list[dict]:
    text = (repository / "verl" / "workers" / "actor" / "dp_actor.py").read_text()
    text = text[text.index("def update_policy") :]
    bounds = between(text, "mb_old_log_probs = mini_batch", "if self.config.dynamic_batching")
    tokens = between(text, "top_p = self.config.top_p_perception_tokens", "# Calculate an average threshold")
    scaling = between(text, "# Calculate sensitivity scores for the current micro-batch.", "# Log metrics, including")
    noise, rows = torch.Generator().manual_seed(1), []
    for share, least in ((0.4, 0.9), (0.2, 0.5), (1.0, 1.0), (0.4, 0.0)):
        n, t = 6, 9
        lengths = torch.randint(1, t + 1, (n,), generator=noise)
        lengths[0] = t
        mask = (torch.arange(t)[None] < lengths[:, None]).float()
        old, aug = (-3 * torch.rand(n, t, generator=noise) for _ in range(2))
        advantages = torch.randn(n, 1, generator=noise).expand(n, t)
        config = {"top_p_perception_tokens": share, "advantage_scaling_min": least}
        space = {
            "torch": torch,
            "self": SimpleNamespace(config=SimpleNamespace(**config)),
            "metrics": defaultdict(list),
            "mini_batch": SimpleNamespace(batch={"old_log_probs": old, "aug_log_probs": aug, "response_mask": mask}),
            "model_inputs": {"aug_log_probs": aug},
            "response_mask": mask,
            "old_log_probs": old,
            "log_probs": old,
            "loss_token_mask": None,
            "global_min_score": None,
            "global_max_score": None,
        }
        for steps in (bounds, tokens, scaling):
            exec(steps, space)
        credit = advantages * space["scaling_factor"].unsqueeze(1) * space["loss_token_mask"]
        own = {"share": share, "least": least, "advantages": advantages[:, 0].tolist(), "lengths": lengths.tolist()}
        rows.append({"of": "vppo", **own, "old": old.tolist(), "masked": aug.tolist(), "credit": credit.tolist()})
    return rows


def noises(repository: Path) -> list[dict]:
    fixed = SimpleNamespace(ToTensor=lambda: None, ToPILImage=lambda: None)
    made = definitions(repository / "verl" / "utils" / "image_aug.py", "ImageAugmenter", T=fixed)["ImageAugmenter"]
    rows = []
    for mode, steepness, middle, steps in (
        ("sigmoid", 30, 40, 60),
        ("sigmoid", 60, 40, 150),
        ("linear", 1, 0, 10),
        ("none", 1, 0, 5),
    ):
        values = {"aug_type": "gaussian", "gaussian_noise_step": 500, "crop_size": 0.0, "rotate_angle": 0, "decay_mode": mode}
        own = made(SimpleNamespace(**values, decay_coef=steepness, decay_sig_mid_step=middle))
        own.aug_methods["gaussian"] = lambda image, decay, own=own: int(own.noise_step * decay)
        levels = [own.augment(None, step, steps) for step in range(1, steps + 1)]
        rows.append({"of": "level", "mode": mode, "steepness": steepness, "middle": middle, "levels": levels})
    plain = torch.full((1, 200, 200), 0.5, dtype=torch.float64)
    for level in (0, 100, 500, 999):
        torch.manual_seed(0)
        image = own._add_gaussian_noise(plain, level)
        torch.manual_seed(0)
        noise = torch.randn_like(plain)
        kept = torch.linalg.lstsq(torch.stack([plain, noise], -1).reshape(-1, 2), image.reshape(-1, 1)).solution[0, 0]
        rows.append({"of": "kept", "level": level, "kept": float(kept) ** 2})
    return rows


def main() -> None:
    papo, vppo, noisy = map(Path, sys.argv[1:])
    rows = [*divergences(papo), *masks(papo), *chosen_tokens(vppo), *noises(noisy)]
    OUT.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


if __name__ == "__main__":
    main()
