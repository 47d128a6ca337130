"""The state of N environments as tensors. A snapshot copies all of them, so it is complete.

N environments, K places for objects, P places for receptacles. Metres and radians; the table is the square of +-0.4 at z = 0, x
to the right of the front camera, y away from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmrl.api.simulators.scenes import SceneRows

TABLE = 0.4
"""Half the table's side."""
REACH = 0.44
"""Greatest distance of the gripper from the middle along x and y, metres."""
CEILING = 0.5
"""Greatest height of the gripper, metres."""
TIP = 0.018
"""Length of the fingers below the gripper's point, metres."""


@dataclass(slots=True, kw_only=True)
class Scene(SceneRows):
    """Every field has a row for each environment. Rows are never changed in place: new tensors replace old ones."""

    seed: torch.Tensor
    """int64 [N]."""
    steps: torch.Tensor
    """int64 [N]: steps of the environment's episode."""
    moves_at: torch.Tensor
    """int64 [N]: the step after which the target is moved; -1 for never."""
    gripper: torch.Tensor
    """float32 [N, 6]: x, y, z, roll, pitch, yaw of the point between the fingers' ends."""
    closed: torch.Tensor
    """bool [N]."""
    held: torch.Tensor
    """int64 [N]: the place of the object in the gripper, or -1."""
    grasp: torch.Tensor
    """float32 [N, 3]: the held object relative to the gripper: offset along the gripper's y, along z, and rotation."""
    held_steps: torch.Tensor
    """int64 [N]: steps in a row in which the target was held."""
    objects: torch.Tensor
    """float32 [N, K, 4]: x, y, z, yaw; the target comes first, then the object to stack it on."""
    shape: torch.Tensor
    """int64 [N, K], of `SHAPES`."""
    colour: torch.Tensor
    """int64 [N, K], of `COLOURS`."""
    present: torch.Tensor
    """bool [N, K]: false for empty places and for objects that fell off the table."""
    support: torch.Tensor
    """int64 [N, K]: the supporting object, or -1."""
    plates: torch.Tensor
    """float32 [N, P, 2]: x, y of receptacles; the goal comes first."""
    plate_kind: torch.Tensor
    """int64 [N, P], of `RECEPTACLES`."""
    plate_colour: torch.Tensor
    """int64 [N, P], of `COLOURS`."""
    plate_present: torch.Tensor
    """bool [N, P]."""
    template: torch.Tensor
    """int64 [N]: the template of the instruction."""
    texture: torch.Tensor
    """int64 [N]: the table's picture."""
    light: torch.Tensor
    """float32 [N]: brightness, 1 by default."""
    overlay: torch.Tensor
    """int64 [N]: a texture to blend in, or -1."""
    overlay_share: torch.Tensor
    """float32 [N]: weight of the texture."""
    overlay_whole: torch.Tensor
    """bool [N]: over the whole picture, not only over the arm and the objects."""
    potential: torch.Tensor
    """float32 [N]: potential of the state, for the simulator's shaped reward."""
    reference: torch.Tensor
    """float32 [N, M, 4]: x, y, z, yaw of the target in a demonstration, moment by moment; M is 0 unless it is tracked."""
    phase: torch.Tensor
    """int64 [N]: the moment of `reference` that the next step is compared with."""


def pick(values_NK: torch.Tensor, place_N: torch.Tensor) -> torch.Tensor:
    """[N]: of each row the value at its place; at place 0 where the place is -1."""
    return values_NK.gather(1, place_N.clamp(min=0)[:, None])[:, 0]
