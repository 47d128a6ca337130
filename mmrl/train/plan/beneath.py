"""A frozen vision-language-action model that another policy stands on: it is computed from its sizes, as if it acted alone, while
the passes of the policy on it are counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmrl.config.sections import PolicyConfig
from mmrl.train.plan.acting import Call, cameras, vla_call
from mmrl.train.plan.configs import Found, read_shapes
from mmrl.train.plan.cost import Cost
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.memory import called
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.workload import Sizes

SIDE = 224
"""Assumed side of a picture that it sees as the camera gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beneath:
    """The model, and what a call of it takes. rows: calls at once."""

    policy: PolicyConfig
    found: Found

    @property
    def bytes(self) -> int:
        """Of its weights."""
        return self.policy.bytes_per_weight * self.found.shapes.parameters

    @property
    def pictures(self) -> int:
        """Of a call."""
        return cameras(self.policy)

    def pixels(self, given: int) -> int:
        """Of a picture as it sees it. given: as a camera gives it, 0 if that isn't known."""
        return min(int(self.policy.options.get("size") or 0) ** 2 or given or SIDE**2, self.found.most_pixels)

    def cost(self, rows: int, sizes: Sizes, machine: Machine, graphs: bool = False) -> Cost:
        clock = CostModel(self.found.shapes.seeing(sizes.pixels), machine, self.policy.dtype, self.policy.attn_implementation)
        call = self._call(sizes)
        seen = clock.tower(rows * self.pictures * call.picture, call.picture)
        return seen + clock.answered(rows, call.prompt, call.behind, call.alone, graphs)

    def memory(self, rows: int, sizes: Sizes) -> int:
        """Bytes of its activations."""
        call, shapes = self._call(sizes), self.found.shapes.seeing(sizes.pixels)
        patches = self.pictures * call.picture
        return called(shapes, self.policy.bytes_per_weight, rows, call.prompt + call.behind, patches)

    def _call(self, sizes: Sizes) -> Call:
        return vla_call(self.policy, self.found.shapes, replace(sizes, images=self.pictures))


def beneath_of(policy: PolicyConfig | None) -> Beneath | None:
    """None without one. Raises UserError if its shapes are unknown."""
    return None if policy is None else Beneath(policy=policy, found=read_shapes(policy, policy.model, online=True))
