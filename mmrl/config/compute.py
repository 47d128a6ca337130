"""`[compute]` of a run file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mmrl.config.values import Count, Free, Positive, Section


class ComputeConfig(Section):
    """`[compute]`: the processes and devices of a run; only `sampler`, `staleness` and `interrupt` change its result, beyond
    rounding."""

    sampler: Literal["local", "vllm"] = "local"
    """The engine that samples completions: mmrl's own, or vLLM."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Share of the GPU's memory that vLLM uses for weights and KV cache; on a CPU the KV cache has 1 GiB."""
    sleep_mode: bool = True
    """vLLM in the learner's process frees its GPU memory during updates."""
    sleep_level: Literal[1, 2] = 2
    """What becomes of vLLM's weights meanwhile. 2: they are dropped, and all of the learner's are copied after each update; 1:
    they wait in the host's memory, and those that changed are copied, which are few with adapters."""
    tensor_parallel: Positive = 1
    """Number of GPUs that each vLLM engine is spread over."""
    model_runner: Literal["auto", "v1", "v2"] = "auto"
    """vLLM's model runner. `auto`: V2 if a stage asks which experts were chosen, which V1 doesn't tell, and otherwise V1."""
    vllm: Free = {}
    """Further arguments of vLLM's `EngineArgs` by their names there, such as `enable_prefix_caching`."""
    learners: Positive = 1
    """Number of processes that train together, each on its own device."""
    weights: Literal["sharded", "replicated"] = "sharded"
    """With several learners: each holds a shard of the weights, gradients and optimiser state (FSDP2), or all of them."""
    sequence_parallel: Positive = 1
    """Number of neighbouring learners that compute each row of an update together, each a slice of its tokens, for rows that one
    device can't hold; divides `learners`."""
    placement: Literal["colocated", "separate", "hybrid"] = "colocated"
    """Where completions are sampled: in the learners, in separate processes (Ray actors), or in both."""
    engines: Positive = 1
    """Number of separate sampling processes, for `separate` and `hybrid`."""
    weight_transfer: Literal["store", "broadcast"] = "store"
    """How weights reach separate engines. `store`: through Ray's object store, which copies them to the host, so that an engine
    that dies gets them again at any time; `broadcast`: from the learner's GPU to the engines' by NCCL (on CPUs gloo), in buckets,
    while prompts are prepared."""
    judges: Count = 0
    """Number of separate judge processes (Ray actors), each with `judge.num_workers` workers, on any machine with free CPUs; 0:
    each learner has its own judge."""
    simulators: Literal["local", "processes", "actors"] = "local"
    """Where simulators run: in the learner's process, or for each lane in a process of its own, on CPUs: of this machine
    (`processes`), or of any machine of a Ray cluster (`actors`). For any other machine see `simulate.address`."""
    staleness: Annotated[int, Field(ge=0, le=16)] = 0
    """Number of steps that the sampling weights may be behind: completions of later steps are sampled during updates. At 0 each
    step samples with its own weights."""
    interrupt: bool = False
    """With `staleness`: the learner's weights reach the sampler after every update, also in the middle of answers, which go on
    with them. A run can't be repeated token for token then, as where an answer is interrupted depends on the machine's speed."""
    retries: Count = 2
    """How often a run on a cluster resumes by itself from its last checkpoint after a process died, and how often each separate
    engine, judge and simulator is restarted."""

    @property
    def gpus_per_learner(self) -> int:
        """Number of GPUs that a learner takes: its own, and those over which its vLLM is spread."""
        return 1 if self.placement == "separate" else self.tensor_parallel
