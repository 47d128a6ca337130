"""Code that runs inside vLLM's workers, in separate processes or not. Only vLLM imports it, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.v1.sample.logits_processor import LogitsProcessor

from mmrl.compute.devices import sum_in_float32
from mmrl.policies.vlm.hearing import hear_apart
from mmrl.rollout.generate.broadcast import Group, Load, Meeting
from mmrl.rollout.generate.weights import Named, Place, open_shared


class Banned(LogitsProcessor):
    """Keeps ids from being sampled: those that `additional_config["mmrl_banned"]` names."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        sum_in_float32()  # a worker that is a process of its own knows nothing of the learner's
        self.banned, self.device = list(vllm_config.additional_config["mmrl_banned"]), device
        self.ids: torch.Tensor | None = None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self.ids is None:  # Molmo 2's placeholders have no outputs
            self.ids = torch.tensor([i for i in self.banned if i < logits.shape[-1]], dtype=torch.long, device=self.device)
        return logits.index_fill_(-1, self.ids, -torch.inf)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """Nothing to do: the ids are the same for all requests."""


class Reloading:
    """Methods that are added to vLLM's worker, for `LLMEngine.collective_rpc`."""

    rank: int
    device: torch.device
    model_runner: Any
    mmrl_group: Group | None = None

    def mmrl_reload(self, weights: Iterable[Named]) -> None:
        """Load weights in place, by transformers' names; of a layer that vLLM fuses, all or none."""
        _synchronize()  # vLLM has a stream for each thread: batches under way, and weights that another thread wrote
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        model = self.model_runner.get_model()
        if self.device.type == "cpu":
            pack_heads(model)
        if (tower := getattr(model, "audio_tower", None)) and type(tower).__name__ == "Qwen3OmniMoeAudioEncoder":
            hear_apart(tower)
        _synchronize()  # who reads them may do so on another stream, and the learner may write to a buffer again

    def mmrl_fetch(self, handles: Sequence[bytes], places: Sequence[Place]) -> None:
        """Load weights from the learner's `SharedWeights`, with this worker's own handle."""
        self.mmrl_reload(open_shared(handles[self.rank], places))

    def mmrl_join(self, meeting: Sequence[Any], first: int) -> None:
        """Join the group of a broadcast. meeting: of `Meeting`. first: rank there of the first worker."""
        if self.mmrl_group is not None:
            self.mmrl_group.close()
        self.mmrl_group = Group(Meeting(*meeting), first + self.rank, self.device)

    def mmrl_take(self, load: Sequence[Any]) -> None:
        """Receive the next bucket of a broadcast, and load it in place. load: of `Load`."""
        assert self.mmrl_group is not None, "join first"
        self.mmrl_reload(self.mmrl_group.receive(Load(*load)))


def pack_heads(model: torch.nn.Module) -> None:
    """On a CPU vLLM computes logits with a packed copy of a head's weights. It makes the copy anew when the head is loaded, and
    of a tied one only the embeddings are."""
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
