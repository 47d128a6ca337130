"""The arm's controller: joint angles that bring the gripper to a commanded pose, by damped least squares.

A kernel and not a batch of matrix products: each world is computed by itself, so that a result never depends on the others.
"""

# mypy: ignore-errors
# the annotations of kernels are the types of Warp's language

from typing import Any

import warp as wp

from mmrl_mjx.models import ARM

wp.set_module_options({"enable_backward": False})

DAMPING = wp.constant(1e-3)
"""Keeps the step finite where the arm is stretched; metres squared and radians squared."""
HOMING = wp.constant(0.05)
"""Share of the way to the home posture that the arm takes in each step, as far as the gripper doesn't move by it."""
JOINTS = wp.constant(ARM)

_Jacobian = wp.types.matrix(shape=(6, ARM), dtype=wp.float32)
_Square = wp.types.matrix(shape=(6, 6), dtype=wp.float32)
_Six = wp.types.vector(length=6, dtype=wp.float32)
_Seven = wp.types.vector(length=ARM, dtype=wp.float32)


@wp.func
def _straight_down(roll: float, pitch: float, yaw: float) -> wp.mat33:
    """The gripper's frame: straight down, then turned about the world's x, y and z."""
    down = wp.mat33(1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, -1.0)
    x = wp.mat33(1.0, 0.0, 0.0, 0.0, wp.cos(roll), -wp.sin(roll), 0.0, wp.sin(roll), wp.cos(roll))
    y = wp.mat33(wp.cos(pitch), 0.0, wp.sin(pitch), 0.0, 1.0, 0.0, -wp.sin(pitch), 0.0, wp.cos(pitch))
    z = wp.mat33(wp.cos(yaw), -wp.sin(yaw), 0.0, wp.sin(yaw), wp.cos(yaw), 0.0, 0.0, 0.0, 1.0)
    return z * y * x * down


@wp.func
def _solved(a: _Square, b: _Six) -> _Six:
    """x of a x = b, for a symmetric and positive definite a, by Cholesky's factors."""
    low = _Square()
    x = _Six()
    for i in range(6):
        for j in range(i + 1):
            s = a[i, j]
            for k in range(j):
                s -= low[i, k] * low[j, k]
            if i == j:
                low[i, j] = wp.sqrt(s)
            else:
                low[i, j] = s / low[j, j]
        t = b[i]
        for k in range(i):
            t -= low[i, k] * x[k]
        x[i] = t / low[i, i]
    for n in range(6):
        i = 5 - n
        t = x[i]
        for k in range(i + 1, 6):
            t -= low[k, i] * x[k]
        x[i] = t / low[i, i]
    return x


@wp.kernel
def _follow(
    before: wp.array2d(dtype=float),
    after: wp.array2d(dtype=float),
    share: float,
    home: wp.array(dtype=float),
    site: int,
    limits: wp.array2d(dtype=wp.vec2),
    qpos: wp.array2d(dtype=float),
    anchors: wp.array2d(dtype=wp.vec3),
    axes: wp.array2d(dtype=wp.vec3),
    places: wp.array2d(dtype=wp.vec3),
    frames: wp.array2d(dtype=wp.mat33),
    ctrl: wp.array2d(dtype=float),
):
    world = wp.tid()
    command = _Six()
    for i in range(6):
        command[i] = before[world, i] + share * (after[world, i] - before[world, i])
    place = places[world, site]
    frame = frames[world, site]
    wanted = _straight_down(command[3], command[4], command[5])
    move = wp.vec3(command[0], command[1], command[2]) - place
    turn = wp.vec3()
    for i in range(3):
        now = wp.vec3(frame[0, i], frame[1, i], frame[2, i])
        turn += 0.5 * wp.cross(now, wp.vec3(wanted[0, i], wanted[1, i], wanted[2, i]))
    jacobian = _Jacobian()
    homing = _Seven()
    error = _Six(move[0], move[1], move[2], turn[0], turn[1], turn[2])
    for j in range(JOINTS):
        axis = axes[world, j]
        arm = wp.cross(axis, place - anchors[world, j])
        homing[j] = HOMING * (home[j] - qpos[world, j])
        for i in range(3):
            jacobian[i, j] = arm[i]
            jacobian[i + 3, j] = axis[i]
    error = error - jacobian * homing
    square = jacobian * wp.transpose(jacobian)
    for i in range(6):
        square[i, i] = square[i, i] + DAMPING
    step = wp.transpose(jacobian) * _solved(square, error) + homing
    for j in range(JOINTS):
        limit = limits[0, j]
        ctrl[world, j] = wp.clamp(qpos[world, j] + step[j], limit[0], limit[1])


def follow(model: Any, data: Any, before: Any, after: Any, share: float, home: Any, site: int) -> None:
    """Write the arm's controls for a command between two. model, data: of mujoco-warp, with kinematics of the current state.
    before, after: float32 [N, 6], x, y, z in metres, roll, pitch, yaw in radians. share: of the way from one to the other. home:
    float32 [7], radians. site: the gripper's."""
    places = [data.xanchor, data.xaxis, data.site_xpos, data.site_xmat]
    inputs = [before, after, share, home, site, model.jnt_range, data.qpos, *places]
    wp.launch(_follow, dim=data.nworld, inputs=inputs, outputs=[data.ctrl], device=data.qpos.device)
