"""The action space of an X-VLA and the numbers of its options: what is asked for, or what the checkpoint says."""

from __future__ import annotations

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_processors import ACTION, STATE
from mmrl.policies.acting.options import check_sizes
from mmrl.policies.xvla.loading import CURE, Checkpoint
from mmrl.policies.xvla.options import XVLAOptions
from mmrl.policies.xvla.poses import Robot
from mmrl.policies.xvla.spaces import Space, space_of, usual_dims


def sizes_of(found: Checkpoint, asked: XVLAOptions) -> tuple[Space, dict[str, int]]:
    """(the action space, the options with what the checkpoint says where one is unset). Raises UserError for what doesn't fit."""
    said, processors = found.config, found.processors
    mode = asked.action_mode or said.action_mode
    dims = 7 if processors and processors.turned else said.numbers(ACTION) or usual_dims(mode)
    own = asked.completed(
        dims=dims,
        chunk=said.n_action_steps,
        state=said.numbers(STATE),
        steps=said.num_denoising_steps,
        domain=processors.domain if processors else 0,
    )
    space = space_of(mode, own["dims"], said.max_action_dim)
    robot = Robot(space=space, dims=own["dims"])
    most = {"chunk": (own["chunk"], said.chunk_size)}
    if not robot.hands:
        most["state"] = (own["state"], said.max_state_dim)
    check_sizes("X-VLA", most)
    if robot.hands and own["state"] and (own["state"] % robot.hands or own["state"] // robot.hands < 6):
        raise UserError(
            f"policy.options.state = {own['state']} doesn't fit {robot.hands} hands with their turns as axis times angle, each "
            "of which has 3 numbers of its place, 3 of its turn and maybe more: leave state out, or set dims to 10 for each hand"
        )
    if own["domain"] >= said.num_domains:
        raise UserError(
            f"policy.options.domain = {own['domain']} is none of this X-VLA's domains: it has {said.num_domains}, from 0 on"
        )
    if mode == "so101_bimanual" and said.proprio not in (0, 20):
        raise UserError(
            f"config.json: max_state_dim = {said.max_state_dim}, and the action space so101_bimanual has states of 20: {CURE}"
        )
    return space, own
