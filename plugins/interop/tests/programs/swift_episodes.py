"""Runs in ms-swift's own environment: its gym scheduler plays the episodes of an exported file with a policy that says what it is
told.

`python swift_episodes.py FILE EXTERNAL < turns.json`: EXTERNAL is the file for `--external_plugins`; turns is a list of [row, the
texts of its turns]. Prints a list of what the scheduler keeps of each episode, with its messages.
"""

import asyncio
import json
import sys

from swift.dataset import load_dataset
from swift.infer_engine.protocol import RolloutInferRequest
from swift.rollout.multi_turn import GYMScheduler
from swift.utils.utils import import_external_file


async def episode(scheduler: GYMScheduler, row: dict, number: int, texts: list[str]) -> dict:
    columns = {k: v for k, v in row.items() if k != "messages"}
    request = RolloutInferRequest(messages=list(row["messages"]), data_dict=columns, uuid=str(number))
    await scheduler.on_trajectory_start([request])
    kept: dict = {}
    for turn, text in enumerate(texts):
        request.messages.append({"role": "assistant", "content": text})
        ended = await scheduler.on_turn_end(request, None, turn)
        kept = ended["rollout_infos"]
        if ended["done"]:
            break
        scheduler.step(request, None, turn)
    return {**kept, "messages": request.messages}


async def main() -> None:
    file, external = sys.argv[1:]
    data, _ = load_dataset([file], use_hf=True, remove_unused_columns=False, load_from_cache_file=False)
    import_external_file(external)
    scheduler = GYMScheduler(max_turns=8)
    turns = json.load(sys.stdin)
    told = [await episode(scheduler, data[row], number, texts) for number, (row, texts) in enumerate(turns)]
    print()
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
