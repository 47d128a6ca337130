"""The experts that vLLM chose, as the embedded sampler tells them.

A tokens of an answer that were read, P tokens of the prompt, M layers with experts, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mmrl.policies.vlm.experts import layers_with_experts
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.routes import Routes


def expert_routes(outputs: Sequence[Any], prompt: PromptInputs, model: torch.nn.Module) -> list[Routes]:
    """The routes of all completions of a prompt. outputs: of vLLM's `CompletionOutput`, whose `routed_experts` have a row for
    each token that was read, and in it all layers, also those without experts. Those of the prompt are the first completion's:
    the others read at most the end of it by themselves."""
    layers, length = layers_with_experts(model), len(prompt.ids)
    shared_PMK: torch.Tensor | None = None
    found: list[Routes] = []
    for output in outputs:
        rows = output.routed_experts
        assert len(rows) == length + len(output.token_ids) - 1, "vLLM told the experts of another number of tokens"
        whole = torch.from_numpy(rows[:, layers].astype(np.int16))
        shared_PMK = whole[:length].clone() if shared_PMK is None else shared_PMK
        found.append(Routes(shared_PMK, whole[length:].clone()))
    return found
