"""The cost of adapters beside the matrices that they adapt, counted as `mmrl.policies.lora_products` computes them on a GPU.
Tests compare it with those passes on torch's meta device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mmrl.config.parts import part_of
from mmrl.train.plan.cost import Cost
from mmrl.train.plan.machines import Machine

FULL = 4
"""Bytes of an adapter's weight."""
MANY = 2**23
"""As in `mmrl.policies.lora_products`, which isn't imported here; a test compares them."""
Adapted = tuple[tuple[int, int, int], ...]
"""Matrices that have adapters: (width of the input, of the output, how many)."""


PARTS = {"text": ("language",), "tower": ("vision", "projector"), "head": ("head",)}
"""What a pass computes by itself: the language model's layers, what makes its pictures' tokens, the logits."""


def adapted_parts(added: Mapping[str, tuple[int, ...]]) -> dict[str, Adapted]:
    """Those of each of `PARTS`. added: names and shapes of the adapters' weights."""
    found = {}
    for own, parts in PARTS.items():
        many: Counter[tuple[int, int]] = Counter()
        for name, shape in added.items():
            if ".lora_A." in name and part_of(name) in parts:
                many[shape[1], added[name.replace(".lora_A.", ".lora_B.")][0]] += 1
        found[own] = tuple((*shape, n) for shape, n in sorted(many.items()))
    return found


class Adapters:
    """Costs of adapters beside a model in one precision on one machine.

    Products are counted one by one. The numbers before i, o and r (widths of input and output, rank) are bytes that all other
    operations read and write, added up over those of `mmrl.policies.lora_products`: 2 for a bfloat16 number, 4 for a float32 one.
    """

    def __init__(self, parts: Mapping[str, Adapted], rank: int, machine: Machine, b: int, rate: float, *, splits: bool) -> None:
        """b: bytes of one of the model's numbers. rate: floating-point operations a second in its precision. splits: whether a
        GPU splits float32 factors beside its numbers, which are bfloat16 then."""
        self.parts, self.rank, self.machine, self.b = parts, rank, machine, b
        self.splits = splits and machine.kind == "gpu"
        self.rate, self.stream = rate * machine.matmul, machine.bandwidth * machine.streaming

    def forward(self, part: str, tokens: int) -> Cost:
        """What a pass of so many tokens computes on top of the part's matrices."""
        found, r, b = Cost(), self.rank, self.b
        for i, o, count in self.parts[part]:
            if self._split(i, tokens):
                moved = tokens * (4 * o + 58 * r) + r * (18 * i + 30 * o)
                one = self._cost([(2 * r * i, 2 * i)], moved, 20, tokens)
            else:
                copied = 0 if b == FULL else (b + FULL) * i
                products = [(r * i, FULL * i), (r * o, FULL * o)]
                one = self._cost(products, tokens * (copied + (2 * b + FULL) * o), 8 if copied else 7, tokens)
            found += (one + Cost(flops=2.0 * tokens * r * (i + o))).times(count)
        return found

    def backward(self, part: str, tokens: int) -> Cost:
        """What the gradients of inputs and of adapters take."""
        found, r, b, behind = Cost(), self.rank, self.b, self.machine.behind
        for i, o, count in self.parts[part]:
            if self._split(i, tokens):
                moved = tokens * (6 * i + 62 * r) + r * (36 * i + 38 * o)
                one = self._cost([(2 * r * o, 2 * o)] * 2 + [(2 * r * i, 2 * i), (3 * r * i, 2 * i)], moved, 35 * behind, tokens)
            else:
                moved = tokens * (12 * i if b == FULL else 18 * i + 6 * o)
                started = (10 if b == FULL else 13) * behind
                one = self._cost([(r * o, FULL * o)] * 2 + [(r * i, FULL * i)] * 2, moved, started, tokens)
            found += (one + Cost(flops=4.0 * tokens * r * (i + o))).times(count)
        return found

    def _split(self, width: int, tokens: int) -> bool:
        return self.splits and tokens * width >= MANY

    def _cost(self, products: list[tuple[int, int]], moved: float, operations: float, tokens: int) -> Cost:
        """products: multiplications and bytes of a token, of each."""
        return Cost(
            products=sum(max(2.0 * tokens * m / self.rate, tokens * size / self.stream) for m, size in products),
            streaming=moved / self.stream,
            starting=operations * self.machine.launch,
        )
