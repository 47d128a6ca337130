"""GR00T N1.7 as a whole: the first layers of a Qwen3-VL read pictures and an instruction, and the action head reads their output.

The Qwen3-VL is transformers'. The files hold its weights below `backbone.model.` and don't hold its sizes: config.json names the
model that it was made from. Letters as in `head`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from mmrl.api.errors import UserError, shorten
from mmrl.api.transfer import upload
from mmrl.policies.acting.flow_noise import is_noise
from mmrl.policies.gr00t import lerobot_layout
from mmrl.policies.gr00t.config import HeadConfig, head_config
from mmrl.policies.gr00t.head import FLOAT32, ActionHead, Context
from mmrl.policies.gr00t.hub import CONFIG
from mmrl.policies.vlm.packed_rows import padded_rows
from mmrl.policies.vlm.vision import count_on_host, stack_pictures

KIND = "Gr00tN1d7"
"""`model_type` of config.json."""
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEAD, BACKBONE = "action_head.", "backbone.model.model."
IDLE = "backbone.model.lm_head."
"""The head of the Qwen3-VL, which is not used: a copy of its embeddings, where files have it. LeRobot's have it alone."""
EMBEDDINGS = "backbone.language_model.embed_tokens.weight"
OWN_BACKBONE = "backbone"
"""A folder beside the weights with the Qwen3-VL's configuration and processor, where mmrl has saved them; published checkpoints
have none."""
COSMOS = "nvidia/Cosmos-Reason2-2B"
COSMOS_TEXT = {
    **{"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144},
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
}
COSMOS_VISION = {
    **{"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048},
    **{"patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17]},
}
"""Sizes in the config.json of nvidia/Cosmos-Reason2-2B, those of Qwen3-VL-2B-Instruct."""


class Network(nn.Module):
    """`backbone` is a Qwen3-VL without the layers that aren't used, `action_head` reads what its last layer gives to its norm."""

    def __init__(self, backbone: Any, head: HeadConfig, layers: int, attention: str = "sdpa") -> None:
        """backbone: the configuration of the Qwen3-VL. layers: of its language model, how many are used. attention: of the
        Qwen3-VL, see `policy.attn_implementation`. Raises UserError if it has fewer layers, or another width than the head
        reads."""
        from transformers import Qwen3VLModel

        super().__init__()
        there, width = backbone.text_config.num_hidden_layers, backbone.text_config.hidden_size
        if not 1 <= layers <= there:
            raise UserError(
                f"config.json: select_layer = {layers!r:.60}, and the backbone has {there} layers: take its own backbone"
            )
        if width != head.backbone_embedding_dim:
            raise UserError(
                f"config.json: backbone_embedding_dim = {head.backbone_embedding_dim}, and the backbone is {width} wide: "
                "take its own backbone"
            )
        self.backbone = Qwen3VLModel._from_config(copy.deepcopy(backbone), attn_implementation=attention)
        del self.backbone.language_model.layers[layers:]
        count_on_host(self.backbone)
        if attention == "sdpa":
            stack_pictures(self.backbone)
        self.action_head = ActionHead(head)

    def features(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[n, P, F]. inputs: of a Qwen3-VL's processor, `mm_token_type_ids` with them, and as many pictures in each call. All but
        the pixels are on the host, where what depends on their numbers is computed: a device would be waited for."""
        return self._read(inputs, self._uploaded(inputs))

    def encode(self, inputs: Mapping[str, torch.Tensor], state_nS: torch.Tensor, embodiment_n: torch.Tensor) -> Context:
        """inputs: see `features`; state_nS, embodiment_n: see `ActionHead.encode`."""
        there = self._uploaded(inputs)
        images_nP = there["input_ids"] == self.backbone.config.image_token_id
        return self.action_head.encode(self._read(inputs, there), there.get("real_nP"), images_nP, state_nS, embodiment_n)

    def _uploaded(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is read of a call besides pixels, on their device; `real_nP` only where there is padding."""
        real_nP = inputs["attention_mask"].bool()
        found = {"input_ids": inputs["input_ids"], "position_ids": self._positions(inputs)}
        return upload(found if real_nP.all() else found | {"real_nP": real_nP}, inputs["pixel_values"].device)

    def _positions(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """int64 [3, n, P], counted once for all calls that are alike: most have one instruction."""
        names = ("input_ids", "mm_token_type_ids", "attention_mask")
        ids_nP, types_nP, mask_nP = (inputs[name].long() for name in names)
        grids_nC3 = inputs["image_grid_thw"].unflatten(0, (len(ids_nP), -1))
        kind_n = torch.cat([ids_nP, mask_nP, grids_nC3.flatten(1)], 1).unique(dim=0, return_inverse=True)[1]
        rows = torch.tensor([kind_n.tolist().index(kind) for kind in range(int(kind_n.max()) + 1)])  # the first of each kind
        counted: torch.Tensor = self.backbone.get_rope_index(
            ids_nP[rows],
            mm_token_type_ids=types_nP[rows],
            image_grid_thw=grids_nC3[rows].flatten(0, 1),
            attention_mask=mask_nP[rows],
        )[0]
        return counted[:, kind_n]

    def _read(self, inputs: Mapping[str, torch.Tensor], there: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found: list[torch.Tensor] = []
        language = self.backbone.language_model
        given = {name: there[name] for name in ("input_ids", "position_ids")}
        given |= {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        real_nP = there.get("real_nP")
        hook = language.norm.register_forward_pre_hook(lambda _, read: found.append(read[0]))
        try:
            with nullcontext() if real_nP is None else padded_rows(type(language.config)):
                self.backbone(**given, attention_mask=real_nP, use_cache=False)
        finally:
            hook.remove()
        return found[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What config.json says of a network."""

    table: dict[str, Any]
    """config.json as it is."""
    head: HeadConfig
    backbone: Any
    """The configuration of the Qwen3-VL."""
    backbone_name: str = ""
    """A folder or hub name with that configuration and its processor."""
    lerobot: Mapping[str, bytes] = field(default_factory=dict)
    """LeRobot's files beside the weights, if it saved them."""

    @property
    def layers(self) -> int:
        """Layers of its language model that are used."""
        found: int = self.table.get("select_layer", 16)
        return found

    def network(self, attention: str = "sdpa") -> Network:
        """A network with random weights."""
        return Network(self.backbone, self.head, self.layers, attention)


def read_plan(folder: Path) -> Plan:
    """Raises UserError for a folder that holds no GR00T N1.7, or one of another layout."""
    try:
        table, places, lerobot = json.loads((folder / CONFIG).read_text(encoding="utf-8")), [folder], dict[str, bytes]()
        if tuned := lerobot_layout.table_of(folder):
            table, base = lerobot_layout.base_of(folder, tuned)
            places, lerobot = [folder, base] if base else [folder], lerobot_layout.kept_files(folder)
        if table.get("model_type") != KIND:
            raise ValueError(f"its {CONFIG} is of {table.get('model_type')!r:.60}, not of {KIND}")
        own = [str(place / OWN_BACKBONE) for place in places if (place / OWN_BACKBONE).is_dir()]
        name = own[0] if own else str(table.get("model_name", COSMOS))
        head = head_config(table)
        plan = Plan(table=table, head=head, backbone=backbone_config(name), backbone_name=name, lerobot=lerobot)
        with torch.device("meta"):
            plan.network()
    except UserError as error:
        raise UserError(f"{str(folder)!r}: {error.what}", key="policy.model") from error
    except Exception as error:
        raise UserError(
            f"{str(folder)!r} can't be read: {shorten(error, 300)}: give a folder with a GR00T N1.7", key="policy.model"
        ) from error
    return plan


def load_network(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Network:
    """The network of a folder with a GR00T N1.7. Raises UserError for a folder that holds none, and for weights that are missing,
    left over or of another shape than in config.json."""
    plan = read_plan(folder)
    with torch.device("meta"):
        wanted = {name: tuple(p.shape) for name, p in plan.network().named_parameters()}
    try:
        weights = _weights(folder)
    except Exception as error:
        raise UserError(
            f"{str(folder)!r} can't be read: {shorten(error, 300)}: give a folder with a GR00T N1.7", key="policy.model"
        ) from error
    odd = sorted(
        name for name in wanted.keys() | weights.keys() if name not in weights or wanted.get(name) != weights[name].shape
    )
    if odd:
        there = list(weights[odd[0]].shape) if odd[0] in weights else "missing"
        here = list(wanted[odd[0]]) if odd[0] in wanted else "unknown"
        more = f" (and {len(odd) - 1} more weights)" if len(odd) > 1 else ""
        what = f"{odd[0]} is {there} in its files and {here} by its config.json{more}"
        raise UserError(f"{str(folder)!r}: {what}: take both from one checkpoint", key="policy.model")
    with torch.random.fork_rng(devices=[]):  # once more with buffers, such as rotary frequencies, which no file has
        from transformers import initialization

        with initialization.no_init_weights():
            whole = plan.network(attention)
    # copied: where a tensor begins in a mapped file decides which instructions compute with it, and the last bits of gradients
    own = {name: weights.pop(name).to(dtype_of(name, dtype), copy=True) for name in list(weights)}
    whole.load_state_dict(own, strict=False, assign=True)
    return whole.eval()


def dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a weight in a network of this one."""
    parts = name.split(".")
    return torch.promote_types(dtype, torch.float32) if parts[0] == "action_head" and parts[1] in FLOAT32 else dtype


def save_network(network: Network, table: Mapping[str, Any], folder: Path, lerobot: Mapping[str, bytes] | None = None) -> None:
    """Write config.json and the weights under their published names, and the Qwen3-VL's own configuration beside them. lerobot:
    files of LeRobot's, whose layout is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    file = lerobot_layout.BASE if lerobot else CONFIG
    (folder / file).write_text(json.dumps(dict(table), indent=2), encoding="utf-8")
    for name, content in (lerobot or {}).items():
        (folder / name).write_bytes(content)
    begin = lerobot_layout.PREFIX if lerobot else ""
    network.backbone.config.save_pretrained(folder / OWN_BACKBONE)
    weights = {
        begin + (f"{BACKBONE}{n.removeprefix('backbone.')}" if n.startswith("backbone.") else n): w
        for n, w in network.named_parameters()
        if not is_noise(n)
    }
    save_file({name: w.detach().contiguous() for name, w in weights.items()}, folder / SINGLE, metadata={"format": "pt"})


def backbone_config(name: str) -> Any:
    """The configuration of the Qwen3-VL that `model_name` of config.json names: a folder, a hub name, or `COSMOS`, whose sizes
    are known."""
    from transformers import AutoConfig, Qwen3VLConfig

    if name == COSMOS:
        tokens = {
            "image_token_id": 151655,
            "video_token_id": 151656,
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
        }
        return Qwen3VLConfig(text_config=COSMOS_TEXT, vision_config=COSMOS_VISION, tie_word_embeddings=True, **tokens)
    found = AutoConfig.from_pretrained(name)
    if found.model_type != "qwen3_vl":
        raise UserError(f"config.json: model_name = {name!r} is a {found.model_type} model, not a Qwen3-VL: take GR00T N1.7")
    return found


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the files, under the network's names."""
    index = folder / INDEX
    named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else [SINGLE]
    found: dict[str, torch.Tensor] = {}
    for file in sorted(set(named)):
        with safe_open(folder / file, "pt") as opened:
            keys = {_own_name(key): key for key in opened.keys()}  # noqa: SIM118
            head = keys.pop(f"{IDLE}weight", None)
            if head is not None and head.startswith(lerobot_layout.PREFIX):
                keys.setdefault(EMBEDDINGS, head)
            found |= {own: opened.get_tensor(key) for own, key in keys.items()}
    return found


def _own_name(key: str) -> str:
    key = key.removeprefix(lerobot_layout.PREFIX)
    return f"backbone.{key.removeprefix(BACKBONE)}" if key.startswith(BACKBONE) else key
