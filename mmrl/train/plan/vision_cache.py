"""What a step keeps of a frozen tower's sight, and what its passes don't look at again (`mmrl.policies.vlm.vision_cache`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrl.config.sections import RunConfig
from mmrl.train.plan.cost import Seconds
from mmrl.train.plan.memory import Part
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.trained import Trained
from mmrl.train.plan.workload import Micro, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSight:
    """The sight that a step keeps."""

    bytes: int
    share: float
    """Of all pictures that a frozen tower of the policy looks at."""
    sampled: bool
    """Whether the sampler's passes look, and not those of the update."""

    @property
    def parts(self) -> list[Part]:
        return [Part(name="vision cache", bytes=self.bytes, because="what a frozen tower saw in a step")] if self.bytes else []

    def unseen(self, work: Workload) -> Workload:
        """The work of an update whose passes look at the other pictures alone."""
        micro: Counter[Micro] = Counter()
        for one, times in work.micro.items():
            micro[replace(one, patches=round(one.patches * (1 - self.share)))] += times
        return replace(work, micro=micro)

    def looks(self, work: Workload, clock: CostModel) -> list[Seconds]:
        """The looks of the update at the pictures that are kept."""
        if self.sampled or not self.share:
            return []
        patches = round(self.share * sum(m.patches * n for m, n in work.micro.items()))
        cost = clock.tower(patches, work.picture_patches)
        return [Seconds(name="update: pictures", seconds=cost.seconds(clock.machine), limit=cost.limit, flops=cost.flops)]


NOTHING = KeptSight(bytes=0, share=0.0, sampled=False)


def kept_sight(config: RunConfig, work: Workload, shapes: Shapes, weights: Trained, parts: Sequence[Part]) -> KeptSight:
    """The sight that a learner keeps in a step, in its vision cache. parts: of its memory. A reference or a teacher with a tower
    of its own keeps what that saw, which saves little: most look at a picture once."""
    compute, token = config.compute, shapes.seen.kept_token if shapes.seen else 0
    towers = (not weights.vision) + sum(part.name in ("reference", "teacher") for part in parts)
    if not token or not towers or compute.sequence_parallel > 1 or not work.patches:
        return NOTHING
    prompts = sum(n for n, _ in work.sampled) or work.prompts
    whole = towers * config.policy.bytes_per_weight * token * round(prompts * work.patches * shapes.vectors)
    kept = min(whole, config.train.vision_cache_mb << 20)
    sampled = bool(work.sampled) and compute.sampler == "local" and not compute.staleness
    return KeptSight(bytes=kept, share=0.0 if weights.vision else kept / whole, sampled=sampled)
