"""pi0-FAST's network: a PaliGemma whose head stands beside its embedding, as in LeRobot's class."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PI0Config
from transformers.models.auto import AutoModel
from transformers.models.pi0.modeling_pi0 import PI0Model, PI0PreTrainedModel


class Pi0FastConfig(PI0Config):  # type: ignore[misc]
    """Of the sizes, those of the expert mean nothing."""

    model_type = "pi0_fast"


class Inner(PI0Model):  # type: ignore[misc]
    config: Pi0FastConfig

    def __init__(self, config: Any) -> None:
        PI0PreTrainedModel.__init__(self, config)  # not PI0Model's, which would allocate an expert
        self.vlm = AutoModel.from_config(config.vlm_config)
        self.post_init()


class PI0Fast(PI0PreTrainedModel):  # type: ignore[misc]
    """The weights of pi0-FAST. `mmrl.policies.pi0.pi0_fast.Pi0Fast` computes with them."""

    config: Pi0FastConfig
    _keep_in_fp32_modules_strict = ()

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        text = config.vlm_config.text_config
        self.model = Inner(config)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.post_init()

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[n, S] -> [n, S, H]."""
        found: torch.Tensor = self.model.vlm.get_input_embeddings()(ids)
        return found

    def embed_pictures(self, pixels: torch.Tensor) -> torch.Tensor:
        """[n, cameras, 3, side, side] -> [n, cameras * tokens of a picture, H]."""
        found: torch.Tensor = self.model.vlm.get_image_features(pixels.flatten(0, 1)).pooler_output
        return found.unflatten(0, pixels.shape[:2]).flatten(1, 2)
