"""Runs in ms-swift's own environment: reads an exported file with ms-swift's loader, and scores completions with its rewards.

`python swift_rewards.py FILE EXTERNAL < completions.json`: EXTERNAL is the file for `--external_plugins`; completions is a list
of [row, text]. Prints one JSON object.
"""

import io
import json
import sys

import torch
from PIL import Image
from swift.dataset import load_dataset
from swift.rewards import orms
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import score_completions
from swift.utils.utils import import_external_file


def main() -> None:
    file, external = sys.argv[1:]
    data, _ = load_dataset([file], use_hf=True, remove_unused_columns=False, load_from_cache_file=False)
    import_external_file(external)
    samples = []
    for index, text in json.load(sys.stdin):
        row = {**data[index], "messages": [*data[index]["messages"], {"role": "assistant", "content": text}]}
        sample = GRPOSample.from_row(row)
        sample.response_token_ids = [[1] * len(text)]
        samples.append(sample)
    rewards = score_completions(samples, [orms["mmrl"](args=None)], [None], False, torch.device("cpu"))
    told = [
        {"messages": row["messages"], "sizes": [Image.open(io.BytesIO(image["bytes"])).size for image in row["images"]]}
        for row in data
    ]
    print()
    print(json.dumps({"rows": told, "rewards": rewards[:, 0].tolist()}))


if __name__ == "__main__":
    main()
