"""Writes tests/golden/pacs.jsonl: what PACS's released code makes of log-probabilities and scores. Needs scikit-learn.

    git clone https://github.com/ritzz-ai/PACS && git -C PACS checkout 4c987b4
    python tests/support/golden_pacs.py PACS

Of its `compute_pacs_loss`, with the estimator and weights of its scripts: the loss, and its gradient by the log-probabilities.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

OUT = Path(__file__).parents[1] / "golden" / "pacs.jsonl"
COMMIT = "4c987b4"


def main() -> None:
    spec = importlib.util.spec_from_file_location("pacs_core_algos", Path(sys.argv[1]) / "src" / "pacs" / "pacs_core_algos.py")
    assert spec and spec.loader
    published = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(published)
    noise, rows = torch.Generator().manual_seed(0), []
    for _ in range(72):
        groups, size, t = (int(torch.randint(low, high, (), generator=noise)) for low, high in ((1, 4), (2, 6), (1, 5)))
        n, beta = groups * size, float(torch.randint(1, 5, (), generator=noise)) / 2
        lengths = torch.randint(1, t + 1, (n,), generator=noise)
        lengths[0] = t
        mask = (torch.arange(t)[None] < lengths[:, None]).float()
        # its code sums over padding too, where both are the model's: nothing, if they are equal there
        old = (torch.randn(n, t, generator=noise) - 2).round(decimals=3) * mask
        now = (old + 0.4 * torch.randn(n, t, generator=noise) * mask).round(decimals=3).requires_grad_()
        correct = torch.randint(0, 2, (n,), generator=noise).float()
        scores = torch.zeros(n, t)
        scores[torch.arange(n), lengths - 1] = correct
        options = SimpleNamespace(beta=beta, reward_method="1", adv_estimator="rloo", use_weight=True, weight_mode="question")
        prompts = torch.arange(groups).repeat_interleave(size)[:, None]
        loss = published.compute_pacs_loss(prompts, old, now, scores, mask, size, options)
        loss.backward()
        row = {
            "correct": correct.tolist(),
            "groups": prompts[:, 0].tolist(),
            "lengths": lengths.tolist(),
            "beta": beta,
            "old": [[round(x, 3) for x in each] for each in old.tolist()],
            "logprobs": [[round(x, 3) for x in each] for each in now.tolist()],
            "loss": loss.item(),
            "gradient": [[round(x, 8) for x in each] for each in now.grad.tolist()],
            "how": f"ran ritzz-ai/PACS @{COMMIT}: src/pacs/pacs_core_algos.py, compute_pacs_loss",
        }
        rows.append(json.dumps(row))
    OUT.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
