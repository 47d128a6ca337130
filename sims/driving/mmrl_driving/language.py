"""Templates of instructions, for training and (held out) for the variant `semantic.instruction`."""

from __future__ import annotations

from mmrl_driving.scene import Scene

TEMPLATES = {
    "crossing": (
        ("turn left at the crossing", "drive straight on at the crossing", "turn right at the crossing"),
        ("take a left at the crossing", "cross the crossing", "take a right at the crossing"),
        ("at the crossing, go left", "at the crossing, go straight ahead", "at the crossing, go right"),
        (
            "leave the crossing by the road on the left",
            "keep going past the crossing",
            "leave the crossing by the road on the right",
        ),
        ("left here, please", "no turn here, please", "right here, please"),
    ),
    "motorway": (
        ("drive in the left lane", "drive in the middle lane", "drive in the right lane"),
        ("take the left lane", "take the middle lane", "take the right lane"),
        ("go on in the left lane", "go on in the middle lane", "go on in the right lane"),
        ("the lane on the left is yours", "the lane in the middle is yours", "the lane on the right is yours"),
        ("i want to be far left", "i want to be in between", "i want to be far right"),
    ),
}
"""Task -> wordings, each for the three routes; the last two are held out."""
TRAINED, HELD_OUT = 3, 2


def instructions(scene: Scene, task: str) -> list[str]:
    """The instruction of each environment."""
    return [TEMPLATES[task][t][r] for t, r in zip(scene.template.tolist(), scene.route.tolist(), strict=True)]
