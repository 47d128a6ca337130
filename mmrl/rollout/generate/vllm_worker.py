"""Code that runs inside vLLM's workers, in separate processes or not. Only vLLM imports it, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

from mmrl.compute.devices import sum_in_float32
from mmrl.policies.vlm.hearing import hear_apart
from mmrl.rollout.generate.broadcast import Group, Load, Meeting
from mmrl.rollout.generate.weights import Named, Place, open_shared


class Banned(LogitsProcessor):
    """Keeps ids from being sampled: those that `additional_config["mmrl_banned"]` names. For Model Runner V1."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.ranges = banned_ranges(vllm_config)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return ban(logits, self.ranges)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """Nothing to do: the ids are the same for all requests."""


class BannedV2(LogitsProcessorV2):
    """`Banned`, for Model Runner V2."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self.ranges = banned_ranges(vllm_config)

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        return ban(logits, self.ranges)


def banned_ranges(vllm_config: Any) -> list[range]:
    """The banned ids, as few ranges: a tensor of them on the GPU could be dropped with what vLLM drops when it sleeps."""
    sum_in_float32()  # a worker that is a process of its own knows nothing of the learner's
    found: list[range] = []
    for i in sorted(vllm_config.additional_config["mmrl_banned"]):
        if found and i == found[-1].stop:
            found[-1] = range(found[-1].start, i + 1)
        else:
            found.append(range(i, i + 1))
    return found


def ban(logits: torch.Tensor, ranges: Sequence[range]) -> torch.Tensor:
    """The logits, changed in place. Ids without an output, as those of Molmo 2's placeholders, are passed over."""
    for ids in ranges:
        logits[:, ids.start : ids.stop] = -torch.inf
    return logits


class Reloading:
    """Methods that are added to vLLM's worker, for `LLMEngine.collective_rpc`."""

    rank: int
    device: torch.device
    model_runner: Any
    mmrl_group: Group | None = None

    def mmrl_reload(self, weights: Iterable[Named]) -> None:
        """Load weights in place, by transformers' names; of a layer that vLLM fuses, all or none."""
        _synchronize()  # vLLM has a stream for each thread: batches under way, and weights that another thread wrote
        model = self.model_runner.get_model()
        with packed_experts(model) if self.device.type == "cpu" else contextlib.nullcontext():
            self.model_runner.reload_weights(weights_iterator=iter(weights))
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


@contextlib.contextmanager
def packed_experts(model: torch.nn.Module) -> Iterator[None]:
    """Context in which weights are loaded on a CPU, where vLLM computes experts with packed weights and packs them only when it
    makes their kernel. So layers whose experts are loaded get a new kernel."""
    methods = [found for m in model.modules() if isinstance(found := getattr(m, "quant_method", None), UnquantizedFusedMoEMethod)]
    kernels = [method.moe_kernel for method in methods]
    for method in methods:
        method.moe_kernel = None
    try:
        yield
    finally:
        for method, kernel in zip(methods, kernels, strict=True):
            method.moe_kernel = method.moe_kernel or kernel


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
