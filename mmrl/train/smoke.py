"""A run file made small, so that a whole run takes seconds: `--smoke`."""

from __future__ import annotations

from pathlib import Path

from mmrl.config.sections import PARTS, RunConfig
from mmrl.registry import plugins

SMOKE = "-smoke"
"""What the name of a run that is cut short ends with."""


TINY = 64 << 20
"""Bytes of weights up to which a smoke run keeps a model."""


def is_tiny(model: str) -> bool:
    """Whether a smoke run can take this model: one that is made on the spot, or a folder with small weights."""
    return model.startswith("tiny:") or 0 < sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) < TINY


def smoke(config: RunConfig) -> RunConfig:
    """The same run in seconds: a tiny model, two steps a stage, few prompts. It shows that it works, not that it learns."""
    data = config.model_dump(mode="json", exclude_unset=True)  # an algorithm's own defaults may still fill in
    tiny = plugins.registry().get("policies", config.policy.kind).tiny
    if tiny and not is_tiny(config.policy.model):
        data["policy"] |= {"model": tiny, "dtype": "float32", "trust_remote_code": False}
        for stage in data["stages"]:  # patterns of names are about layers that the tiny model hasn't
            stage["parts"] = [part for part in stage.get("parts", []) if part["match"] in PARTS]
        if "statistics" not in config.policy.options:  # then they are the checkpoint's own
            scales = ("statistics_key", "statistics_kind", "gripper")
            data["policy"]["options"] = {k: v for k, v in config.policy.options.items() if k not in scales}
        if config.policy.lora:
            data["policy"]["lora"]["match"] = [m for m in config.policy.lora.match if m in PARTS] or ["language"]
    largest = min(config.policy.max_pixels or 12544, 12544)
    data["policy"]["device"] = "cpu"
    if not data["policy"]["model"].startswith("tiny:openvla"):  # its pictures have one size
        data["policy"] |= {"max_pixels": largest, "min_pixels": min(config.policy.min_pixels or 3136, 3136, largest)}
    video = config.policy.video
    data["policy"].setdefault("video", {}).update(max_frames=min(video.max_frames, 8), max_pixels=min(video.max_pixels, 12544))
    smaller = {"steps": 2, "batch_size": 4, "prompts_per_step": 2, "minibatches": 2, "group_size": 4, "epochs": 2}
    for stage, full in zip(data["stages"], config.stages, strict=True):
        if "teacher" in stage and not stage["teacher"].startswith(("tiny:", "expert")):
            stage["teacher"] = data["policy"]["model"]
        if stage.get("critic", {}).get("warmup_steps"):
            stage["critic"]["warmup_steps"] = 1
        stage.update({k: min(getattr(full, k), v) for k, v in smaller.items() if hasattr(full, k)} | {"warmup_steps": 0})
    for options in data.get("verifiers", {}).values():
        options.update({k: v for k, v in (("model", "tiny"), ("device", "cpu")) if k in options})
    for task in data["tasks"]:
        task.update({k: min(task[k], most) for k, most in (("group_size", 4), ("max_tokens", 16)) if task.get(k)})
    data.setdefault("generate", {})["max_tokens"] = min(config.generate.max_tokens, 16)
    data.setdefault("simulate", {})["environments"] = min(config.simulate.environments, 4)
    data["simulate"]["device"] = "cpu"
    data.setdefault("evaluate", {})["n"] = min(config.evaluate.n, 4)
    data["evaluate"]["frames"] = sorted({min(frames, 8) for frames in config.evaluate.frames})
    local = [t for t in config.record.trackers if t == "tensorboard"]
    data.setdefault("record", {})["trackers"] = local  # nothing leaves this machine
    data["name"] = f"{config.name}{SMOKE}"
    return RunConfig.model_validate(data)
