"""The cost of operations, and the seconds of a part of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmrl.train.plan.machines import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of operations on one device."""

    products: float = 0.0
    """Seconds of matrix products."""
    attention: float = 0.0
    streaming: float = 0.0
    """Seconds of other memory traffic."""
    starting: float = 0.0
    """Seconds of starting the operations."""
    flops: float = 0.0
    """Floating-point operations of the model, without recomputation."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            products=self.products + other.products,
            attention=self.attention + other.attention,
            streaming=self.streaming + other.streaming,
            starting=self.starting + other.starting,
            flops=self.flops + other.flops,
        )

    def times(self, n: float) -> Cost:
        return Cost(
            products=n * self.products,
            attention=n * self.attention,
            streaming=n * self.streaming,
            starting=n * self.starting,
            flops=n * self.flops,
        )

    @property
    def replayed(self) -> Cost:
        """By a CUDA graph, which Python starts once."""
        return replace(self, starting=0.0)

    def seconds(self, machine: Machine) -> float:
        computing = self.products + self.attention + self.streaming
        return computing + self.starting if machine.kind == "cpu" else max(computing, self.starting)

    @property
    def limit(self) -> str:
        """The kind of work that takes most of the time."""
        named = {
            "matrix products": self.products,
            "attention": self.attention,
            "memory bandwidth": self.streaming,
            "starting operations": self.starting,
        }
        return max(named, key=lambda name: named[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The time of one part of a step."""

    name: str
    seconds: float
    limit: str
    """What limits the part."""
    flops: float = 0.0
    """Floating-point operations of the model on one device."""
