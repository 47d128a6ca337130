"""Writes tests/golden/gr00t-n16.jsonl: what NVIDIA's released code of GR00T N1.6 computes on a CPU in float32.

    git clone -b n1.6.1-release https://github.com/NVIDIA/Isaac-GR00T
    python tests/support/golden_gr00t_n16.py Isaac-GR00T

by a Python with transformers 4.51.3, diffusers 0.35.1, albumentations 1.4.18, peft, lmdb, dm-tree and tyro. Its processor reads
pictures and texts with the released tokenizer, its model chooses, its processor decodes. The model is the released class with the
sizes of `gr00t_n16_cases`, and tokens are renumbered for its vocabulary of 64. Two things stand for what needs a GPU: attention
within each picture in place of flash-attn's kernel, and torch's attention in the language model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import gr00t_n16_cases as cases

OUT = Path(__file__).parents[1] / "golden" / "gr00t-n16.jsonl"
COMMIT = "n1.6.1-release (5dc80c4)"
IMAGE = 151669
"""The token of a picture in the released tokenizer."""
EAGLE = Path("gr00t/model/modules/nvidia/Eagle-Block2A-2B-v2")


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cu_seqlens_q: torch.Tensor, **_: Any) -> torch.Tensor:
    """[tokens, heads, width]: in place of `flash_attn_varlen_func`, each sequence by itself."""
    ends = cu_seqlens_q.tolist()
    parts = [[x[a:b].transpose(0, 1)[None] for x in (q, k, v)] for a, b in pairwise(ends)]
    seen = [torch.nn.functional.scaled_dot_product_attention(*part)[0].transpose(0, 1) for part in parts]
    return torch.cat(seen)


def small(checkout: Path, place: Path) -> None:
    """A copy of the code whose Eagle is small."""
    shutil.copytree(checkout / "gr00t", place / "gr00t")
    file = place / EAGLE / "config.json"
    table = json.loads(file.read_text())
    table["image_token_index"] = cases.IMAGE
    table["text_config"] |= cases.TEXT_SIZES | {"bos_token_id": None, "eos_token_id": None}
    table["vision_config"] |= cases.VISION_SIZES
    file.write_text(json.dumps(table))


def made() -> Any:
    from gr00t.configs.model.gr00t_n1d6 import Gr00tN1d6Config
    from gr00t.model.gr00t_n1d6.gr00t_n1d6 import Gr00tN1d6
    from transformers import PreTrainedModel
    from transformers.modeling_utils import no_init_weights

    PreTrainedModel._check_and_enable_flash_attn_2 = classmethod(lambda cls, config, *_, **__: config)  # it is asked for by name
    with no_init_weights():  # the released code of its vision tower can't draw weights
        model = Gr00tN1d6(Gr00tN1d6Config(**cases.HEAD)).float().eval()
    eagle = model.backbone.model
    tower = vars(sys.modules[type(eagle.vision_model).__module__])
    tower |= {"flash_attn_varlen_func": attend, "_flash_supports_window_size": False}
    eagle.language_model.config._attn_implementation = "sdpa"
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.copy_(cases.weight(name, one.shape))
    return model


def read(way: str, processor: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the collated inputs of all calls, the states of each)."""
    from gr00t.data.embodiment_tags import EmbodimentTag
    from gr00t.data.types import VLAStepData

    shown = {camera: cases.pictures(way, camera).numpy() for camera in cases.CAMERAS}
    steps, states = [], []
    for n, text in enumerate(cases.TEXTS):
        numbers = cases.states()[n][None].numpy()
        states.append({"joints": numbers[:, :3], "gripper": numbers[:, 3:]})
        images = {camera: [pictures[n]] for camera, pictures in shown.items()}
        step = VLAStepData(images=images, states=states[n], actions={}, text=text, embodiment=EmbodimentTag(cases.EMBODIMENT))
        steps.append(processor([{"role": "user", "content": step}]))
    return dict(processor.collator(steps)["inputs"]), states


@torch.no_grad()
def computed(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    noise, times = cases.filled("noise", cases.CALLS, cases.AHEAD, cases.NUMBERS), torch.tensor([0.25, 0.6])
    head, number = model.action_head, inputs["embodiment_id"]
    given = {key: x.float() if torch.is_tensor(x) and x.is_floating_point() else x for key, x in inputs.items()}
    backbone, action = model.prepare_input(dict(given))
    seen = model.backbone(backbone)
    features = seen["backbone_features"].clone()
    encoded = head._encode_features(seen, action)
    buckets = (times * 1000).long()
    tokens = head.action_encoder(noise, buckets, number) + head.position_embedding(torch.arange(cases.AHEAD))
    hidden = head.model(
        hidden_states=torch.cat([encoded.state_features, tokens], 1),
        encoder_hidden_states=encoded.backbone_features,
        timestep=buckets,
        image_mask=seen.image_mask,
        backbone_attention_mask=seen.backbone_attention_mask,
    )
    velocity = head.action_decoder(hidden, number)[:, -cases.AHEAD :]
    drawn, torch.randn = torch.randn, lambda *_, **__: noise.clone()
    chosen = model.get_action(dict(given))["action_pred"]
    torch.randn = drawn
    return {"features": features, "state": inputs["state"][:, 0], "velocity": velocity, "normalised": chosen}


def row(way: str, model: Any) -> dict[str, Any]:
    from gr00t.data.embodiment_tags import EmbodimentTag
    from gr00t.model.gr00t_n1d6.processing_gr00t_n1d6 import Gr00tN1d6Processor

    config, statistics = cases.tables()
    tables: dict[str, Any] = {"modality_configs": {cases.EMBODIMENT: config}, "statistics": {cases.EMBODIMENT: statistics}}
    processor = Gr00tN1d6Processor(**tables, **cases.KWARGS | cases.SETTINGS[way])
    processor.eval()
    inputs, states = read(way, processor)
    tokens, mask = inputs["input_ids"], inputs["attention_mask"]
    said = [processor.processor.tokenizer.decode(ids[real == 1]) for ids, real in zip(tokens, mask, strict=True)]
    inputs["input_ids"] = torch.where(tokens == IMAGE, cases.IMAGE, tokens % (cases.IMAGE - 1))
    pixels = torch.cat(list(inputs["pixel_values"]))
    numbers = (pixels * 127.5 + 127.5).round().to(torch.uint8).numpy()
    found, tag = computed(model, inputs), EmbodimentTag(cases.EMBODIMENT)
    actions = []
    for chosen, state in zip(found["normalised"], states, strict=True):
        decoded = processor.decode_action(chosen[None].numpy(), tag, {group: one[None] for group, one in state.items()})
        actions.append(torch.cat([torch.from_numpy(decoded[group]) for group in ("joints", "gripper")], -1))
    found["actions"] = torch.cat(actions)
    rounded = {name: [[round(x, 6) for x in line] for line in x.double().flatten(0, -2).tolist()] for name, x in found.items()}
    return {
        **{"how": f"ran NVIDIA/Isaac-GR00T {COMMIT}", "way": way, "said": said},
        **{"ids": inputs["input_ids"].tolist(), "mask": mask.tolist(), "size": list(pixels.shape)},
        **{"pixels": hashlib.sha256(numbers.tobytes()).hexdigest(), "first": pixels[0, :, 0, 0].tolist()},
        **rounded,
    }


def main() -> None:
    checkout = Path(sys.argv[1])
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_MODULES_CACHE"] = folder
        small(checkout, Path(folder))
        sys.path.insert(0, folder)
        model = made()
        rows = [row(way, model) for way in cases.SETTINGS]
    OUT.write_text("".join(json.dumps(one) + "\n" for one in rows))


if __name__ == "__main__":
    main()
