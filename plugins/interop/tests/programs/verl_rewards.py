"""Runs in verl's own environment: reads an exported file with verl's data set, and scores completions with its reward manager.

`python verl_rewards.py FILE MODEL_FOLDER < completions.json`: completions is a list of [row, text]. Prints one JSON object.
"""

import asyncio
import json
import sys

import numpy as np
import torch
from omegaconf import OmegaConf
from transformers import AutoProcessor
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

CONFIG = {
    "reward": {
        "reward_manager": {"source": "register", "name": "naive"},
        "custom_reward_function": {
            "path": "pkg://mmrl_interop.verl",
            "name": "compute_score",
            "reward_kwargs": {"timeout_s": 1.0},
        },
    }
}


def sizes(data: RLHFDataset, row: dict) -> list:
    """Sizes of a row's images as verl's processor gives them to the model."""
    images, *_ = data._process_multi_modal_info(row["raw_prompt"], data.image_patch_size, data.config)
    if not images:
        return []
    text = data.processor.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, tokenize=False)
    grid = data.processor(text=[text], images=images, return_tensors="pt")["image_grid_thw"]
    patch = data.processor.image_processor.patch_size
    return [[int(w) * patch, int(h) * patch] for _, h, w in grid]


async def scores(data: RLHFDataset, completions: list) -> list:
    tokenizer = data.tokenizer
    manager = load_reward_manager(OmegaConf.create(CONFIG), tokenizer)

    async def score(index: int, text: str) -> dict:
        row = collate_fn([data[index]])
        ids = torch.tensor([[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]])
        tensors = {"prompts": torch.ones(1, 2, dtype=torch.long), "responses": ids}
        tensors |= {"attention_mask": torch.ones(1, 2 + ids.shape[1], dtype=torch.long)}
        fields = {k: v for k, v in row.items() if isinstance(v, np.ndarray)}
        return await manager.run_single(DataProto.from_dict(tensors=tensors, non_tensors=fields))

    return await asyncio.gather(*(score(index, text) for index, text in completions))


def main() -> None:
    file, folder = sys.argv[1:]
    processor = AutoProcessor.from_pretrained(folder)
    config = OmegaConf.create({"filter_overlong_prompts": True, "max_prompt_length": 1000, "filter_overlong_prompts_workers": 1})
    data = RLHFDataset(file, processor.tokenizer, config, processor)
    rows = [data[i] for i in range(len(data))]
    made = asyncio.get_event_loop().run_until_complete(scores(data, json.load(sys.stdin)))
    told = [
        {
            "parts": [[p["type"] for p in m["content"]] if isinstance(m["content"], list) else "text" for m in row["raw_prompt"]],
            "text": processor.apply_chat_template(row["raw_prompt"], tokenize=False),
            "data_source": row["data_source"],
            "sizes": sizes(data, row),
        }
        for row in rows
    ]
    print()
    print(json.dumps({"rows": told, "rewards": made}))


if __name__ == "__main__":
    main()
