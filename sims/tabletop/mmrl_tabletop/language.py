"""Templates of instructions, for training and (held out) for the variant `semantic.instruction`."""

from __future__ import annotations

import torch

from mmrl_tabletop.scene import Scene
from mmrl_tabletop.things import NAMES, RECEPTACLES, SHAPES

TEMPLATES = {
    "reach": (
        (
            "reach the {a}",
            "move to the {a}",
            "go to the {a}",
            "touch the {a}",
            "bring the gripper to the {a}",
            "approach the {a}",
        ),
        ("where is the {a}? go there", "hover at the {a}", "let the hand meet the {a}", "find the {a} and stay with it"),
    ),
    "push": (
        (
            "push the {a} to the {g}",
            "push the {a} onto the {g}",
            "slide the {a} to the {g}",
            "move the {a} onto the {g}",
            "shove the {a} to the {g}",
            "push the {a} until it is on the {g}",
        ),
        (
            "the {g} is where the {a} should go: push it",
            "nudge the {a} along to the {g}",
            "without lifting it, get the {a} to the {g}",
            "drive the {a} over to the {g}",
        ),
    ),
    "pick": (
        ("pick up the {a}", "lift the {a}", "grasp the {a} and lift it", "take the {a}", "grab the {a}", "pick the {a} up"),
        (
            "raise the {a} off the table",
            "could you hold up the {a}",
            "i want the {a} in the air",
            "get a grip on the {a}, then up",
        ),
    ),
    "put-on": (
        (
            "put the {a} on the {g}",
            "place the {a} on the {g}",
            "set the {a} down on the {g}",
            "move the {a} to the {g}",
            "lay the {a} on the {g}",
            "pick up the {a} and put it on the {g}",
        ),
        ("the {g} should hold the {a}", "serve the {a} on the {g}", "onto the {g} goes the {a}", "let the {a} rest on the {g}"),
    ),
    "stack": (
        (
            "stack the {a} on the {b}",
            "put the {a} on top of the {b}",
            "place the {a} on the {b}",
            "set the {a} on the {b}",
            "stack the {a} onto the {b}",
            "pick up the {a} and stack it on the {b}",
        ),
        (
            "build a tower: {b} below, {a} above",
            "the {a} belongs on top of the {b}",
            "let the {b} carry the {a}",
            "crown the {b} with the {a}",
        ),
    ),
}
"""Task -> (for training, held out). {a} is the target, {b} the object to stack it on, {g} the receptacle."""
TRAINED, HELD_OUT = 6, 4


def instructions(scene: Scene, task: str) -> list[str]:
    """The instruction of each environment."""
    template = [*TEMPLATES[task][0], *TEMPLATES[task][1]]
    second = 1 if task == "stack" else 0
    columns = (
        scene.template,
        *(scene.colour[:, 0], scene.shape[:, 0]),
        *(scene.colour[:, second], scene.shape[:, second]),
        *(scene.plate_colour[:, 0], scene.plate_kind[:, 0]),
    )
    texts = []
    for words, colour, shape, base_colour, base, tint, kind in zip(*torch.stack(columns).tolist(), strict=True):
        a, b = f"{NAMES[colour]} {SHAPES[shape].name}", f"{NAMES[base_colour]} {SHAPES[base].name}"
        texts.append(template[words].format(a=a, b=b, g=f"{NAMES[tint]} {RECEPTACLES[kind]}"))
    return texts
