"""`--smoke`: shrink a run file so that a whole run takes seconds. Each section's `smaller()` defines what the section becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmrl.config.policy import SMOKE_PIXELS
from mmrl.config.sections import PARTS, RunConfig, teacher_of
from mmrl.policies.names import takes_small_pictures, tiny_that_hears
from mmrl.registry import plugins

TINY = 64 << 20
"""A smoke run keeps a model with fewer bytes of weights than this."""

MIXTURE = "tiny:qwen3_vl_moe"
"""The model of a smoke run whose stages say something about experts."""


def is_tiny(model: str) -> bool:
    """Whether a smoke run can use this model: a `tiny:` model, or a folder with small weights."""
    return model.startswith("tiny:") or 0 < sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) < TINY


OF_VLLM = frozenset({"sampler", "gpu_memory_utilization", "sleep_mode", "sleep_level", "tensor_parallel", "model_runner", "vllm"})
"""Keys of `[compute]` that are about vLLM."""


def without_vllm(config: RunConfig) -> bool:
    """Whether a smoke run samples with the local sampler in the place of vLLM, which isn't installed."""
    if config.compute.sampler != "vllm":
        return False
    from mmrl.rollout.generate.vllm_engine import is_installed

    return not is_installed()


def smoke(config: RunConfig) -> RunConfig:
    """The same run in seconds: a tiny model, two steps per stage, few prompts. It shows that the run works, not that it
    learns."""
    if config.smoke:
        return config
    data = config.smaller().model_dump(mode="json", exclude_unset=True)  # unset, so that the algorithm's defaults can fill in
    if without_vllm(config):
        data["compute"] = {key: value for key, value in data["compute"].items() if key not in OF_VLLM}
    tiny = plugins.registry().get("policies", config.policy.kind).tiny
    if tiny:
        mixture = MIXTURE if any(getattr(stage, "experts", None) for stage in config.stages) else ""
        tiny = mixture or tiny_that_hears(config.policy.model) or tiny
    if tiny and not is_tiny(config.policy.model):
        data["policy"] |= {"model": tiny, "dtype": "float32", "trust_remote_code": False}
        data["policy"] |= {"chat_template": None, "chat_template_kwargs": {}, "shown_tokens": []}  # of its tokenizer
        for stage in data["stages"]:  # patterns name layers that the tiny model doesn't have
            stage["parts"] = _parts_there(stage.get("parts", []))
        others = {"domain", "rotation"}  # of the checkpoint's robots
        if "statistics" not in config.policy.options:  # then the statistics are the checkpoint's
            others |= {"statistics_key", "statistics_kind", "gripper"}
        data["policy"]["options"] = {k: v for k, v in config.policy.options.items() if k not in others}
        if config.policy.lora:
            data["policy"]["lora"]["target_modules"] = [m for m in config.policy.lora.target_modules if m in PARTS] or [
                "language"
            ]
            data["policy"]["lora"]["nf4"] = [m for m in config.policy.lora.nf4 if m in PARTS]
    if isinstance(base := config.policy.options.get("base"), dict) and not is_tiny(str(base.get("model"))):
        spec = plugins.registry().specs("policies").get(str(base.get("kind")))
        small = {"model": spec.tiny} if spec and spec.tiny else {}
        data["policy"].setdefault("options", {})["base"] = base | small
    largest = min(config.policy.max_pixels or SMOKE_PIXELS, SMOKE_PIXELS)
    if takes_small_pictures(data["policy"]["model"]):
        data["policy"] |= {"max_pixels": largest, "min_pixels": min(config.policy.min_pixels or 3136, 3136, largest)}
    for stage, full in zip(data["stages"], config.stages, strict=True):
        if (teacher := teacher_of(full)) and not teacher.startswith("tiny:"):
            stage["teacher"] = data["policy"]["model"]
        for rule in stage.get("rules", []):
            smaller = plugins.registry().get("sampling_rules", rule["id"]).smoke
            rule["options"] = {**_small_verifier(rule.get("options", {})), **smaller}
    for task in data["tasks"]:
        if isinstance(teacher := task.get("options", {}).get("teacher"), dict):
            task["options"]["teacher"] = _small_verifier(teacher)
    data["verifiers"] = {name: _small_verifier(options) for name, options in config.verifiers.items()}
    data.setdefault("record", {})["trackers"] = [t for t in config.record.trackers if plugins.registry().get("trackers", t).local]
    return RunConfig.model_validate(data)


def _parts_there(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of `stages.parts` that also fit the tiny model: all, if they name parts, the policy's own weights and the rest;
    otherwise those that name parts."""
    named = [part for part in parts if part["match"] in PARTS]
    fit = [part for part in parts if part in named or part["match"] == "*" or part["match"].startswith("own.")]
    return parts if len(fit) == len(parts) else named


def _small_verifier(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a verifier, a rule or a task's teacher with a tiny model on the CPU, if they name a model or a device."""
    return options | {name: value for name, value in (("model", "tiny"), ("device", "cpu")) if name in options}
