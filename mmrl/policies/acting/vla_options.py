"""Options of vision-language-action models: their defaults, their checks, and what comes with a checkpoint of OpenVLA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting import options
from mmrl.policies.acting.options import NONE
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.acting.units import load_statistics
from mmrl.policies.lora import adapter_chain
from mmrl.policies.openvla.components import Components, check_components, components_of
from mmrl.policies.openvla.reading import is_openvla, statistics_file

HEADS = ("tokens", "normal", "l1", "flow")
DECODING = ("parallel", "one-by-one", "oft")
INSTRUCTION = "What action should the robot take to {instruction}?"
DEFAULTS: dict[str, Any] = {
    "head": "tokens",
    "decoding": "parallel",
    "bins": 256,
    "binning": "uniform",
    "lower_case": False,
    "size": 0,
    "crop": 1.0,
    "state": 0,
}
SCALES = ("number", "network")
"""What the scale of an `l1` head is of."""
SPREADS = {"normal": 0.6, "l1": 0.05}
"""Spread that a head begins with; that of `l1` is RIPT-VLA's, exp(-3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What lies beside the weights of a published checkpoint."""

    name: str
    """Folder or hub name of the model itself, below all adapters."""
    components: Components | None = None
    """None for other models, and for a folder that mmrl saved, which says by itself what it has."""
    statistics: str | Mapping[str, Any] = ""
    """A file, or the value of the option."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that a checkpoint with component files was trained with."""
        if not self.components:
            return {}
        found: dict[str, Any] = {"decoding": "oft", "state": self.components.state_numbers}
        return found | ({"head": "l1"} if self.components.head else {})

    def check(self, way: Mapping[str, Any], dims: int) -> None:
        """Raise UserError if its files lack what a policy with these options needs."""
        if self.components is not None:
            check_components(self.name, self.components, head=way["head"] == "l1", state=way["state"], dims=dims)


def published(config: PolicyConfig, statistics: str | Mapping[str, Any]) -> Published:
    """statistics: the option. Raises UserError for a published checkpoint that lacks statistics, or whose files can't be used. Of
    the weights nothing is read."""
    name = adapter_chain(config.model)[1]
    given = "" if statistics == NONE else statistics
    saved = (Path(config.model) / SETTINGS).is_file()  # it names its statistics and has weights of its own
    if saved or name.startswith("tiny:") or not is_openvla(name):
        return Published(name=name, statistics=given)
    if statistics in ("", None):
        given = statistics_file(name) or ""
        if not given:
            raise UserError(
                f"{config.model!r} comes without statistics of its data (norm_stats, dataset_statistics.json): set "
                f"policy.options.statistics to a file, or to {NONE!r} where the policy's numbers are the simulator's",
                key="policy.model",
            )
    return Published(name=name, components=components_of(name), statistics=given)


def check_files(config: PolicyConfig) -> None:
    """Check what lies beside a model in a folder against the run file's options, without loading the model."""
    own, statistics = config.options, config.options.get("statistics", "")
    if config.model.startswith("tiny:") or not Path(adapter_chain(config.model)[1]).is_dir():
        return
    if not isinstance(statistics, str | Mapping):
        return  # the policy says what it must be
    found = published(config, statistics)
    way = DEFAULTS | found.options | given(own)
    if found.statistics:
        load_statistics(found.statistics, own.get("statistics_key", ""), own.get("statistics_kind", ""))
    found.check(way, own.get("dims", 7))


def given(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def scale_of(head: str, scale: str) -> str:
    """What the scale of a head is of. Raises UserError for a head that has none."""
    if scale != SCALES[0] and head != "l1":
        raise UserError(f'policy.options.scale = "{scale}" is of an l1 head, and policy.options.head = "{head}"')
    return scale


def check(
    prompt: str, dims: int, chunk: int, cameras: Sequence[str], history: int, flow_steps: int, scale: str, way: Mapping[str, Any]
) -> None:
    """Raise UserError for an option that can't be meant."""
    way = {**way, "scale": scale}
    for name, known in (
        ("scale", SCALES),
        ("head", HEADS),
        ("decoding", DECODING),
        ("binning", ("uniform", "openvla")),
        ("lower_case", (True, False)),
    ):
        if way[name] not in known:
            raise UserError(f"policy.options.{name} = {way[name]!r:.60} is unknown: choose one of {', '.join(map(str, known))}")
    options.check_prompt(prompt)
    options.check_crop(way["crop"])
    options.check_integer("dims", dims, 1, 256)
    options.check_integer("chunk", chunk, 1, 256)
    options.check_integer("bins", way["bins"], 2, 1024)
    options.check_integer("size", way["size"], 0, 4096)
    options.check_integer("state", way["state"], 0, 100_000)
    options.check_texts("cameras", cameras)
    options.check_integer("history", history, 0, 64)
    options.check_integer("flow_steps", flow_steps, 1, 1000)
    if way.get("spread") is not None:
        options.check_number("spread", way["spread"], 0, 10)
