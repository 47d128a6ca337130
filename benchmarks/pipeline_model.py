"""A discrete-event model of RL training: sampling and learning units, and their waiting times.

A unit is a set of GPUs that sample together (one, or as many as the model is sharded over). For its prompts of a step, a sampling
unit processes pictures (CPU), waits for its GPUs, generates, and judges (CPU processes). The learning units wait until the whole
step is sampled, exchange the rollouts, update together, and send the weights. Up to `staleness` steps are sampled ahead. The
events are simpy's.

    colocated   all units sample and learn
    separate    some units sample, the others learn
    hybrid      some units only sample, the others sample a smaller share and learn

Shapes in names: S steps, U units, P prompts, G completions of a prompt.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of a step."""

    prompts: int
    group: int
    prompt_tokens: int
    """Tokens of each prompt, including those of its pictures."""
    length: float
    """Mean tokens of a completion before truncation, log-normally distributed."""
    spread: float
    """Standard deviation of the length over its mean."""
    limit: int
    """Tokens at which a completion is truncated."""
    trained: float = 1.0
    """Share of the groups in the update; groups without a spread of rewards are left out."""

    def lengths(self, step: int, seed: int = 0) -> np.ndarray:
        """int [P, G]: tokens from 1 to the limit. A part of the spread belongs to the prompt: hard questions get long answers."""
        rng = np.random.default_rng((seed, step))
        sigma = math.sqrt(math.log1p(self.spread**2))
        normal = math.sqrt(0.5) * (rng.standard_normal((self.prompts, 1)) + rng.standard_normal((self.prompts, self.group)))
        drawn = self.length * np.exp(sigma * normal - sigma**2 / 2)
        return np.clip(np.rint(drawn), 1, self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The connections of ranks; bandwidths in bytes per second, one direction, per GPU."""

    node: int = 8
    """GPUs per machine."""
    inside: float = math.inf
    between: float = math.inf
    """Bandwidth of each GPU's network card."""
    hop: float = 0.0
    """Seconds from one rank to the next inside a machine."""
    hop_between: float = 0.0
    """Seconds from one machine to the next."""
    objects: float = math.inf
    """Bytes per second at which a rank receives pickled objects over TCP."""

    def gather(self, size: float, ranks: int) -> float:
        """Seconds until each rank has all `size` bytes, of which each held its share (a ring; reduce-scatter takes the same).
        Data enters a machine once, through the cards of all its GPUs."""
        if ranks < 2:
            return 0.0
        machines = math.ceil(ranks / self.node)
        bandwidth = self.inside if machines == 1 else min(self.inside, self.between * self.node)
        return size * (ranks - 1) / ranks / bandwidth + (ranks - machines) * self.hop + (machines - 1) * self.hop_between

    def send(self, size: float, ranks: int) -> float:
        """Seconds until `ranks` others have the `size` bytes of one rank (pipelined: each rank forwards the data)."""
        if not ranks:
            return 0.0
        far = ranks >= self.node
        hops = ranks * self.hop if not far else math.ceil(ranks / self.node) * self.hop_between + self.node * self.hop
        return size / (self.between if far else self.inside) + hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one GPU and of its share of a machine's CPU cores."""

    process: float = 0.0
    """Seconds of a core for the pictures of one prompt."""
    cores: float = 1.0
    """Cores per GPU for pictures."""
    prefill: float = 0.0
    """Seconds per prompt."""
    decode_step: float = 0.0
    """Seconds per decoding step, for any number of completions: reading the weights and launching kernels."""
    decode_row: float = 0.0
    """Additional seconds per decoding step and completion."""
    at_once: int = 10**9
    """Completions that a GPU decodes at once; when one ends, the next begins."""
    judge: float = 0.0
    """Seconds per completion."""
    judge_spread: float = 0.0
    """Standard deviation over mean of these seconds, log-normal."""
    judges: int = 1
    """Judge processes per GPU."""
    update_prompt: float = 0.0
    """Seconds of forward and backward of a prompt, which its group shares."""
    update_token: float = 0.0
    """Seconds of forward and backward of a completion's token."""
    micro_tokens: float = math.inf
    """Tokens of a micro-batch."""
    optimizer: float = 0.0
    """Seconds of the optimiser's step over all weights; a shard takes its share of it."""
    other: float = 0.0
    """Seconds per step for records and metrics."""
    layers: int = 1
    """Layers; weights are gathered and gradients scattered for each."""
    weights: float = 0.0
    """Bytes of all weights when they are sent."""
    sharded: bool = True
    """Whether ranks hold shards of the weights (FSDP); otherwise each holds all, and gradients are summed once per step."""
    told_bytes: float = 0.0
    """Bytes per token of a completion's text, as sent to all ranks (pickled)."""
    told_completion_bytes: float = 0.0
    """Bytes of a completion without its text, including its score, as sent to all ranks."""
    told_read: float = 0.0
    """Seconds to unpickle a completion, nearly independent of its length: ten times the text takes a quarter more."""
    load: float = 0.0
    """Seconds to load new weights into a sampler, after sending them."""
    tensor_parallel: int = 1
    """GPUs per unit, which sample together, at that many times the speed of one."""
    network: Network = Network()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sampling shares of the units, and the units that learn."""

    name: str
    shares: tuple[float, ...]
    """Share of the prompts by unit; 0 for one that only learns."""
    learns: tuple[bool, ...]

    @property
    def samplers(self) -> list[int]:
        return [u for u, share in enumerate(self.shares) if share > 0]

    @property
    def learners(self) -> list[int]:
        return [u for u, learns in enumerate(self.learns) if learns]

    def dealt(self, prompts: int) -> list[slice]:
        """The prompts that each unit samples: whole prompts, as close to its share as possible."""
        ends = np.rint(np.cumsum(self.shares) / sum(self.shares) * prompts).astype(int)
        return [slice(int(a), int(b)) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def colocated(units: int) -> Plan:
    return Plan(name="colocated", shares=(1.0,) * units, learns=(True,) * units)


def separate(units: int, sampling: int) -> Plan:
    """sampling: number of units that sample."""
    learning = units - sampling
    return Plan(name="separate", shares=(1.0,) * sampling + (0.0,) * learning, learns=(False,) * sampling + (True,) * learning)


def hybrid(units: int, sampling: int, share: float) -> Plan:
    """sampling: number of units that only sample. share: a learning unit's share of prompts, relative to 1 of a sampling unit."""
    learning = units - sampling
    return Plan(name="hybrid", shares=(1.0,) * sampling + (share,) * learning, learns=(False,) * sampling + (True,) * learning)


# -- times of the parts ---------------------------------------------------------------------------------------------------


def makespan(seconds: Sequence[float], servers: int) -> float:
    """Seconds until all jobs are done, if each free server takes the next job."""
    if len(seconds) <= servers:
        return float(max(seconds, default=0.0))
    free = [0.0] * servers
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def generating(lengths: np.ndarray, costs: Costs, even: bool = False) -> float:
    """Seconds of a unit for the completions of its prompts [p, G]. even: all have the mean length, so there are no stragglers."""
    if not lengths.size:
        return 0.0
    flat = np.full(lengths.size, lengths.mean()) if even else lengths.ravel()
    longest = makespan(flat.tolist(), costs.at_once) if flat.size > costs.at_once else float(flat.max())
    whole = costs.prefill * len(lengths) + costs.decode_step * longest + costs.decode_row * float(flat.sum())
    return whole / costs.tensor_parallel


def updating(lengths: Sequence[np.ndarray], job: Job, costs: Costs, even: bool = False) -> tuple[float, float]:
    """(seconds, of which communication) of an update. lengths: [p, G] of each learning unit. The ranks of a unit share its
    prompts. Sharded ranks process their micro-batches in lock-step, as a layer's weights are gathered from all. even: all ranks
    have the same number of tokens."""
    ranks, share = len(lengths) * costs.tensor_parallel, job.trained / costs.tensor_parallel
    tokens = share * np.array([len(x) * job.prompt_tokens + x.sum() for x in lengths])
    own = share * np.array([len(x) * costs.update_prompt + x.sum() * costs.update_token for x in lengths])
    if even:
        tokens[:], own[:] = tokens.mean(), own.mean()
    micro = np.maximum(np.ceil(tokens / costs.micro_tokens), 1) if math.isfinite(costs.micro_tokens) else np.ones(len(tokens))
    network, layer = costs.network, costs.weights / costs.layers
    if not costs.sharded:
        moved = 2 * network.gather(costs.weights, ranks)
        return float(own.max()) + costs.optimizer + moved, moved
    gather = network.gather(layer, ranks)
    seconds = alone = 0.0
    for m in range(int(micro.max())):
        compute = float(np.where(m < micro, own / micro, 0.0).max()) / costs.layers
        forward, backward = compute / 3, compute * 2 / 3
        # a layer's weights arrive during the previous layer's computation; its gradients are sent during the next layer's
        seconds += costs.layers * (max(forward, gather) + max(backward, 2 * gather)) + 3 * gather
        alone += costs.layers * compute
    return seconds + costs.optimizer / ranks, seconds - alone


PARTS = ("process", "generate", "stragglers", "judge", "update", "imbalance", "communication", "sync", "telling", "other")
"""Parts whose time can be set to 0, to see their cost: see `without`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of every part of each step."""

    process_SU: np.ndarray
    generate_SU: np.ndarray
    judge_SU: np.ndarray
    update_S: np.ndarray
    telling_S: np.ndarray
    sync: float
    other: float
    communication_S: np.ndarray
    """Communication of the update."""
    tokens_S: np.ndarray
    """Tokens of all rollouts, each with its prompt."""


def timed(job: Job, costs: Costs, plan: Plan, steps: int, seed: int = 0, without: str = "") -> Timed:
    """without: one of `PARTS`, whose time is then 0."""
    c, dealt, learners = costs, plan.dealt(job.prompts), plan.learners
    everyone = Plan(name="", shares=(1.0,) * len(learners), learns=(True,) * len(learners)).dealt(job.prompts)
    trained = [dealt[u] for u in learners] if plan.name == "colocated" else everyone  # a rank trains on its own samples
    ranks = len(learners) * c.tensor_parallel
    rows: dict[str, list[Any]] = {name: [] for name in ("process", "generate", "judge", "update", "telling", "moved", "tokens")}
    for step in range(steps):
        lengths = job.lengths(step, seed)
        rows["tokens"].append(lengths.sum() + lengths.size * job.prompt_tokens)
        rows["process"].append([math.ceil((d.stop - d.start) / (c.cores * c.tensor_parallel)) * c.process for d in dealt])
        rows["generate"].append([generating(lengths[d], c, even=without == "stragglers") for d in dealt])
        rows["judge"].append(_judging(job, c, dealt, step, seed))
        update, moved = updating([lengths[d] for d in trained], job, c, even=without == "imbalance")
        rows["update"].append(0.0 if without == "update" else update - (moved if without == "communication" else 0.0))
        rows["moved"].append(moved)
        told = lengths.sum() * c.told_bytes + lengths.size * c.told_completion_bytes
        rows["telling"].append(told / c.network.objects + lengths.size * c.told_read if ranks > 1 else 0.0)
    found = {name: np.array(values, dtype=float) for name, values in rows.items()}
    for name in ("process", "generate", "judge", "telling"):
        found[name] *= without != name
    senders = c.network.gather(c.weights, ranks) if c.sharded else 0.0  # the shards are gathered first
    others = len(plan.samplers) * c.tensor_parallel if plan.name == "separate" else plan.learns.count(False) * c.tensor_parallel
    sync = senders + c.network.send(c.weights, others) + c.load
    return Timed(
        process_SU=found["process"],
        generate_SU=found["generate"],
        judge_SU=found["judge"],
        update_S=found["update"],
        telling_S=found["telling"],
        sync=0.0 if without == "sync" else sync,
        other=0.0 if without == "other" else c.other,
        communication_S=found["moved"],
        tokens_S=found["tokens"],
    )


def _judging(job: Job, c: Costs, dealt: Sequence[slice], step: int, seed: int) -> list[float]:
    """Seconds that each unit waits for the verifiers: latencies differ between completions, and each free process takes the
    next."""
    counts, servers = [(d.stop - d.start) * job.group for d in dealt], c.judges * c.tensor_parallel
    if not c.judge_spread or not c.judge:
        return [math.ceil(n / servers) * c.judge for n in counts]
    rng, sigma = np.random.default_rng((seed, step, 1)), math.sqrt(math.log1p(c.judge_spread**2))
    drawn = c.judge * np.exp(sigma * rng.standard_normal(job.prompts * job.group) - sigma**2 / 2)
    return [makespan(drawn[d.start * job.group : d.stop * job.group].tolist(), servers) for d in dealt]


# -- simulation -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A simulated run."""

    finished_S: np.ndarray
    """Seconds at which the weights of each step reached the samplers."""
    lag_SU: np.ndarray
    """Lag of the samplers' weights in steps."""
    tokens_S: np.ndarray
    busy: float
    """Share of the units' time in which they generated or updated."""

    def step_seconds(self, skip: int = 0) -> float:
        """Mean seconds between the ends of two steps. skip: number of first steps to leave out, while the pipeline fills."""
        ends = np.concatenate([[0.0], self.finished_S])
        return float((ends[-1] - ends[skip]) / (len(ends) - 1 - skip))

    def tokens_per_second(self, skip: int = 0) -> float:
        return float(self.tokens_S[skip:].mean() / self.step_seconds(skip))


def play(times: Timed, plan: Plan, staleness: int) -> Played:
    """Simulates the events."""
    env = simpy.Environment()
    steps, units = times.generate_SU.shape
    gpu = [simpy.Resource(env) for _ in range(units)]
    fresh = [env.event() for _ in range(steps + 1)]
    """fresh[v]: the samplers have the weights after v updates."""
    sampled = [env.event() for _ in range(steps)]
    left = [len(plan.samplers)] * steps
    lag, finished, version, busy = np.zeros((steps, units)), np.zeros(steps), [0], [0.0]

    def sampler(u: int) -> Iterator[simpy.Event]:
        for s in range(steps):
            yield fresh[max(0, s - staleness)]
            yield env.timeout(times.process_SU[s, u])
            with gpu[u].request() as turn:
                yield turn
                lag[s, u] = s - version[0]
                busy[0] += times.generate_SU[s, u]
                yield env.timeout(times.generate_SU[s, u])
            yield env.timeout(times.judge_SU[s, u])
            left[s] -= 1
            if not left[s]:
                sampled[s].succeed()

    def learner() -> Iterator[simpy.Event]:
        for s in range(steps):
            yield sampled[s]
            turns = [gpu[u].request() for u in plan.learners]
            yield env.all_of(turns)
            busy[0] += times.update_S[s] * len(turns)
            yield env.timeout(times.telling_S[s] + times.update_S[s] + times.other + times.sync)
            for u, turn in zip(plan.learners, turns, strict=True):
                gpu[u].release(turn)
            version[0], finished[s] = s + 1, env.now
            fresh[s + 1].succeed()

    fresh[0].succeed()
    for u in plan.samplers:
        env.process(sampler(u))
    env.process(learner())
    env.run()
    return Played(finished_S=finished, lag_SU=lag, tokens_S=times.tokens_S, busy=busy[0] / (units * env.now))


def simulate(job: Job, costs: Costs, plan: Plan, staleness: int, steps: int = 10, seed: int = 0, without: str = "") -> Played:
    return play(timed(job, costs, plan, steps, seed, without), plan, staleness)


def losses(job: Job, costs: Costs, plan: Plan, staleness: int, steps: int = 8, skip: int = 2) -> dict[str, float]:
    """Part -> relative gain of throughput if the part took no time; the largest first."""
    base = simulate(job, costs, plan, staleness, steps).tokens_per_second(skip)
    found = {p: simulate(job, costs, plan, staleness, steps, without=p).tokens_per_second(skip) / base - 1 for p in PARTS}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


# -- faults ---------------------------------------------------------------------------------------------------------------


@functools.cache
def spread_for(ratio: float, count: int) -> float:
    """The spread of a log-normal distribution whose greatest of `count` samples is `ratio` times the mean, on average."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((200, count)).max(1)
    best, closest = 0.0, math.inf
    for spread in np.linspace(0, 3, 61):
        sigma = math.sqrt(math.log1p(spread**2))
        gap = abs(float(np.exp(sigma * normal - sigma**2 / 2).mean()) - ratio)
        if gap < closest:
            best, closest = float(spread), gap
    return best
