"""The families of which something must be known that trying a model doesn't show."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from importlib.metadata import version as installed
from typing import Any

import torch
from packaging.version import Version
from torch.nn.functional import pad

from mmrl.api.errors import UserError
from mmrl.policies.layers import cache_argument
from mmrl.policies.resizing import crop_like_tensorflow, resize
from mmrl.policies.vlm.capabilities import UNKNOWN, Capabilities
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.hearing import hear_apart
from mmrl.policies.vlm.mllama import Mllama
from mmrl.policies.vlm.plugin_families import plugin_family
from mmrl.policies.vlm.prompt_inputs import FRAMES, SECONDS_PER_GRID, SOUNDS
from mmrl.policies.vlm.vision import speed_up


def before(version: str, why: str) -> str:
    """`why`, if the installed transformers is older than this version; nothing otherwise."""
    return f"in transformers before {version} {why}" if Version(installed("transformers")) < Version(version) else ""


class PaliGemma(Family):
    """PaliGemma: token type 0 is the prompt, whose attention is bidirectional; a completion's must not be.

    A second turn would make the first answer part of a prompt, and the update would see its tokens in both directions."""

    completion_type = 1
    has_turns = False


class Cohere(Family):
    """Aya Vision and Command A Vision. Their language model multiplies logits by `logit_scale` (transformers' Cohere2ForCausalLM,
    and vLLM). transformers' classes with pictures leave that out since 4.52, which makes the distribution sharper by as much."""

    def __init__(self, model: Any, processor: Any, capabilities: Capabilities = UNKNOWN) -> None:
        super().__init__(model, processor, capabilities)
        if not model_scales(model) and scaled not in model._forward_hooks.values():
            model.register_forward_hook(scaled)


def model_scales(model: Any) -> bool:
    """Whether transformers' class multiplies by `logit_scale` itself."""
    return "logit_scale" in inspect.getsource(type(model).forward)


def scaled(model: Any, args: Any, output: Any) -> Any:
    """A forward hook."""
    output.logits = output.logits * model.config.get_text_config().logit_scale
    return output


class GLM(Family):
    """GLM-V: frames of videos have the token of pictures. transformers up to 5.24 looks for the features of all of them
    among the pictures', so that a video and a picture can't be in one pass: each frame is given to it as a picture."""

    def arranged(self, encoded: dict[str, torch.Tensor], ids_S: torch.Tensor) -> dict[str, torch.Tensor]:
        if "pixel_values_videos" not in encoded:
            return encoded
        config, found = self.model.config, dict(encoded)
        grids_V3, patches = found.pop("video_grid_thw"), found.pop("pixel_values_videos")
        clips = [
            (clip, torch.tensor([[1, *grid[1:]]]).expand(grid[0], 3))
            for clip, grid in zip(patches.split(grids_V3.prod(-1).tolist()), grids_V3.tolist(), strict=True)
        ]
        pictures = [
            (picture, grid[None])
            for picture, grid in zip(
                found["pixel_values"].split(found["image_grid_thw"].prod(-1).tolist()), found["image_grid_thw"], strict=True
            )
        ] if "pixel_values" in found else []  # fmt: skip
        begins, clip_begins = config.image_start_token_id, config.video_start_token_id
        shown, inside = [], False
        for token in ids_S[torch.isin(ids_S, torch.tensor([begins, clip_begins, config.video_end_token_id]))].tolist():
            if token == clip_begins:
                shown.append(clips.pop(0))
            elif token == begins and not inside:
                shown.append(pictures.pop(0))
            inside = token == clip_begins or (inside and token != config.video_end_token_id)
        found["pixel_values"] = torch.cat([patches for patches, _ in shown])
        found["image_grid_thw"] = torch.cat([grids for _, grids in shown])
        return found


class Gemma4(Family):
    no_videos = before("5.24", "its forward doesn't pass num_frames_per_video on")


class Converted(Family):
    """Llama 4 and others, whose vision tower doesn't convert pixels to the type of its weights."""

    def with_media(self, media: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        given = super().with_media(media)
        return {k: v.to(self.model.dtype) if v.is_floating_point() else v for k, v in given.items()}


class Llama4(Converted):
    """Llama 4. In transformers 5.24 its forward asks its language model's output for pictures, which that has no field for."""

    def __init__(self, model: Any, processor: Any, capabilities: Capabilities = UNKNOWN) -> None:
        super().__init__(model, processor, capabilities)
        if without_pictures not in model.language_model._forward_hooks.values():
            model.language_model.register_forward_hook(without_pictures)


def without_pictures(model: Any, args: Any, output: Any) -> None:
    """A forward hook."""
    output.image_outputs = None


class NemotronOmni(Family):
    """Nemotron 3 Nano Omni: its output embeddings are its language model's, which transformers' class doesn't hand on."""

    no_videos = "up to transformers 5.24 its processor gives a video in a form that its vision tower doesn't take"

    def __init__(self, model: Any, processor: Any, capabilities: Capabilities = UNKNOWN) -> None:
        model.get_output_embeddings = model.language_model.get_output_embeddings
        super().__init__(model, processor, capabilities)


class KimiK25(Converted):
    no_videos = before("5.24", "it counts the tokens of each frame, and has those of all frames together")


class PerceptionLM(Family):
    """Perception LM: it makes features of each tile that it is given, so tiles are given as pictures of one tile, and pictures
    with different numbers of them can be read together."""

    def arranged(self, encoded: dict[str, torch.Tensor], ids_S: torch.Tensor) -> dict[str, torch.Tensor]:
        names = {"pixel_values", "pixel_values_videos"}
        return {k: v.flatten(0, 1)[:, None] if k in names else v for k, v in encoded.items()}


class MiniCPM(Family):
    """MiniCPM-V: the patches of all pictures are one wide picture."""

    beside_each_other = ("pixel_values", "pixel_values_videos")

    def after_media(self, positions: torch.Tensor, types_S: torch.Tensor) -> torch.Tensor:
        """A picture and its slices lie on one canvas, as the model places them."""
        return positions


class Apertus(Family):
    """Apertus 1.5: codes of pictures and sounds are ids of its vocabulary, behind those of text."""

    def banned_ids(self) -> list[int]:
        outputs = self.model.get_output_embeddings().weight.shape[0]
        return sorted({*super().banned_ids(), *range(self.model.config.image_token_offset, outputs)})


class InImageTokens(Family):
    """Chameleon and Emu3, which read and write pictures as ids of their vocabulary."""

    def banned_ids(self) -> list[int]:
        return sorted({*super().banned_ids(), *self.base.vocabulary_mapping.image_tokens})


class Molmo2(Family):
    """Molmo 2. Its adapter pools patches, which it is told by their index among the patches of all pictures of a pass. All
    pictures of a conversation see each other, so that an answer would see those that follow it."""

    has_turns = False
    on_host = ("image_grids", "image_num_crops")

    def with_media(self, media: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Frames are given as pictures without crops, since the model takes no pictures beside videos. The patches of all
        pictures are numbered; where they already are, as in a prompt, nothing changes."""
        given = super().with_media(media)
        if "pixel_values_videos" in given:
            if "pixel_values" in given:
                raise UserError("a molmo2 model reads pictures or a video, and this prompt has both: show it one of them")
            frames, rows, columns = given.pop("video_grids").unbind(-1)
            given["image_grids"] = torch.stack([frames * rows, columns, 0 * columns, 0 * columns], -1)
            given["image_num_crops"] = frames
            given["pixel_values"] = given.pop("pixel_values_videos")
            given["image_token_pooling"] = given.pop("video_token_pooling")
        if "image_token_pooling" not in given:
            return given
        pools = (self.processor.image_processor.pooling_size, self.processor.video_processor.pooling_size)
        most, per_crop, start, numbered = max(map(math.prod, pools)), given["pixel_values"].shape[1], 0, []
        pooled_TP = pad(given["image_token_pooling"], (0, most - given["image_token_pooling"].shape[1]), value=-1)
        tokens = [h * w + more_h * more_w for h, w, more_h, more_w in given["image_grids"].tolist()]
        for own, crops in zip(pooled_TP.split(tokens), given["image_num_crops"].tolist(), strict=True):
            numbered.append(torch.where(own < 0, own, own - own[own >= 0].min() + start))
            start += crops * per_crop
        return given | {"image_token_pooling": torch.cat(numbered)}


class QwenVL(Family):
    """The families of Qwen: their vision tower."""

    on_host = ("image_grid_thw", "video_grid_thw")

    def __init__(self, model: Any, processor: Any, capabilities: Capabilities = UNKNOWN) -> None:
        super().__init__(model, processor, capabilities)
        speed_up(self.base)

    def model_sizes(self, encoded: Mapping[str, torch.Tensor]) -> tuple[tuple[int, int], ...]:
        patch = self.model.config.vision_config.patch_size
        return (
            tuple((w * patch, h * patch) for _, h, w in encoded["image_grid_thw"].tolist()) if "image_grid_thw" in encoded else ()
        )


class Qwen3VL(QwenVL):
    """Qwen3-VL and Qwen3.5: the text says when each frame of a video is."""


class Qwen2Audio(Family):
    """Qwen2-Audio: an encoder like Whisper's, whose features of a sound stand where its placeholders are."""

    sees, hears = False, True

    def __init__(self, model: Any, processor: Any, capabilities: Capabilities = UNKNOWN) -> None:
        super().__init__(model, processor, capabilities)
        model.model.audio_tower.embed_positions.requires_grad_(False)  # as its class says, which transformers forgets in loading


class QwenOmni(QwenVL):
    """The thinkers of Qwen2.5-Omni and Qwen3-Omni. They put pictures and sounds in among the text themselves."""

    hears = True

    @property
    def base(self) -> Any:
        """transformers 5.19 puts media in where the head is, and 5.24 in a model within, without it."""
        return self.model.base_model

    def positions(self, ids_S: torch.Tensor, encoded: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """As the model counts them: sounds as text, and frames of videos by their times, with fractions in Qwen3-Omni."""
        if not self.capabilities.packs:
            return None
        frames = encoded.get(FRAMES)
        counted: torch.Tensor = self.model.get_rope_index(
            ids_S[None],
            encoded.get("image_grid_thw"),
            encoded.get("video_grid_thw"),
            torch.ones_like(ids_S)[None],
            audio_seqlens=None if frames is None else frames.sum(-1),
            second_per_grids=encoded.get(SECONDS_PER_GRID),
        )[0][:, 0]
        return counted

    def arranged(self, encoded: dict[str, torch.Tensor], ids_S: torch.Tensor) -> dict[str, torch.Tensor]:
        """Spectrograms end with the longest sound; Qwen2.5-Omni's processor fills them up to five minutes."""
        longest = int(encoded[FRAMES].sum(-1).max()) if FRAMES in encoded else 0
        return {k: v[..., :longest].clone() if k in SOUNDS else v for k, v in encoded.items()}


class Qwen3Omni(QwenOmni):
    """Qwen3-Omni's thinker: its tower for sounds."""

    def __init__(self, model: Any, processor: Any, capabilities: Capabilities = UNKNOWN) -> None:
        super().__init__(model, processor, capabilities)
        hear_apart(model.get_encoder(modality="audio"))


class OpenVLAFamily(Family):
    """OpenVLA: pictures follow the first token; actions are the ids before the padding rows of the embeddings."""

    has_axes = False

    def banned_ids(self) -> list[int]:
        return sorted({*super().banned_ids(), self.model.config.image_id})

    def cropped(self, pictures: torch.Tensor, share: float, height: int, width: int) -> torch.Tensor:
        """Scaled first, then cropped, as in its published evaluation."""
        side = self.model.config.image_sizes[0]
        found = crop_like_tensorflow(resize(pictures, side, side), share, side)
        return resize(found, height, width)

    def state_at(self, ids_S: torch.Tensor) -> int:
        """Behind the pictures, as in OpenVLA-OFT."""
        return int((ids_S == self.model.config.image_id).nonzero().max()) + 1

    def model_sizes(self, encoded: Mapping[str, torch.Tensor]) -> tuple[tuple[int, int], ...]:
        shown = encoded.get("pixel_values")
        return () if shown is None else ((shown.shape[3], shown.shape[2]),) * len(shown)

    def hidden(
        self,
        ids_BS: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        media: Mapping[str, torch.Tensor],
        cache: Any = None,
    ) -> torch.Tensor:
        given = {cache_argument(self.model.language_model.model): cache, "use_cache": cache is not None, **media}
        found: torch.Tensor = self.model.hidden(ids_BS, attention_mask=mask, position_ids=positions[0], **given)
        return found

    @property
    def action_end(self) -> int:
        return super().action_end - int(self.model.config.pad_to_multiple_of)

    def acting(self) -> dict[str, Any]:
        config = self.model.config
        own = {"bins": config.n_action_bins, "binning": "openvla", "decoding": "one-by-one"}
        return own | {"size": config.image_sizes[0], "lower_case": True}


FAMILIES: dict[str, type[Family]] = {
    "openvla": OpenVLAFamily,
    "qwen2_audio": Qwen2Audio,
    "qwen2_5_omni_thinker": QwenOmni,
    "qwen3_omni_moe_thinker": Qwen3Omni,
    "qwen2_vl": QwenVL,
    "qwen2_5_vl": QwenVL,
    "qwen3_vl": Qwen3VL,
    "qwen3_vl_moe": Qwen3VL,
    "qwen3_5": Qwen3VL,
    "qwen3_5_moe": Qwen3VL,
    "paligemma": PaliGemma,
    "aya_vision": Cohere,
    "cohere2_vision": Cohere,
    "glm4v": GLM,
    "glm4v_moe": GLM,
    "glm46v": GLM,
    "glm_ocr": GLM,
    "glmga": GLM,
    "gemma4": Gemma4,
    "gemma4_unified": Gemma4,
    "kimi_k25": KimiK25,
    "nemotron_h_omni": NemotronOmni,
    "llama4": Llama4,
    "perception_lm": PerceptionLM,
    "minicpmv4_6": MiniCPM,
    "minicpmv4_7": MiniCPM,
    "minicpm_ocr": MiniCPM,
    "molmo2": Molmo2,
    "apertus1p5": Apertus,
    "chameleon": InImageTokens,
    "emu3": InImageTokens,
    "mllama": Mllama,
}


_BEFORE = "its processor puts one picture before a text, whatever a prompt's messages say: choose another model"
UNSUPPORTED = {
    "idefics": "it reads pictures by cross-attention, which can't be trained here: choose another model",
    "blip-2": _BEFORE,
    "instructblip": _BEFORE,
    "instructblipvideo": _BEFORE.replace("picture", "video"),
    "fuyu": _BEFORE,
    "kosmos-2": _BEFORE,
    "kosmos-2.5": _BEFORE,
    "git": "its pictures have no tokens in a prompt: choose another model",
    "got_ocr2": "its processor takes pages and no conversation: choose another model",
    "glm_image": "it writes pictures, and models that write text are trained here: choose another model",
    "shieldgemma2": "it is a classifier of pictures, which writes no text: choose another model",
    "unlimited_ocr": "its processor counts the tiles of pictures in lists, which a prompt can't keep: choose another model",
    "diffusion_gemma": "it writes by diffusion, and models that write a token after the other are trained here: choose another",
}
"""`model_type` -> why such a model is refused."""


def family_of(model: Any, processor: Any) -> Family:
    """The adapter of a model, chosen by its config's `model_type`."""
    return class_of(model.config.model_type)(model, processor)


def class_of(model_type: str) -> type[Family]:
    spec = plugin_family(model_type)
    if spec is None:
        return FAMILIES.get(model_type, Family)
    told = ("completion_type", "has_turns", "shares_prompt", "placeholders", "beside_each_other")
    return type(spec.id, (FAMILIES.get(model_type, Family),), {name: getattr(spec, name) for name in told})
