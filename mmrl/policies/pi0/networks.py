"""The classes of the networks of pi0, pi0.5 and pi0-FAST, and of their configurations."""

from __future__ import annotations

from functools import cache
from typing import Any

from mmrl.policies.pi0.waves import Waves


@cache
def network_class(kind: str) -> Any:
    """For pi0 transformers' class, whose first and last layers stay float32 as openpi's do: an action's numbers go through
    them."""
    if kind == "pi05":
        from mmrl.policies.pi0.network05 import PI05

        return PI05
    if kind == "pi0_fast":
        from mmrl.policies.pi0.network_fast import PI0Fast

        return PI0Fast
    from transformers import PI0ForConditionalGeneration

    def init(self: Any, config: Any) -> None:
        PI0ForConditionalGeneration.__init__(self, config)
        self.embed_action_time.sinusoid_embeds = Waves(config)

    own = {"_keep_in_fp32_modules_strict": ["embed_action_time", "action_out_proj"], "__init__": init}
    return type("PI0ForConditionalGeneration", (PI0ForConditionalGeneration,), own)


def config_class(kind: str) -> Any:
    if kind == "pi05":
        from mmrl.policies.pi0.network05 import PI05Config

        return PI05Config
    if kind == "pi0_fast":
        from mmrl.policies.pi0.network_fast import Pi0FastConfig

        return Pi0FastConfig
    from transformers import PI0Config

    return PI0Config
