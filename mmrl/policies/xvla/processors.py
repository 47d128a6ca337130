"""The processors of an X-VLA: those of every policy of LeRobot's, and its own steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_processors import BEFORE, Files, lists_of, norm_map, read_steps, write_steps
from mmrl.policies.acting.lerobot_processors import Processors as OfLeRobot
from mmrl.policies.acting.units import Statistics
from mmrl.policies.xvla.config import FIXED

TOKENIZE, TO_FLOAT, SCALE = "tokenizer_processor", "xvla_image_to_float", "xvla_image_scale"
IMAGENET, DOMAIN, TURN = "xvla_imagenet_normalize", "xvla_add_domain_id", "xvla_rotation_6d_to_axis_angle"
HAND = 10
"""Numbers of an action from which `TURN` makes 7."""


@dataclass(frozen=True, kw_only=True)
class Processors(OfLeRobot):
    """What the steps say. The defaults are those of `make_xvla_pre_post_processors`, without statistics."""

    longest: int = 64
    """Tokens to which an instruction is filled up or cut."""
    tokenizer: str = ""
    imagenet: bool = True
    """Whether pictures are normalised by ImageNet's means and deviations."""
    domain: int = 0
    turned: bool = False
    """Whether LeRobot makes a turn of three numbers of the six of an action."""


def read_processors(files: Files) -> Processors | None:
    """The processors of a checkpoint, None if it has none. Raises UserError for steps that can't be done here."""
    name, read = files.name, read_steps(files, (TOKENIZE, TO_FLOAT, SCALE, IMAGENET, DOMAIN), (TURN,))
    if read is None:
        return None
    shared, steps = read
    said, domain = steps.get(TOKENIZE, {}), steps.get(DOMAIN, {}).get("domain_id", 0)

    def refuse(what: str) -> UserError:
        return UserError(f"{name!r}: {BEFORE} {what}", key="policy.model")

    if (visual := shared.before.norms.get("VISUAL", "IDENTITY")) != "IDENTITY":
        raise refuse(f"normalises pictures by {visual}, which can't be done here")
    longest = said.get("max_length", 512)
    if type(longest) is not int or longest < 1 or type(domain) is not int or domain < 0:
        raise refuse("can't be read: its max_length or its domain_id is none")
    for key, at in (("pad_language_to", "padding"), ("tokenizer_padding_side", "padding_side")):
        if said.get(at, FIXED[key]) != FIXED[key]:
            raise refuse(f"has {at} = {said[at]!r:.40} of texts, and only {FIXED[key]!r} can be read")
    if SCALE in steps and TO_FLOAT not in steps:
        raise refuse(f"has the step {SCALE!r} without {TO_FLOAT!r}, so that pictures would be 255 times too bright")
    return Processors(
        renamed=shared.renamed,
        before=shared.before,
        behind=shared.behind,
        longest=longest,
        tokenizer=said.get("tokenizer_name") or "",
        imagenet=IMAGENET in steps,
        domain=domain,
        turned=TURN in steps,
    )


def write_processors(
    folder: Path, found: Processors, statistics: Statistics | None, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> None:
    """Write both files and the statistics; see `write_steps`."""
    tokenize = {"max_length": found.longest, "task_key": "task", "padding_side": "right", "padding": "max_length"}
    read: list[tuple[str, dict[str, Any]]] = [
        (TOKENIZE, {**tokenize, "truncation": True, "tokenizer_name": found.tokenizer}),
        (TO_FLOAT, {"image_keys": None, "validate_range": True}),
        *([(IMAGENET, {"image_keys": None})] if found.imagenet else []),
        (DOMAIN, {"domain_id": found.domain}),
    ]
    acted: list[tuple[str, dict[str, Any]]] = [(TURN, {"expected_action_dim": HAND})] if found.turned else []
    lists = lists_of(statistics)
    write_steps(folder, found.renamed, norm_map(statistics), lists, inputs, outputs, read=read, acted=acted)
