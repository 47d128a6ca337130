"""Runs on a checkout of EasyR1: reads an exported file with its data set, and scores completions with its reward manager.

`PYTHONPATH=CHECKOUT python easyr1_rewards.py FILE MODEL_FOLDER REWARD < completions.json`: REWARD is what a run names,
path:function; completions is a list of [row, text]. Prints one JSON object.
"""

import json
import sys

import numpy as np
import torch
from transformers import AutoProcessor
from verl.protocol import DataProto
from verl.utils.dataset import RLHFDataset, process_image
from verl.workers.reward.config import RewardConfig
from verl.workers.reward.function import AutoRewardManager


def main() -> None:
    file, folder, reward = sys.argv[1:]
    processor = AutoProcessor.from_pretrained(folder)
    tokenizer = processor.tokenizer
    data = RLHFDataset(file, tokenizer, processor, max_prompt_length=1000, filter_overlong_prompts=False)
    config = RewardConfig(reward_function=reward, reward_function_kwargs={"timeout_s": 1.0})
    config.post_init()
    manager = AutoRewardManager(config, tokenizer)
    completions = json.load(sys.stdin)
    ids = [torch.tensor([*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]) for _, text in completions]
    responses = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    truth = np.array([data.dataset[index]["answer"] for index, _ in completions], dtype=object)
    batch = DataProto.from_dict(tensors={"responses": responses, "response_mask": mask}, non_tensors={"ground_truth": truth})
    rewards, metrics = manager.compute_reward(batch)
    told = [
        {"messages": data._build_messages(row), "sizes": [process_image(image, None, None).size for image in row["images"]]}
        for row in data.dataset
    ]
    print()
    print(json.dumps({"rows": told, "rewards": rewards.sum(-1).tolist(), "metrics": metrics}))


if __name__ == "__main__":
    main()
