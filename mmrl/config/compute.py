"""`[compute]` of a run file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mmrl.config.values import Count, Positive, Section


class ComputeConfig(Section):
    """`[compute]`: on what a run runs; only `sampler` and `staleness` change its result beyond rounding."""

    sampler: Literal["local", "vllm"] = "local"
    """What completions are sampled with: mmrl itself, or vLLM."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Share of the GPU's memory that vLLM takes, for weights and for what it keeps of conversations; on a CPU it keeps 1 GiB."""
    sleep_mode: bool = True
    """vLLM in the learner's process gives its GPU memory back while the learner learns."""
    tensor_parallel: Positive = 1
    """GPUs that each vLLM is spread over."""
    learners: Positive = 1
    """Processes that learn together, each on a device of its own."""
    weights: Literal["sharded", "replicated"] = "sharded"
    """Of several learners each holds a part of weights, gradients and optimiser (FSDP2), or all of them."""
    placement: Literal["colocated", "separate", "hybrid"] = "colocated"
    """Where completions are sampled: in the learners, in processes of their own (Ray actors), or in both."""
    engines: Positive = 1
    """Processes that sample, where they are separate."""
    judges: Count = 0
    """Processes with a judge of their own (Ray actors), each with `judge.num_workers` workers, wherever there are CPUs; 0: each
    learner has one beside it."""
    simulators: Literal["local", "actors"] = "local"
    """Where simulators are: in the learner's process, or in processes of their own (Ray actors), one for each lane, on CPUs."""
    staleness: Annotated[int, Field(ge=0, le=16)] = 0
    """Steps that the sampling weights may be behind: completions of later steps are sampled while the learner learns. At 0 a
    step's completions are its own weights'."""
    retries: Count = 2
    """How often a run on a cluster goes on by itself from its last checkpoint after a process died, and each engine, judge and
    simulator that is a process of its own is started again."""
