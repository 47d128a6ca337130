"""Writes tests/golden/consistency.jsonl: the consistency bonus of GRPO-CARE's released trainer.

    git clone https://github.com/TencentARC/GRPO-CARE && git -C GRPO-CARE checkout b0628fc
    python tests/support/golden_consistency.py GRPO-CARE

Run are `get_thinking_answer_masks` and the block that pays the bonus, both in `compute_loss` of `grpo_trainer_ref_ema.py`, on
groups of completions whose reference log-probabilities are drawn.
"""

from __future__ import annotations

import ast
import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

OUT = Path(__file__).parents[1] / "golden" / "consistency.jsonl"
SOURCE = "src/r1-v/src/open_r1/trainer/grpo_trainer_ref_ema.py"
PROMPT, PAD, EOS = ["user", "?"], "<|endoftext|>", "<|im_end|>"
OPEN, CLOSE = ["<", "answer", ">"], ["</", "answer", ">"]
SAID = (
    ["<", "think", ">", "a", "Ġb", "</", "think", ">", *OPEN, "B", *CLOSE],
    ["I", "Ġlook", *OPEN, "the", "Ġred", "Ġcar", *CLOSE],
    [*OPEN, "A", *CLOSE, "Ġno", ",", "Ġ", *OPEN, "B", *CLOSE],
    ["Ġanswer", *OPEN, "1", "2", ".", "5", *CLOSE],
    ["a", "Ġb", "Ġc"],
    ["the", "Ġ<", "answer", ">A", *CLOSE],
)
SETTINGS = (
    {"bonus": 0.5, "margin": 0.01, "cap": 0.95},
    {"bonus": 1.0, "margin": 0.0, "cap": 0.95},
    {"bonus": 0.5, "margin": 0.2, "cap": 0.6},
)


def main() -> None:
    tree = ast.parse((Path(sys.argv[1]) / SOURCE).read_text())
    masks = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "get_thinking_answer_masks")
    paying = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "self.use_care"]
    block = next(n for n in paying if "bonus_mask" in ast.unparse(n))
    code = compile(ast.Module([masks, block], []), SOURCE, "exec")
    rows = [row(code, random.Random(seed), SETTINGS[seed % len(SETTINGS)]) for seed in range(30)]
    OUT.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


def row(code: Any, draw: random.Random, settings: dict[str, float]) -> dict[str, Any]:
    said = [draw.choice(SAID) for _ in range(6)]
    accuracy = [draw.choice((0.0, 1.0, 1.0, 0.05, 0.6)) if "B" in s or "1" in s or "Ġred" in s else 0.0 for s in said]
    longest = max(map(len, said)) + 1
    vocabulary = sorted({PAD, EOS, *PROMPT, *(piece for s in said for piece in s)})
    number = {piece: n for n, piece in enumerate(vocabulary)}
    ids = torch.tensor([[number[p] for p in [*PROMPT, *s, EOS, *[PAD] * (longest - len(s) - 1)]] for s in said])
    logps = torch.tensor([[round(draw.uniform(-2, 0), 3) for _ in range(longest)] for _ in said])
    tokenizer = SimpleNamespace(pad_token_id=number[PAD], convert_ids_to_tokens=lambda x: [vocabulary[i] for i in x.tolist()])
    owner = SimpleNamespace(
        use_care=True,
        processing_class=SimpleNamespace(tokenizer=tokenizer),
        confidence_upper_bound=settings["cap"],
        consistency_margin=settings["margin"],
        bonus_coefficient=settings["bonus"],
    )
    eos = torch.tensor([len(s) for s in said])
    places = torch.arange(longest).expand(len(said), -1)
    known: dict[str, Any] = {"self": owner, "torch": torch, "os": os, "device": "cpu", "eos_idx": eos, "sequence_indices": places}
    known |= {"prompt_completion_ids": ids, "prompt_length": len(PROMPT), "completion_mask": (places <= eos[:, None]).int()}
    known |= {
        "ref_per_token_logps": logps,
        "rewards_per_func": torch.tensor(accuracy)[:, None],
        "rewards": torch.zeros(len(said)),
    }
    exec(code, known)
    return {
        **{
            "pieces": [[*s, EOS] for s in said],
            "logprobs": [[round(v, 3) for v in x[: len(s) + 1].tolist()] for s, x in zip(said, logps, strict=True)],
        },
        **{"accuracy": accuracy, "settings": settings, "bonus": known["bonus_rewards"].tolist()},
        "answers": [mask.nonzero().flatten().tolist() for mask in known["mask_answer"]],
        "how": f"ran TencentARC/GRPO-CARE @b0628fc: {SOURCE}",
    }


if __name__ == "__main__":
    main()
