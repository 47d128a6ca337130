"""Runs in verl's own environment: verl's agent loop worker plays the episodes of an exported file with a policy that says what it
is told.

`python verl_episodes.py FILE MODEL_FOLDER AGENT_LOOPS < turns.json`: turns is a list of [row, the texts of its turns]. Prints a
list of what each episode became.
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import verl
from hydra import compose, initialize_config_dir
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

PROMPT, RESPONSE = 256, 96


class Told:
    """In the place of verl's client of the engine: says the texts of an episode in order, each with its end."""

    def __init__(self, texts: list[str], tokenizer) -> None:
        self.texts, self.tokenizer, self.asked = iter(texts), tokenizer, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, image_data=None, video_data=None) -> TokenOutput:
        ids = self.tokenizer.encode(next(self.texts), add_special_tokens=False)
        ids = [*ids, self.tokenizer.convert_tokens_to_ids("<|im_end|>")][: sampling_params["max_tokens"]]
        self.asked.append([len(prompt_ids), len(image_data or ()), sampling_params["max_tokens"]])
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"max_global_steps": 1})


def main() -> None:
    file, folder, loops = sys.argv[1:]
    turns = json.load(sys.stdin)
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={folder}",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
                "actor_rollout_ref.rollout.name=vllm",
                f"actor_rollout_ref.rollout.prompt_length={PROMPT}",
                f"actor_rollout_ref.rollout.response_length={RESPONSE}",
                "actor_rollout_ref.rollout.calculate_log_probs=true",
                "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4",
                "data.return_raw_chat=true",
                "data.filter_overlong_prompts=false",
            ],
        )

    async def play() -> list[dict]:
        worker = AgentLoopWorker(config, None)
        data = RLHFDataset(file, worker.tokenizer, config.data, worker.processor)
        return [await episode(worker, data[row], texts) for row, texts in turns]

    print()
    print(json.dumps(asyncio.run(play())))


async def episode(worker: AgentLoopWorker, row: dict, texts: list[str]) -> dict:
    batch = collate_fn([row])
    worker.llm_client = told = Told(texts, worker.tokenizer)
    batch = DataProto.from_dict(
        tensors={k: v for k, v in batch.items() if not isinstance(v, np.ndarray)},
        non_tensors={k: v for k, v in batch.items() if isinstance(v, np.ndarray)},
    )
    made = await worker.generate_sequences(batch)
    tensors, others = {k: v[0] for k, v in made.batch.items()}, {k: v[0] for k, v in made.non_tensor_batch.items()}
    length = int(tensors["attention_mask"][PROMPT:].sum())
    ids, mask = tensors["responses"][:length], tensors["response_mask"][:length].bool()
    images = others["multi_modal_inputs"].get("image_grid_thw", ())
    return {
        "text": worker.tokenizer.decode(ids),
        "sampled": worker.tokenizer.decode(ids[mask]),
        "reward": float(tensors["rm_scores"][length - 1]),
        "elsewhere": float(tensors["rm_scores"].abs().sum() - tensors["rm_scores"][length - 1].abs()),
        "logprobs": tensors["rollout_log_probs"][:length][mask].tolist(),
        "turns": int(others["__num_turns__"]),
        "missing": float(others["missing"]),
        "asked": told.asked,
        "image_tokens": [
            int((tensors["input_ids"] == worker.tokenizer.convert_tokens_to_ids("<|image_pad|>")).sum()),
            sum(int(t * h * w) // 4 for t, h, w in images),
        ],
    }


if __name__ == "__main__":
    main()
