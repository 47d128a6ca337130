"""Export the vision tower of a run's policy, for another model or for probes (PIVOT, arXiv 2510.16333)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmrl.api.errors import UserError
from mmrl.config.load import load_config
from mmrl.policies.lora import merge
from mmrl.policies.vlm.tower import tower_of
from mmrl.policies.vlm.vlm import VLM
from mmrl.run_folder.reader import step_of
from mmrl.run_folder.writer import RunFolder
from mmrl.train import checkpoint
from mmrl.train.export import checkpoint_of, complete_or_gone, load_saved, refuse_used, run_file


@dataclass(frozen=True, slots=True)
class Tower:
    """What an export of a tower wrote."""

    step: int
    """The step of the checkpoint."""
    kind: str
    """The class of transformers whose `from_pretrained` loads the folder."""


def export_tower(run: Path, out: Path, *, which: str = "best") -> Tower:
    """Write the vision tower of a run's checkpoint to the new folder `out`, with its image processor. Adapters are worked in.

    which: checkpoint, `best`, `last` or a step. Raises UserError for a policy without such a tower, and as `export_run` does.
    """
    refuse_used(out)
    config = load_config(run_file(run))
    found = checkpoint_of(RunFolder.open(run), which, config)
    policy = load_saved(config.policy.model_copy(update={"device": "cpu"}), config.seed, found / checkpoint.POLICY)
    if not isinstance(policy, VLM):
        raise UserError(f"{run}: policy.kind = {config.policy.kind!r} has no vision tower that could be loaded by itself")
    if policy.lora:
        merge(policy.model)
    tower = tower_of(policy.model)
    with complete_or_gone(out):
        tower.save_pretrained(out)
        policy.processor.image_processor.save_pretrained(out)
    return Tower(step_of(found), type(tower).__name__)
