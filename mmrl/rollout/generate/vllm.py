"""vLLM as the sampler, in the learner's process: the learner's ids, pixels and weights.

vLLM gets no text and no pictures, but the `PromptInputs` that sampler and learner share (`vllm_inputs`), so that prompt ids can't
differ and nothing is processed twice. It samples from the distribution of `VLM.distribution`, with the same ids banned.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.compute.devices import current_gpu
from mmrl.config.sections import ComputeConfig
from mmrl.policies.shard import reshard
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.routes import Routes
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.broadcast import Load, Meeting
from mmrl.rollout.generate.exchange import WeightExchange, taking_turns
from mmrl.rollout.generate.sampling import Completion, SamplingParams, prompt_seed
from mmrl.rollout.generate.vllm_engine import preserve_rng_state, start_engine
from mmrl.rollout.generate.vllm_inputs import VllmInputs
from mmrl.rollout.generate.vllm_routes import expert_routes
from mmrl.rollout.generate.weights import Named, SharedWeights, bucket_room, changed_weights, num_bytes, parameter_versions


class VllmGenerator:
    """Samples with vLLM. The learner's weights are copied to it whenever they have changed."""

    def __init__(
        self,
        policy: VLM,
        settings: ComputeConfig,
        batch_size: int,
        max_context: int,
        device: torch.device | None = None,
        routes: bool = False,
    ) -> None:
        """batch_size: completions decoded at once. max_context: tokens of the longest conversation, its last answer included.
        device: where vLLM runs, if not where the policy is. routes: it can tell which experts it chose."""
        self.policy, self.settings, self.batch_size, self.max_context = policy, settings, batch_size, max_context
        self.device = device or policy.device
        self.routes = routes
        self.engine: Any = None
        """`vllm.LLMEngine`, from `ready` on."""
        self.prompt: VllmInputs
        """`PromptInputs` -> a prompt for the engine, from `ready` on."""
        self.sleeps = settings.sleep_mode and self.device.type == "cuda"
        """Whether `sleep` frees its memory; on a CPU vLLM can't."""
        self.resting = False
        """`sleep` was called, and nothing was sampled since."""
        self.exchange = WeightExchange() if settings.interrupt else None
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
        """Start vLLM and put it to sleep. Raises UserError if it isn't installed, or can't serve the model."""
        if self.engine is not None:
            return
        with contextlib.ExitStack() as made, preserve_rng_state(self.device), current_gpu(self.device):
            folder = made.enter_context(tempfile.TemporaryDirectory(prefix="mmrl-vllm-"))
            given = (self.settings, self.batch_size, self.max_context, folder, self.device, self.routes)
            self.engine, self.prompt = start_engine(self.policy, *given)
            self._apart = self.engine.vllm_config.parallel_config.distributed_executor_backend == "mp"
            self._held = made.pop_all()  # keep the folder of the architecture as long as vLLM
        self.sleep()

    def wake_up(self) -> None:
        """Sample with the learner's present weights until `sleep` or the next call."""
        self.ready()
        if self.exchange:
            self.exchange.version = None
        self.sync()

    def renew(self, version: int) -> None:
        """Sample with the learner's present weights, of this version. vLLM computes the cache of requests under way anew, and
        tells of each completion where its weights changed."""
        assert self.exchange is not None, "compute.interrupt is off"
        with self.exchange.changing(version):
            self.wake_up()
            self.engine.set_weight_version(str(version))

    def sleep(self) -> None:
        """Free vLLM's GPU memory until `sync`. At level 2 its weights are dropped, not kept on the host, because `sync` copies
        the learner's."""
        if self.engine is None or self.resting:
            return
        self.resting = True
        if self.sleeps:
            if self.settings.sleep_level == 2:
                self._known = {}
            with self._working():
                self.engine.sleep(level=self.settings.sleep_level)

    def close(self) -> None:
        if self.engine is None:
            return
        with preserve_rng_state(self.device):
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
        with taking_turns(self.exchange), self._working():
            try:
                for n, one in enumerate(inputs):
                    self._asked += 1
                    waiting[str(self._asked)] = n
                    parameters = self._parameters(sampling, group_size // alike, numbers[n] if numbers else n)
                    self.engine.add_request(str(self._asked), self.prompt(one), parameters)
                while waiting:
                    if self.exchange and self.exchange.wanted:
                        self.exchange.let_in()
                    for output in self.engine.step():
                        if output.finished:
                            n = waiting.pop(output.request_id)
                            assert output.prompt_token_ids == inputs[n].ids.tolist(), "vLLM read another prompt"
                            outputs = sorted(output.outputs, key=lambda o: o.index)
                            told = expert_routes(outputs, inputs[n], self.policy.model) if sampling.routes else repeat(None)
                            found[n] = [self._sample(*one) for one in zip(outputs, told, strict=False)] * alike
            finally:
                self.engine.abort_request(list(waiting))
        return found

    def sync(self) -> None:
        """Wake vLLM if it sleeps, copy the learner's weights that changed since the last time, in whole blocks, and clear its
        caches of the old ones."""
        if self.policy.root is not None:
            reshard(self.policy.root)  # gathered weights don't count writes
        known = parameter_versions(self.policy.model)
        with self._waking():
            if known != self._known:
                before, self._known = self._known, {}  # until all have arrived
                self._bring(changed_weights(self.policy.model, before, known))
                self._known = known
                self.syncs += 1

    def join(self, meeting: Meeting, rank: int) -> None:
        """See `mmrl.rollout.generate.broadcast.Receiver`: each of vLLM's workers is a member, in their order."""
        with self._working():
            self.engine.collective_rpc("mmrl_join", args=(tuple(meeting), rank))

    def take(self, load: Load) -> None:
        """See `Receiver`."""
        with self._waking():
            self.engine.collective_rpc("mmrl_take", args=(tuple(load),))

    def took(self) -> None:
        """See `Receiver`."""
        self.forget()
        self.syncs += 1

    @contextlib.contextmanager
    def _waking(self) -> Iterator[None]:
        """Context in which vLLM's weights are replaced; it is awake afterwards."""
        asleep = self.resting and self.sleeps
        with self._working():
            if asleep:
                torch.cuda.empty_cache()  # memory that the learner caches and doesn't use
                self.engine.wake_up(["weights"])
            yield
            if asleep:
                self.engine.wake_up(["kv_cache"])
        self.resting = False

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Context of calls of vLLM. Raises UserError if one of its processes died."""
        try:
            with preserve_rng_state(self.device), current_gpu(self.device):
                yield
        except Exception as error:
            if getattr(self.engine.model_executor, "is_failed", False):
                raise UserError(
                    f"a process of vLLM died ({shorten(error, 200)}): VLLM_LOGGING_LEVEL=INFO says more; go on with --resume"
                ) from error
            raise

    def _bring(self, weights: Iterator[Named]) -> None:
        self.sent = 0
        weights = self._counted(weights)
        if not self._apart:
            self.engine.collective_rpc("mmrl_reload", args=(weights,))
        else:
            shared = SharedWeights(bucket_room(self.policy.model), self.policy.device)
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
        self.engine.reset_prefix_cache(reset_running_requests=True)
        self.engine.reset_mm_cache()
        self.engine.reset_encoder_cache()

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
            stop=list(sampling.stop),
            include_stop_str_in_output=bool(sampling.stop),
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _sample(self, output: Any, routes: Routes | None) -> Completion:
        ids = tuple(output.token_ids)
        logprobs = tuple(at[token].logprob for at, token in zip(output.logprobs, ids, strict=True))
        known = self.exchange is not None and self.exchange.version is not None
        spans = (output.weight_versions or ()) if known else ()
        versions = tuple((int(span.version), span.end - span.start) for span in spans)
        finished = output.finish_reason == "stop"
        return Completion(token_ids=ids, logprobs=logprobs, finished=finished, versions=versions, routes=routes)
