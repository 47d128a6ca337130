"""Keys of a run file that change nothing, as what they belong to is off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import tomli_w

from mmrl.config.sections import RunConfig, Section

SWITCHES: Mapping[str, str] = {
    "importance_sampling_cap": "importance_sampling",
    "importance_sampling_floor": "importance_sampling",
    "importance_sampling_normalise": "importance_sampling",
    "gap_estimator": "gap_mask",
    "gap_level": "gap_mask",
    "kl_horizon": "kl_target",
    "overlong_penalty": "overlong_buffer",
    "hint_shares": "hints",
    "ground_truth_without": "ground_truth",
    "replay_buffer_size": "replay_share",
    "min_lr_ratio": "schedule",
    "sparse_agreement": "sparse_frames",
    "steering": "steer",
}
"""Key of a stage or of `[evaluate]` -> the key of the same section that switches on what it belongs to; its default leaves that
off."""


def idle_keys(config: RunConfig) -> list[str]:
    """A sentence for each key with another value than its default that nothing reads, and for warm-ups longer than their
    stages."""
    found = list(_idle("evaluate", config.evaluate))
    for number, stage in enumerate(config.stages):
        found += _idle(f"stages.{number}", stage)
        if stage.warmup_steps > stage.steps:
            found.append(
                f"stages.{number}.warmup_steps = {stage.warmup_steps} is above steps = {stage.steps}, so the learning rate never "
                "reaches learning_rate: lower it"
            )
    return found


def _idle(where: str, section: Section) -> Iterator[str]:
    fields = type(section).model_fields
    for key, switch in SWITCHES.items():
        if key not in fields or switch not in fields or getattr(section, key) == fields[key].default:
            continue
        if (off := getattr(section, switch)) == fields[switch].default:
            state = f"without {switch}" if off is None else f"with {tomli_w.dumps({switch: off}).strip()}"
            yield f"{where}.{key} has no effect {state}: set that, or leave {key} out"
