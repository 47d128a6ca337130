"""The probes of a run file."""

from __future__ import annotations

from mmrl.config.sections import RunConfig
from mmrl.evaluation.probes.blank import Blank
from mmrl.evaluation.probes.probe import Probe
from mmrl.evaluation.probes.shuffled import Shuffled
from mmrl.evaluation.probes.sparse_to_dense import SparseToDense
from mmrl.evaluation.probes.steered import Steered

PROBES = (Blank, Shuffled, SparseToDense, Steered)
"""The probes in the order in which they run."""


def probes_of(config: RunConfig) -> list[Probe]:
    """The probes that `[evaluate]` switches on."""
    return [probe for kind in PROBES if (probe := kind.of(config)) is not None]
