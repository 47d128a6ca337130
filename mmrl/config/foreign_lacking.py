"""Keys of other trainers that have no counterpart here, and why, so that the error for one says so.

docs/from-*.md names them, and a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping

_SAMPLING = "completions are sampled from the probabilities that are trained"
_OWN = "rows, caches and logits, which are float32, are mmrl's own"
_ENGINES = "a run starts its own engines"
_ROLLOUTS = "rollouts are in the run's folder, pictures included"

WITHOUT: Mapping[str, Mapping[str, str]] = {
    "TRL": {
        **dict.fromkeys(("min_p", "repetition_penalty", "generation_kwargs", "vllm_structured_outputs_regex"), _SAMPLING),
        "disable_dropout": "there never is dropout",
        **dict.fromkeys(("pad_to_multiple_of", "cache_implementation", "cast_lm_head_to_fp32"), _OWN),
        **dict.fromkeys(
            ("use_transformers_continuous_batching", "transformers_continuous_batching_config", "use_transformers_paged"),
            "sampling is mmrl's own or vLLM's",
        ),
        **dict.fromkeys(
            (
                "vllm_mode",
                "vllm_model_impl",
                "vllm_server_base_url",
                "vllm_server_host",
                "vllm_server_port",
                "vllm_server_timeout",
                "vllm_group_port",
            ),
            _ENGINES,
        ),
        "ds3_gather_for_generation": "there is no DeepSpeed",
        **dict.fromkeys(
            ("log_completions_hub_repo", "log_multimodal", "log_unique_prompts", "num_completions_to_print"), _ROLLOUTS
        ),
        **dict.fromkeys(("push_to_hub", "hub_model_id", "hub_private_repo"), "it is `mmrl export RUN FOLDER --hub NAME`"),
        "resume_from_checkpoint": "it is `mmrl train RUN.toml --resume`",
        **dict.fromkeys(("load_best_model_at_end", "metric_for_best_model"), "the checkpoint of the best evaluation is kept"),
        "logging_steps": "the figures of every step are written",
    },
    "verl": {"data.max_prompt_length": "no key cuts prompts", "trainer.resume_mode": "it is `mmrl train RUN.toml --resume`"},
    "EasyR1": {
        "data.max_prompt_length": "no key cuts prompts",
        "trainer.load_checkpoint_path": "it is `mmrl train RUN.toml --resume`",
    },
    "RLinf": {"runner.resume_dir": "it is `mmrl train RUN.toml --resume`"},
}
"""Trainer -> its keys that have none here -> why."""
