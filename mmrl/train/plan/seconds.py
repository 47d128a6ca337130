"""The seconds of a step, part by part, with what limits each: matrix products, attention, memory traffic, or starting operations.

Operations run one after another, so a pass takes the sum of its matrix products, its attention and its other memory traffic.
Python starts them: on a CPU that time comes on top, a GPU computes meanwhile. All completions are assumed to be of maximal length
and no group to be filtered, so a real step is shorter. b is the bytes of a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from mmrl.api.sampling import Rounds
from mmrl.config.sections import ComputeConfig, JudgeConfig, RunConfig, Stage, TrainConfig
from mmrl.train.plan.adapters import Adapters
from mmrl.train.plan.attention import Attention
from mmrl.train.plan.cost import Cost, Seconds
from mmrl.train.plan.kept import LOGIT_CHUNK, counted
from mmrl.train.plan.learning import ALL
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.memory import cache_token, concurrent_prompts
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.teams import bytes_swapped
from mmrl.train.plan.trained import FULL, Trained, master_bytes, moments
from mmrl.train.plan.workload import Micro, Workload

COPIED = 0.8
"""Share of the host link's rate that copies from pinned memory reach: about 26 of 32 GB/s, 52 of 64."""
DECODING, AROUND = 0.72, 60
"""Share of a layer's operations that a decoded token starts; operations outside of layers."""
BACKWARD = 1.85
"""Operations of a backward pass, as a multiple of the forward pass."""
PICTURES = 25e6
"""Pixels per second that an image processor reads, resizes and cuts on a core; measured on a core of an AMD EPYC."""
PROMPT = 2e-3
"""Seconds of the rest of a prompt on the same core."""
SCORES = 5000.0
"""Assumed scores per second of a verifier process, with communication. `benchmarks/judge.py` measures 63,500 with a verifier that
does nothing; real verifiers differ more than that."""


class CostModel:
    """Costs of a model's passes, in one precision on one machine."""

    def __init__(
        self, shapes: Shapes, machine: Machine, dtype: str, attention: str = "auto", weights: Trained | None = None
    ) -> None:
        """attention: `policy.attn_implementation`. weights: those that are trained; None: no adapters, and none in 4 bits, which
        each pass makes whole."""
        self.attention = Attention(attention, machine.kind, shapes.text.capped)
        self.shapes, self.machine = shapes, machine
        self.b = FULL if dtype == "float32" else 2
        self.rate = machine.flops if self.b == 2 else machine.flops32
        self.unpacking = (weights.nf4 if weights else 0) * (self.b + 0.5)
        self.adapters = None
        if weights and not weights.plain:
            how = dtype == "bfloat16"
            self.adapters = Adapters(weights.adapted_parts, weights.rank, machine, self.b, self.rate, splits=how)
        self.stream = machine.bandwidth * machine.streaming

    def text(self, rows: int, length: int, cached: int = 0, pairs: int | None = None, micro: Micro | None = None) -> Cost:
        """The language model's layers, with their adapters, over rows of `length` new tokens each. cached: earlier tokens of a
        row in the cache. pairs: pairs of tokens whose attention is computed, without a mask of all of them; None for all.
        micro: what the rows hold; None: one sequence each."""
        micro = micro or Micro(rows=rows, length=length, patches=0, targets=0)
        found = self._text(micro, cached, pairs)
        return found + self.adapters.forward("text", micro.tokens) if self.adapters else found

    def _text(self, micro: Micro, cached: int, pairs: int | None) -> Cost:
        """Linear attention computes its chunks in float32, and a token alone updates the state."""
        t, b, machine, tokens, rows = self.shapes.text, self.b, self.machine, micro.tokens, micro.rows
        chunks = 0 if cached else micro.chunks
        found = Cost(starting=AROUND * machine.launch)
        mask = 0 if cached or pairs is not None else b * micro.length
        moved = self.unpacking + tokens * (t.layers - t.linear) * mask
        moved += (1 + 3 * t.q // t.k if machine.kind == "cpu" else 1) * rows * cached * cache_token(self.shapes, b)
        moved += 6 * FULL * rows * t.linear * t.state if cached else 0  # decayed, read, and written
        reached = machine.matmul * (machine.thin if micro.length == 1 else 1.0)
        for layer in counted(self.shapes, b):
            own, slow = layer.flops.of(0, tokens, 0), layer.flops.of(0, 0, chunks)
            seen = layer.pairs * (tokens * (micro.length + cached) if pairs is None else pairs)
            # whether experts are all computed for each token, as in Llama 4
            all_of_them = own - 2 * layer.weights * tokens > 1.8 * layer.experts * tokens
            hit = t.experts.hit(tokens) if t.experts and not all_of_them else 1.0
            loop = layer.loop * max(0.0, hit * t.experts.count - t.experts.chosen) if t.experts else 0.0
            started = layer.operations.of(1, 0, min(1, chunks) and micro.chunks / rows)
            weights = layer.weights + layer.experts * hit
            products = max(own / (self.rate * reached), b * weights / self.stream) + slow / (machine.flops32 * reached)
            found += Cost(
                products=products,
                attention=0.0 if cached else seen / (self.rate * (machine.attention if pairs is None else machine.blocks)),
                streaming=layer.moved.of(0, tokens, chunks) / self.stream,
                starting=(started * (DECODING if cached else 1.0) + loop) * machine.launch,
                flops=own + slow + seen,
            ).times(layer.count)
        if self.shapes.seen:
            beside = self.shapes.seen.per_token(b, ALL).times(tokens)
            found, moved = found + Cost(products=beside.flops / (self.rate * reached), flops=beside.flops), moved + beside.moved
        return found + Cost(streaming=moved / self.stream)

    def tower(self, patches: int, picture: int) -> Cost:
        """The vision tower, with its adapters, over so many patches. picture: patches per image."""
        if not patches:
            return Cost()
        found = self._tower(patches, picture)
        return found + self.adapters.forward("tower", patches) if self.adapters else found

    def _tower(self, patches: int, picture: int) -> Cost:
        seen = self.shapes.seen
        return seen.cost(patches, picture, self.machine, self.b, self.rate) if seen else Cost()

    def head(self, tokens: int) -> Cost:
        """Logits, log-probabilities and entropies of so many tokens, with the head's adapters."""
        return self._head(tokens) + self._by_chunk(Adapters.forward, tokens)

    def _chunks(self, tokens: int) -> int:
        """In which so many tokens go through the head."""
        return max(1, math.ceil(tokens * self.shapes.text.vocabulary / LOGIT_CHUNK))

    def _by_chunk(self, cost: Callable[[Adapters, str, int], Cost], tokens: int) -> Cost:
        """Of the head's adapters."""
        chunks = self._chunks(tokens)
        return cost(self.adapters, "head", math.ceil(tokens / chunks)).times(chunks) if self.adapters else Cost()

    def _head(self, tokens: int) -> Cost:
        t, b, chunks = self.shapes.text, self.b, self._chunks(tokens)
        flops = 2.0 * t.hidden * t.vocabulary * tokens
        return Cost(
            products=max(flops / (self.rate * self.machine.matmul), b * t.hidden * t.vocabulary / self.stream),
            streaming=tokens * t.vocabulary * (2 * b + 16 * FULL) / self.stream,
            starting=16 * chunks * self.machine.launch,
            flops=flops,
        )

    def _pairs(self, micro: Micro) -> int | None:
        return self.attention.pairs(micro) if self.attention.by_blocks(micro.length) else None

    def states(self, micro: Micro, picture: int) -> Cost:
        """A pass over the rows of an update without logits."""
        text = self.text(micro.rows, micro.length, pairs=self._pairs(micro), micro=micro)
        return text + self.tower(micro.patches, picture)

    def forward(self, micro: Micro, picture: int) -> Cost:
        return self.states(micro, picture) + self.head(micro.targets)

    def backward(self, micro: Micro, picture: int, weights: Trained, checkpointing: bool) -> Cost:
        """Gradients of inputs and of weights, with the recomputation for them."""
        head, shares = self._head(micro.targets), weights.shares
        found = self._gradients(head, shares["head"]) + self._by_chunk(Adapters.backward, micro.targets)
        if self._chunks(micro.targets) > 1:
            found += replace(self.head(micro.targets), flops=0.0)
        if not weights.inner:
            return found
        text, seen = self._text(micro, 0, self._pairs(micro)), micro.patches if weights.vision else 0
        tower = self._tower(seen, picture) if seen else Cost()
        found += self._gradients(text, shares["text"]) + self._gradients(tower, shares["tower"])
        if self.adapters:
            found += self.adapters.backward("text", micro.tokens) + self.adapters.backward("tower", seen)
        if checkpointing:
            found += replace(self.states(replace(micro, patches=seen), picture), flops=0.0)
        return found

    def _gradients(self, forward: Cost, share: float) -> Cost:  # of inputs, and of this share of the weights
        return Cost(
            products=(1.0 + share) * forward.products,
            attention=2.5 * forward.attention,
            streaming=2.0 * forward.streaming,
            starting=BACKWARD * self.machine.behind * forward.starting,
            flops=(1.0 + share) * forward.flops,
        )

    def optimiser(self, weights: Trained, passes: int, split: int) -> Cost:
        """Accumulating the gradients of so many passes, their norm, and an AdamW step."""
        half = self.b < FULL and weights.plain
        moved = weights.moved / split
        each = 10 * moved if half else 3 * FULL * moved
        return Cost(
            streaming=(passes * each + (40 + (6 if half else 0)) * moved) / self.stream,
            starting=3 * 14 * self.shapes.text.layers * self.machine.launch,
        )

    def critics(self, work: Workload) -> list[Seconds]:
        """Of a stage whose critics take time that counts."""
        return []

    def call(self, rows: int, work: Workload, graphs: bool = False) -> Cost:
        """The passes of calls of a policy that acts. graphs: what follows a look is replayed."""
        seen = self.tower(rows * work.patches, work.picture_patches)
        return seen + self.answered(rows, work.prompt_tokens, work.completion, work.decoded, graphs)

    def answered(self, rows: int, prompt: int, behind: int, decoded: bool, graphs: bool = False) -> Cost:
        """The language model's passes of calls: one, or one for each token behind the prompt, the first of which follows from the
        prompt's. graphs: the others are replayed."""
        if not decoded:
            return self.text(rows, prompt + behind)
        others = self.text(rows, 1, prompt + behind // 2).times(behind - 1)
        return self.text(rows, prompt) + (others.replayed if graphs else others)

    def offload(self, train: TrainConfig, stage: Stage, work: Workload, weights: Trained) -> Cost:
        """Copies to the host and back, which computing waits for."""
        t, seen, moved = self.shapes.text, self.shapes.seen, 0.0
        if train.offload_optimizer:
            moved += work.updates * (master_bytes(weights, self.b) + moments(stage.optimizer, weights))
        if train.offload_activations:
            patch = seen.inputs(self.b, weights.learning).moved / seen.patches if seen and weights.vision else 0.0
            token = self.b * t.layers * t.copies * t.hidden
            moved += work.epochs * sum(n * (token * m.tokens + patch * m.patches) for m, n in work.micro.items())
        return Cost(streaming=2 * moved / (COPIED * self.machine.host)) if self.machine.kind == "gpu" else Cost()


# -- the parts of a step ----------------------------------------------------------------------------------------------------


def sampling_seconds(config: RunConfig, work: Workload, clock: CostModel, rounds: Rounds) -> list[Seconds]:
    """Prefill and decoding of these rounds on one device, or on the `tensor_parallel` devices of one vLLM engine."""
    if not rounds:
        return []
    machine, vllm = clock.machine, config.compute.sampler == "vllm"
    prefill = decode = Cost()
    for number, size in rounds:
        prompts = concurrent_prompts(config.generate, number, size)
        batches = math.ceil(number / prompts)
        rows, steps = prompts * size, work.completion
        causal = prompts * work.prompt_tokens * (work.prompt_tokens + 1) // 2  # torch's fused attention, without a mask
        read = clock.text(prompts, work.prompt_tokens, pairs=causal) + clock.tower(prompts * work.patches, work.picture_patches)
        prefill += (read + clock.head(prompts)).times(batches)
        token = clock.text(rows, 1, work.prompt_tokens + steps // 2) + clock.head(rows)
        decode += token.times(batches * steps)
    spread = config.compute.tensor_parallel if vllm else 1
    found = []
    for name, cost in (("generate: prefill", prefill), ("generate: decode", decode)):
        if machine.kind == "gpu" and (vllm or (config.generate.cuda_graphs and cost is decode)):  # vLLM has graphs of its own
            cost = cost.replayed
        found.append(
            Seconds(name=name, seconds=cost.seconds(machine) / spread, limit=_limit(cost, machine, name), flops=cost.flops)
        )
    return found


def acting_seconds(config: RunConfig, work: Workload, clock: CostModel, rounds: Rounds) -> list[Seconds]:
    """The calls of a policy that acts in these rounds, for all environments of a lane at a time. Simulators are not in it."""
    if not rounds:
        return []
    rows = -(-config.simulate.num_envs // config.simulate.lanes)
    episodes = sum(n * size for n, size in rounds)
    graphs = config.generate.cuda_graphs and clock.machine.kind == "gpu"
    cost = clock.call(rows, work, graphs).times(work.passes * math.ceil(episodes * work.calls / rows))
    return [Seconds(name="act", seconds=cost.seconds(clock.machine), limit=cost.limit, flops=cost.flops)]


def update_seconds(
    train: TrainConfig, stage: Stage, work: Workload, clock: CostModel, weights: Trained, split: int
) -> list[Seconds]:
    """Forward, backward and optimiser of one learner, and its passes without gradients."""
    machine, picture = clock.machine, work.picture_patches

    def both(passes: Mapping[Micro, int]) -> tuple[Cost, Cost]:
        alike = passes.items()
        back = partial(clock.backward, picture=picture, weights=weights, checkpointing=train.gradient_checkpointing)
        return _sum(clock.forward(m, picture).times(n) for m, n in alike), _sum(back(m).times(n) for m, n in alike)

    (forward, backward), (shown, shown_back) = both(work.micro), both(work.shown)
    looks = forward.times(work.looked_at + work.epochs * work.reference)
    if work.states:
        looks += _sum(clock.states(m, picture).times(n) for m, n in work.micro.items()).times(work.states)
    if work.watched:
        looks += forward.times(work.watched / sum(m.rows * n for m, n in work.micro.items()))
    separate = getattr(getattr(stage, "critic", None), "backbone", "") == "separate"
    passes = work.epochs * (work.twins + separate)
    many = work.micro.total() * work.epochs + work.shown.total() * work.shown_times
    step = clock.optimiser(weights, many // max(1, work.updates) or 1, split).times(work.updates)
    named = [
        ("update: passes without gradients", looks),
        ("update: forward", forward.times(passes) + shown.times(work.shown_times)),
        ("update: backward", backward.times(passes) + shown_back.times(work.shown_times)),
        ("update: optimiser", step),
        ("update: offload", clock.offload(train, stage, work, weights)),
    ]
    return [
        Seconds(name=name, seconds=cost.seconds(machine), limit=_limit(cost, machine, name), flops=cost.flops)
        for name, cost in named
        if cost.seconds(machine)
    ]


def host_seconds(judge: JudgeConfig, work: Workload, machine: Machine) -> list[Seconds]:
    """The host's work: preparing prompts and judging completions."""
    process = (sum(n for n, _ in work.sampled) or work.prompts) * (PROMPT + work.pixels / PICTURES)
    found = [Seconds(name="process", seconds=process, limit="the host: image processing, one process")]
    if work.kind == "rl":
        judging = work.rollouts / (SCORES * judge.num_workers)
        found.append(Seconds(name="judge", seconds=judging, limit="the host: verifiers, whose speed is assumed"))
    return found


def transfer_seconds(
    compute: ComputeConfig, work: Workload, clock: CostModel, weights: Trained, learners: int, computing: float
) -> list[Seconds]:
    """Copying weights to the sampler, and communication between learners. computing: seconds of an update, which overlap with
    gathering."""
    machine, b, found = clock.machine, clock.b, []
    whole = b * weights.whole
    if work.sampled and compute.sampler == "vllm":
        apart = compute.placement != "colocated"
        seconds = 2 * whole / machine.bandwidth + (whole / _link(machine, learners + compute.engines) if apart else 0.0)
        found.append(Seconds(name="weight sync", seconds=seconds, limit="the link" if apart else "memory bandwidth"))
    if learners == 1:
        return found
    if compute.sequence_parallel > 1:
        found.append(Seconds(name="all-to-all", seconds=_swapped(compute.sequence_parallel, work, clock), limit="the link"))
    share, link = (learners - 1) / learners, _link(machine, learners)
    if compute.weights == "replicated":
        seconds, limit = 2 * FULL * weights.moved * share / link * work.updates, "the link: an all-reduce of float32 gradients"
    else:
        passes = work.micro.total() * work.epochs * work.twins + work.shown.total() * work.shown_times
        all_of_it = passes * (2 * whole + b * weights.moved) * share / link
        first = all_of_it / (2 * clock.shapes.text.layers)
        seconds, limit = max(first, all_of_it - computing), "the link: gathering layers, beyond what overlaps with the passes"
        if work.sampled and compute.sampler == "local":
            seconds += whole * share / link
    return [*found, Seconds(name="collectives", seconds=seconds, limit=limit)]


def _swapped(team: int, work: Workload, clock: CostModel) -> float:
    """Seconds in which a team exchanges tokens for heads: forward, backward, and in what checkpointing computes again. The slices
    of its team's rows that a learner has are as many tokens as its own rows."""
    sent = bytes_swapped(clock.shapes, sum(m.tokens * n for m, n in work.micro.items()), team, clock.b)
    passes = 3 * work.epochs * work.twins + work.looked_at + work.states + work.epochs * work.reference
    return passes * sent / _link(clock.machine, team)


def _link(machine: Machine, devices: int) -> float:
    """Bytes per second between the devices of a ring, which its slowest link determines."""
    return machine.link if devices <= machine.node else machine.network


def _limit(cost: Cost, machine: Machine, name: str) -> str:
    if name.endswith("offload"):
        return "the link to the host"
    if name.endswith("decode") and cost.limit == "matrix products":
        return "memory bandwidth: every weight is read for each token"
    return cost.limit


def _sum(costs: Iterable[Cost]) -> Cost:
    return sum(costs, Cost())
