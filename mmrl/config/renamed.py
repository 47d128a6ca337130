"""The run-file keys of version 0.1 that were renamed, so that the error for an old run file names the new key."""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {
    "policy.lora.match": "target_modules",
    "policy.attention": "attn_implementation",
    "tasks.prompt": "prompt_template",
    "simulate.environments": "num_envs",
    "simulate.demonstrations_mb": "demonstration_cache_mb",
    "evaluate.n": "num_prompts",
    "evaluate.samples": "num_samples",
    "evaluate.blank": "blank_images",
    "evaluate.shuffled": "shuffle_frames",
    "evaluate.frames": "sparse_frames",
    "evaluate.agree": "sparse_agreement",
    "judge.processes": "num_workers",
    "judge.deadline_s": "timeout_s",
    "train.checkpointing": "gradient_checkpointing",
    "record.items": "evaluation_prompts",
    "limits.zero_spread": "zero_std",
    "runs": "runs_dir",
    "compute.memory": "gpu_memory_utilization",
    "compute.sleep": "sleep_mode",
    "stages.final_share": "min_lr_ratio",
    "stages.ema": "ema_decay",
    "stages.critic.weight": "value_coef",
    "stages.critic.hidden": "hidden_sizes",
    "stages.critic.clip": "clip_range",
    "stages.imitation.start": "start_weight",
    "stages.imitation.end": "end_weight",
    "stages.imitation.steps": "decay_steps",
    "stages.imitation.uncertain": "uncertainty_weighting",
    "stages.length.low": "min_tokens",
    "stages.length.high": "max_tokens",
    "stages.length.above": "correct_above",
    "stages.select.n": "max_prompts",
    "stages.kl": "kl_coef",
    "stages.kl_estimate": "kl_estimator",
    "stages.entropy": "entropy_coef",
    "stages.importance": "importance_sampling",
    "stages.importance_cap": "importance_sampling_cap",
    "stages.success": "success_threshold",
    "stages.success_low": "min_success_rate",
    "stages.success_high": "max_success_rate",
    "stages.adapt": "adapt_task_weights",
    "stages.replay": "replay_share",
    "stages.replay_size": "replay_buffer_size",
}
"""Path of an old key, without list indices and kinds of stages -> its new name."""

REPLACED: Mapping[str, str] = {
    "stages.temporal": 'give [[stages.rules]] id = "video/temporal-contrast", and the old keys as its options'
}
"""Path of an old key that no single key replaces -> what to write instead."""
