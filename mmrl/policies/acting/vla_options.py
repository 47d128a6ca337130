"""Options of vision-language-action models: their defaults, and what comes with a checkpoint of OpenVLA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mmrl.api.errors import UserError
from mmrl.api.specs import Bounds
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.options import NONE, Actions, Crop, PromptOptions, Spread, StatisticsOptions, Width
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.acting.units import load_statistics
from mmrl.policies.lora import adapter_chain
from mmrl.policies.openvla.components import Components, check_components, components_of
from mmrl.policies.openvla.reading import is_openvla, statistics_file

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
"""Of options that are unset, where neither the model's family nor the checkpoint's own files say otherwise."""
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
    found = published(config, statistics)
    way = DEFAULTS | found.options | {name: value for name, value in own.items() if value is not None}
    if found.statistics:
        load_statistics(found.statistics, own.get("statistics_key", ""), own.get("statistics_kind", ""))
    found.check(way, own.get("dims", 7))


@dataclass(frozen=True, kw_only=True)
class VLAOptions(StatisticsOptions, PromptOptions):
    """What is unset is as the checkpoint's own files or the model's family say, else as in `DEFAULTS`."""

    dims: Actions = 7
    """Numbers of an action, as the simulator needs them."""
    chunk: Actions = 1
    """Actions of a call."""
    head: Literal["tokens", "normal", "l1", "flow"] | None = None
    """What makes actions: `tokens` of the vocabulary; `normal`: a normal distribution on hidden states; `l1`: OpenVLA-OFT's
    regression head, with a Laplace distribution around what it predicts; `flow`: a flow from noise to the action, with the
    likelihood of its noisy steps. Unset: `tokens`."""
    decoding: Literal["parallel", "one-by-one", "oft"] | None = None
    """`parallel`, in slots that see each other; `one-by-one`, tokens that each see those before it; `oft`, in empty slots, one
    for each number, where everything sees everything (Kim, Finn and Liang, OpenVLA-OFT, section 4.1). Unset: `parallel`."""
    bins: Annotated[int, Bounds(low=2, high=1024)] | None = None
    """Tokens for a number of an action. Unset: 256."""
    binning: Literal["uniform", "openvla"] | None = None
    """Where the bins lie; `openvla` is OpenVLA's arithmetic, whose two highest bins are one. Unset: `uniform`."""
    prompt: str = INSTRUCTION
    lower_case: bool | None = None
    """Convert instructions to lower case. Unset: false."""
    cameras: Sequence[str] = ()
    """The simulator's cameras that are looked through, in this order. Empty: the first one."""
    history: Annotated[int, Bounds(low=0, high=64)] = 0
    """Number of earlier calls whose pictures are seen too, the oldest first; before an episode's first call, its first picture
    stands for them."""
    size: Annotated[int, Bounds(low=0, high=4096)] | None = None
    """Pixels of the sides to which pictures are scaled; 0 leaves them. Unset: 0."""
    crop: Crop | None = None
    """Share of a picture's area around its middle that is kept. Unset: 1."""
    state: Width | None = None
    """Numbers of the robot's state that is read; 0 reads none. A projector of two layers makes them one token, behind the
    pictures (OpenVLA) or at the end of the prompt. Unset: 0."""
    flow_steps: Annotated[int, Bounds(low=1, high=1000)] = 4
    """Euler steps of a flow head."""
    spread: Spread | None = None
    """Initial standard deviation of a `normal` head, initial scale of an `l1` head. Unset: 0.6 and 0.05."""
    scale: Literal["number", "network"] = "number"
    """What the scale of an l1 head is of: a `number` for each number of an action, or a `network` on the hidden states
    (RIPT-VLA)."""

    def asked(self) -> dict[str, Any]:
        """Those of `DEFAULTS` and `spread` that are set."""
        return {name: value for name in (*DEFAULTS, "spread") if (value := getattr(self, name)) is not None}


def head_of(config: PolicyConfig) -> str:
    """The option `head`, or what takes its place. Of a hub name nothing is looked up."""
    name = adapter_chain(config.model)[1]
    beside = "l1" if Path(name).is_dir() and components_of(name).head else DEFAULTS["head"]
    return str(config.options.get("head") or beside)


def width_of(wide: int, dims: int, head: str, decoding: str) -> int:
    """Width of what a critic reads: the hidden states of an action's slots, or that of a prompt's end. wide: of one."""
    return wide * dims if decoding == "oft" or (head == "tokens" and decoding != "one-by-one") else wide


def scale_of(head: str, scale: str) -> str:
    """What the scale of a head is of. Raises UserError for a head that has none."""
    if scale != "number" and head != "l1":
        raise UserError(f'policy.options.scale = "{scale}" is of an l1 head, and policy.options.head = "{head}"')
    return scale
