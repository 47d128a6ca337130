"""Small policies that act, from scratch: a convolutional network on a camera, or a perceptron on the state alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mmrl import UserError
from mmrl.api.policies import (
    META,
    SETTINGS,
    ActingPolicy,
    Flow,
    Normal,
    Planned,
    PolicyConfig,
    options,
    picture_of,
    read_settings,
    state_of,
)
from mmrl.api.simulators.types import Observation

PLACES = 4
"""Times of a flow at which the loss of a demonstration is computed."""
SMALLEST = 36
"""Pixels of a picture's sides of which three convolutions leave something."""


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(options.PolicyOptions):
    """Options of a small network, which a policy that corrects another has, too."""

    state: options.Width = 0
    """Numbers of the state that is read; 0 reads none."""
    size: options.Side = 64
    """Pixels of the camera's sides, 36 or more for a `cnn`."""
    camera: str = ""
    """The camera that is looked through. Empty: the first one."""
    hidden: Sequence[options.Layer] = (256, 256, 256)
    """Widths of the perceptron, or of the layers after the convolutions."""
    spread: options.Spread = 0.6
    """Initial standard deviation of a normal head."""


@dataclass(frozen=True, kw_only=True)
class SmallOptions(options.StatisticsOptions, NetworkOptions):
    dims: options.Actions = 7
    """Numbers of an action."""
    chunk: options.Actions = 1
    """Actions of a call."""
    head: Literal["normal", "flow"] = "normal"
    """What makes actions of hidden states."""


class Small(ActingPolicy):
    """`model` is `cnn` (Mnih et al., Human-level control, its three convolutions) or `mlp`, or a folder with one of them."""

    options_class = SmallOptions
    trained_whole = True
    float32_only = True
    unread = ActingPolicy.unread | {"attn_implementation"}
    reads_text = False
    free = frozenset({"camera"})
    choice_settings = frozenset({"dims", "chunk", "head"})

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        own = SmallOptions(**given)
        dims, chunk, state, size = own.dims, own.chunk, own.state, own.size
        self.device, self.dims, self.chunk, self.camera = torch.device(device), dims, chunk, own.camera
        self.use_statistics(own.statistics, own)
        place = source or (Path(config.model) if Path(config.model).is_dir() else None)
        self.kind = _kind(config.model, place)
        self.state, self.size, self.hidden = state, size, list(own.hidden)
        _check_sizes(self.kind, size, state)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            eye, width = _convolutions(size) if self.kind == "cnn" else (nn.Sequential(), 0)
            layers: list[nn.Module] = []
            for inner in self.hidden:
                linear = nn.Linear(width + (state if not layers else 0), inner)
                nn.init.orthogonal_(linear.weight, gain=2**0.5)
                nn.init.zeros_(linear.bias)
                layers += [linear, nn.Tanh() if self.kind == "mlp" else nn.ReLU()]
                width = inner
            self.width = width or state
            self.head = Flow(self.width, dims) if own.head == "flow" else Normal(self.width, dims, own.spread)
            places = (
                nn.Embedding(chunk, self.width) if chunk > 1 else None
            )  # a single embedding would be a second bias that learns much faster
            if places is not None:
                nn.init.normal_(places.weight, std=0.02)
        self.head_kind = own.head
        self.eye, self.body, self.places = eye, nn.Sequential(*layers), places
        parts = {"eye": eye, "body": self.body, **({} if places is None else {"places": places}), "head": self.head}
        self.model = nn.ModuleDict(parts).to(self.device)
        if place:
            self.load(place)

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for an invalid `model`, and for sizes with which it can't be made, without making it."""
        folder = Path(config.model) if Path(config.model).is_dir() else None
        kind = _kind(config.model, folder)
        known = {**(read_settings(folder) if folder else {}), **config.options}
        _check_sizes(kind, known.get("size", SmallOptions.size), known.get("state", SmallOptions.state))

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        it = cls(config, **config.options)  # it is small, so it is made, and its weights are dropped
        it.model.to(META)
        it.device, pictures = META, int(it.kind == "cnn")
        steps = it.head.steps if isinstance(it.head, Flow) else 1

        def features(rows: int) -> torch.Tensor:
            shown = {"": torch.empty(rows, it.size, it.size, 3, dtype=torch.uint8, device=META)} if pictures else {}
            state = torch.empty(rows, it.state, device=META) if it.state else None
            return it.features(Observation(images=shown, state=state, instructions=[""] * rows))[0]

        def chosen(features_nKF: torch.Tensor, many: int) -> torch.Tensor:
            if not isinstance(it.head, Flow):
                return it.head.mean(features_nKF.float())  # type: ignore[union-attr, no-any-return]
            rows = len(features_nKF)
            x = torch.empty(rows, many, it.chunk, it.dims, device=META)
            return it.head.seeing(features_nKF)(x, torch.empty(rows, many, device=META))  # type: ignore[return-value]

        def act(rows: int, text: int) -> None:
            found = features(rows)
            for _ in range(steps):
                chosen(found, 1)

        return Planned(
            model=it.model,
            width=it.width,
            chunk=it.chunk,
            dims=it.dims,
            steps=steps,
            pictures=pictures,
            pixels=it.size**2,
            prefix=lambda text: 0,
            tokens=lambda text, demonstrated: 1,
            act=act,
            learn=lambda rows, text, demonstrated: chosen(features(rows), PLACES if demonstrated else steps),
        )

    def settings(self) -> Mapping[str, Any]:
        found = {
            "kind": "robotics/small",
            "model": self.kind,
            "dims": self.dims,
            "chunk": self.chunk,
            "state": self.state,
            "hidden": self.hidden,
        }
        return found | {"head": self.head_kind} | ({"size": self.size, "camera": self.camera} if self.kind == "cnn" else {})

    def features(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        known: list[torch.Tensor] = []
        if self.kind == "cnn":
            known.append(self.eye(self._picture(seen)))
        if self.state:
            known.append(state_of(seen, self.state).to(self.device))
        states = self.body(torch.cat(known, 1))
        return states[:, None] if self.places is None else states[:, None] + self.places.weight, states

    def _picture(self, seen: Observation) -> torch.Tensor:
        picture = picture_of(seen, self.camera).to(self.device)
        if picture.shape[1:3] != (self.size, self.size):
            height, width = picture.shape[1:3]
            raise UserError(f"policy.options.size = {self.size}, and the camera shows {width} x {height} pixels: make them equal")
        return picture.permute(0, 3, 1, 2).float() / 255 - 0.5


def _kind(model: str, folder: Path | None) -> str:
    if folder is not None:
        if not (found := read_settings(folder)):
            raise UserError(f"{str(folder)!r} has no {SETTINGS}: it is not a policy that acts", key="policy.model")
        return str(found.get("model"))
    if model not in ("cnn", "mlp"):
        raise UserError(f"{model!r} is not a small policy: use cnn, mlp, or a folder with one", key="policy.model")
    return model


def _check_sizes(kind: str, size: int, state: int) -> None:
    if kind == "mlp" and not state:
        raise UserError("policy.options.state = 0: a perceptron reads only the state: set it to the state's size")
    if kind == "cnn" and size < SMALLEST:
        raise UserError(f"policy.options.size = {size} is too small for three convolutions: give at least {SMALLEST} pixels")


def _convolutions(size: int) -> tuple[nn.Sequential, int]:
    """(the network, its width) for pictures of size x size."""
    layers = nn.Sequential(
        *(nn.Conv2d(3, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten())
    )
    side = ((size - 8) // 4 + 1 - 4) // 2 + 1 - 2
    return layers, 64 * side * side
