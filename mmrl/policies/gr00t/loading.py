"""Loading GR00T from a folder or the hub, or building a tiny one: first what its JSON files say, then its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.options import NONE
from mmrl.policies.acting.saved_policy import saved_options
from mmrl.policies.acting.units import load_statistics
from mmrl.policies.gr00t import tiny
from mmrl.policies.gr00t.backbone import Network
from mmrl.policies.gr00t.config import N1_6
from mmrl.policies.gr00t.eagle_reading import QWEN3, tokenizer_of
from mmrl.policies.gr00t.embodiment import Embodiment
from mmrl.policies.gr00t.hub import CURE, downloaded, json_files
from mmrl.policies.gr00t.network import Plan, load_network, read_plan
from mmrl.policies.gr00t.options import Gr00tOptions
from mmrl.policies.gr00t.processor import OWN, PROCESSOR, Files, read_files
from mmrl.policies.lora import adapter_chain
from mmrl.policies.names import refuse_path

PROCESSOR_CURE = "set policy.options.processor to a folder or hub name of its Qwen3-VL, such as Qwen/Qwen3-VL-2B-Instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is known of a policy before its weights are read."""

    plan: Plan
    files: Files
    embodiment: Embodiment


def prepare(name: str, given: Path, options: Gr00tOptions) -> Prepared:
    """name: the model below all adapters. given: the folder with the files beside the weights, if they don't lie at `name`.
    Raises UserError for files that can't be used, and where statistics are missing."""
    new, saved = name.startswith("tiny:"), saved_options(given)
    embodiment, statistics = options.embodiment or saved.get("embodiment", ""), options.statistics
    folder = Path() if new else json_files(name)
    plan = tiny.plan(name) if new else read_plan(folder)
    if (given / PROCESSOR).is_file():
        files = read_files(given, plan.version)
        if plan.lerobot:  # adapters of a model that LeRobot saved: a user's statistics may have been added to what its files say
            before = read_files(folder)
            files = replace(files, own=(files.settings, files.statistics) == (before.settings, before.statistics))
    else:
        files = tiny.files(plan.version, embodiment or OWN) if new else read_files(folder, plan.version)
    chosen = files.chosen(embodiment or (OWN if new else ""))
    for option, value in (("statistics_key", options.statistics_key), ("statistics_kind", options.statistics_kind)):
        if value and statistics in ("", NONE):
            raise UserError(
                f"policy.options.{option} = {value!r} says what statistics mean, and policy.options.statistics names none"
            )
    if statistics == NONE:
        files = files.without(chosen)
    elif statistics:
        usual = "quantiles" if files.settings.get("use_percentiles") else "min-max"
        own = load_statistics(statistics, options.statistics_key, options.statistics_kind or usual)
        files = files.extended(chosen, own, options.cameras, plan.head.action_horizon)
    elif chosen not in files.known and not new and not saved:
        there = f"statistics of {', '.join(files.known[:40])}" if files.known else "statistics of no embodiment"
        raise UserError(
            f"{name!r} has {there}, and none of policy.options.embodiment = {chosen!r}: choose one that it has, or set "
            f"policy.options.statistics to a file with those of your data, or to {NONE!r} where its numbers are the simulator's",
            key="policy.model",
        )
    return Prepared(plan=plan, files=files, embodiment=files.embodiment(chosen, plan.head))


def check_model(config: PolicyConfig) -> None:
    """Raise UserError for a `policy.model` that is not a GR00T, or whose files don't fit the options, without reading its
    weights. A hub name is not looked up."""
    if config.model.startswith("tiny:"):
        tiny.parse(config.model, 0)
        return
    if not Path(config.model).is_dir():
        refuse_path(config.model, CURE)
        return
    _, name = adapter_chain(config.model)
    own = saved_options(Path(config.model)) | config.options
    if name.startswith("tiny:") or Path(name).is_dir():
        named = ("embodiment", "statistics", "statistics_key", "statistics_kind")
        prepare(name, Path(config.model), Gr00tOptions(**{key: own[key] for key in named if key in own}))


def load_model(config: PolicyConfig, name: str, plan: Plan, processor: str, seed: int) -> tuple[Network, Any]:
    """(the network, its Qwen3-VL's processor or N1.6's tokenizer). Raises UserError for weights that don't fit, and where a
    processor is missing."""
    dtype, attention = getattr(torch, config.dtype), config.dense_attention
    if name.startswith("tiny:"):
        return tiny.build(name, seed, dtype, attention)
    if plan.version is N1_6:
        own = QWEN3 if plan.backbone_name == N1_6.model_name else plan.backbone_name
        found = tokenizer_of(name, processor or own, plan.backbone)
    else:
        found = _processor(name, processor or plan.backbone_name, plan)
    return load_network(downloaded(name, ["*.json", "*.safetensors"]), dtype, attention), found


def skeleton(name: str) -> Network:
    """The network without its weights, which are on torch's meta device."""
    plan = tiny.plan(name) if name.startswith("tiny:") else read_plan(json_files(name))
    with torch.device("meta"):
        return plan.network()


def _processor(name: str, where: str, plan: Plan) -> Any:
    from transformers import AutoProcessor

    try:
        found: Any = AutoProcessor.from_pretrained(where)
        image, patch = found.tokenizer.convert_tokens_to_ids(found.image_token), found.image_processor.patch_size
        if not found.chat_template:
            raise ValueError("it has no chat template")
    except Exception as error:
        raise UserError(
            f"{name!r}: no processor of a Qwen3-VL in {where!r}: {shorten(error, 200)}: {PROCESSOR_CURE}", key="policy.model"
        ) from error
    wanted = plan.backbone.image_token_id, plan.backbone.vision_config.patch_size
    if (image, patch) != wanted:
        raise UserError(
            f"{name!r}: the processor of {where!r} has pictures as token {image} in patches of {patch}, and the model as "
            f"{wanted[0]} in {wanted[1]}: {PROCESSOR_CURE}",
            key="policy.model",
        )
    return found
