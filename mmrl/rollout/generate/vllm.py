"""vLLM as the sampler, in the learner's process: the learner's ids, pixels and weights.

vLLM gets no text and no pictures, but the `PromptInputs` that sampler and learner share, so that prompt ids can't differ and
nothing is processed twice. It samples from the distribution of `VLM.distribution`, with the same ids banned.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.config.sections import ComputeConfig
from mmrl.policies.shard import reshard
from mmrl.policies.vlm.families import Qwen3VL
from mmrl.policies.vlm.processing import PromptInputs
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.sampling import Completion, SamplingParams, prompt_seed
from mmrl.rollout.generate.vllm_engine import has_separate_workers, preserve_rng_state, start_engine
from mmrl.rollout.generate.weights import Named, SharedWeights, changed_weights, num_bytes, parameter_versions

SERVED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""`model_type`s whose pictures are passed to vLLM in the form that its classes read."""
GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}
"""vLLM's name of a modality -> the tensor with one row per item: its numbers of patches."""


class VllmGenerator:
    """Samples with vLLM. The learner's weights are copied to it whenever they have changed."""

    def __init__(self, policy: VLM, settings: ComputeConfig, batch_size: int, max_context: int) -> None:
        """batch_size: completions decoded at once. max_context: tokens of the longest conversation, its last answer included.

        Raises UserError for a model family whose pictures can't be passed to vLLM.
        """
        if policy.model.config.model_type not in SERVED:
            kind = policy.model.config.model_type
            raise UserError(f'compute.sampler = "vllm" serves the Qwen-VL families, not {kind}: use "local"')
        self.policy, self.settings, self.batch_size, self.max_context = policy, settings, batch_size, max_context
        self.engine: Any = None
        """`vllm.LLMEngine`, from `ready` on."""
        self.sleeps = settings.sleep_mode and policy.device.type == "cuda"
        """Whether `sleep` frees its memory; on a CPU vLLM can't."""
        self.resting = False
        """`sleep` was called, and nothing was sampled since."""
        self.syncs = 0
        """Number of times that weights were copied."""
        self.sent = 0
        """Bytes of the weights that were copied the last time."""
        self._known: dict[str, int] = {}
        """`parameter_versions` of the weights that vLLM has; empty if it has none."""
        self._asked = 0
        self._apart = False
        """Its workers are separate processes."""
        self._held = contextlib.ExitStack()

    def ready(self) -> None:
        """Start vLLM and put it to sleep. Raises UserError if it isn't installed, or can't run the model."""
        if self.engine is not None:
            return
        self._apart = has_separate_workers(self.settings)
        with contextlib.ExitStack() as made, preserve_rng_state(self.policy.device):
            folder = made.enter_context(tempfile.TemporaryDirectory(prefix="mmrl-vllm-"))
            self.engine = start_engine(self.policy, self.settings, self.batch_size, self.max_context, folder)
            self._held = made.pop_all()  # keep the folder of the architecture as long as vLLM
        self.sleep()

    def wake_up(self) -> None:
        """Sample with the learner's present weights until `sleep` or the next call."""
        self.ready()
        self.sync()

    def sleep(self) -> None:
        """Free vLLM's GPU memory until `sync`. Its weights are dropped, not kept on the host, because `sync` copies newer ones
        from the learner."""
        if self.engine is None or self.resting:
            return
        self.resting = True
        if self.sleeps:
            self._known = {}
            with self._working():
                self.engine.sleep(level=2)

    def close(self) -> None:
        if self.engine is None:
            return
        with preserve_rng_state(self.policy.device):
            self.engine.engine_core.shutdown()
            self.engine, self._known, self.resting = None, {}, False
            self._held.close()

    def generate(
        self, inputs: Sequence[PromptInputs], group_size: int, sampling: SamplingParams, numbers: Sequence[int] = ()
    ) -> list[list[Completion]]:
        """group_size completions of each prompt. The same seed, numbers and inputs give the same samples, up to rounding."""
        if self.engine is None or self.resting:
            self.wake_up()
        longest = max((len(one.ids) for one in inputs), default=0)
        if longest >= self.max_context:
            raise UserError(
                f"a prompt has {longest} tokens, and vLLM was started for {self.max_context} including the answer: raise "
                "generate.max_context, or lower policy.max_pixels"
            )
        alike = 1 if sampling.temperature else group_size  # greedy completions of a prompt, which are sampled once
        waiting: dict[str, int] = {}
        found: list[list[Completion]] = [[] for _ in inputs]
        with self._working():
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
        """Wake vLLM if it sleeps, copy the learner's weights that changed since the last time, in whole blocks, and clear its
        caches of the old ones."""
        asleep = self.resting and self.sleeps
        if self.policy.root is not None:
            reshard(self.policy.root)  # gathered weights don't count writes
        known = parameter_versions(self.policy.model)
        with self._working():
            if asleep:
                torch.cuda.empty_cache()  # memory that the learner caches and doesn't use
                self.engine.wake_up(["weights"])
            if known != self._known:
                before, self._known = self._known, {}  # until all have arrived
                self._bring(changed_weights(self.policy.model, before, known))
                self._known = known
                self.syncs += 1
            if asleep:
                self.engine.wake_up(["kv_cache"])
        self.resting = False

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Context of calls of vLLM. Raises UserError if one of its processes died."""
        try:
            with preserve_rng_state(self.policy.device):
                yield
        except Exception as error:
            if getattr(self.engine.model_executor, "is_failed", False):
                raise UserError(
                    f"a process of vLLM died ({shorten(error)[:200]}): VLLM_LOGGING_LEVEL=INFO says more; go on with --resume"
                ) from error
            raise

    def _bring(self, weights: Iterator[Named]) -> None:
        self.sent = 0
        weights = self._counted(weights)
        if not self._apart:
            self.engine.collective_rpc("mmrl_reload", args=(weights,))
        else:
            shared = SharedWeights(self.policy.device)
            for places in shared.loads(weights):
                handles = shared.handles(self.settings.tensor_parallel)
                self.engine.collective_rpc("mmrl_fetch", args=(handles, places))
        self.forget()

    def _counted(self, weights: Iterator[Named]) -> Iterator[Named]:
        for name, value in weights:
            self.sent += num_bytes([value])
            yield name, value

    def forget(self) -> None:
        """Clear what was computed with earlier weights: keys and values of prompts, and features of pictures."""
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

    def _parameters(self, sampling: SamplingParams, group_size: int, number: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=group_size,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=prompt_seed(sampling, number),
            logprobs=0,
            stop_token_ids=sorted(self.policy.eos),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _sample(output: Any) -> Completion:
    ids = tuple(output.token_ids)
    logprobs = tuple(at[token].logprob for at, token in zip(output.logprobs, ids, strict=True))
    return Completion(token_ids=ids, logprobs=logprobs, finished=output.finish_reason == "stop")


def _digest(item: Mapping[str, Any]) -> str:
    """Hash of a picture's or video's tensors: vLLM encodes equal ones once."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(item):
        value = item[name].data
        found.update(f"{name}{tuple(value.shape)}".encode())
        found.update(value.reshape(-1).contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
