"""Scenes in MJCF, without files: an arm like Franka's Panda with a parallel gripper at a table, and balls, cubes or doors.

The arm has the Panda's joints, limits and lengths (Franka's published Denavit-Hartenberg parameters), capsules in place of
meshes, and gravity compensated, as the robot's own controller does. Only its hand and fingers touch things. Metres, kilograms.
"""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = {"red": "0.86 0.13 0.12", "green": "0.12 0.66 0.2", "blue": "0.13 0.28 0.88", "yellow": "0.96 0.8 0.1"}
"""Name -> red, green and blue of 0 to 1, as MJCF writes them."""
ARM = 7
"""Joints of the arm; two of the fingers follow."""
HOME = (0.0, 0.2, 0.0, -2.2, 0.0, 2.4, 0.7853982)
"""Radians: the arm over the middle of the table, the gripper straight down."""
OPEN = 0.04
"""Metres that each finger slides from the middle."""
HANDLE = (-0.06, 0.19)
"""Metres from a door's hinge to its handle: out of the door, and along it."""
CUBE = 0.02
"""Half a side of a cube."""
TIMESTEP = 0.005
"""Seconds of a step of the physics."""
HINGES = (
    ("0 0 0.333", "1 0 0 0", 2.8973),
    ("0 0 0", "1 -1 0 0", 1.7628),
    ("0 -0.316 0", "1 1 0 0", 2.8973),
    ("0.0825 0 0", "1 1 0 0", (-3.0718, -0.0698)),
    ("-0.0825 0.384 0", "1 -1 0 0", 2.8973),
    ("0 0 0", "1 1 0 0", (-0.0175, 3.7525)),
    ("0.088 0 0", "1 1 0 0", 2.8973),
)
"""Each link's place and turn in the one before, and its limits in radians."""
LINKS = (
    ((0, 0, -0.12, 0, 0, 0), 0.06, 3.0),
    ((0, 0, 0, 0, -0.2, 0), 0.06, 3.0),
    ((0, 0, -0.1, 0.08, 0, 0), 0.055, 2.5),
    ((0, 0, 0, -0.08, 0.1, 0), 0.055, 2.5),
    ((0, 0, -0.26, 0, 0.06, -0.05), 0.05, 2.5),
    ((0, 0, 0, 0.088, 0, 0), 0.05, 1.5),
    ((0, 0, 0.0, 0, 0, 0.08), 0.045, 0.6),
)
"""The capsule of each link: both ends, radius, mass."""
GAIN = ((2000, 120), (2000, 120), (1500, 90), (1500, 90), (800, 40), (800, 40), (500, 25))
"""Stiffness (N m / rad) and damping (N m s / rad) of each joint's position servo."""
FORCE = (87, 87, 87, 87, 12, 12, 12)
"""N m, the Panda's."""

FRONT = 'pos="1.35 0 0.75" xyaxes="0 1 0 -0.55 0 0.835"'
ASIDE = 'pos="0 -1 0.85" xyaxes="0.894 -0.447 0 0.214 0.428 0.876"'
"""The camera `front`: opposite the arm, or beside it where a cabinet would be in the way."""


def balls(colours: Sequence[str]) -> str:
    """Balls in the air, for `reach`. Their places are mocap positions and nothing touches, so that the physics is the arm's."""
    return _scene(
        "".join(
            f'<body name="{name}" mocap="true" pos="{0.4 + 0.1 * i} 0 0.1"><geom type="sphere" size="0.025" '
            f'rgba="{COLOURS[name]} 1"/></body>'
            for i, name in enumerate(colours)
        ),
        '<flag contact="disable"/>',
    )


def cubes(colours: Sequence[str]) -> str:
    """Cubes of 4 cm on the table: for `pick` and `stack`."""
    return _scene(
        "".join(
            f'<body name="{name}" pos="{0.4 + 0.1 * i} 0 {CUBE}"><freejoint/><geom type="box" size="{CUBE} {CUBE} {CUBE}" '
            f'mass="0.05" friction="1 0.01 0.001" rgba="{COLOURS[name]} 1"/></body>'
            for i, name in enumerate(colours)
        )
    )


def doors(colours: Sequence[str]) -> str:
    """A cabinet with doors side by side, for `door`: each opens towards the arm by the handle at its top."""
    width = 0.24
    left = width * (len(colours) - 1) / 2
    deep, along = HANDLE
    return _scene(
        "".join(
            f'<body name="{name}" pos="0.68 {left - width * i - 0.11} 0"><joint name="{name}" axis="0 0 1" range="0 1.4" '
            f'damping="0.3" frictionloss="0.05" armature="0.01"/><site name="{name} hinge"/>'
            f'<geom type="box" pos="0 0.11 0.145" size="0.01 0.108 0.145" mass="0.8" rgba="0.8 0.72 0.6 1"/>'
            f'<geom type="box" pos="{deep} {along} 0.275" size="0.008 0.008 0.035" mass="0.1" rgba="{COLOURS[name]} 1"/>'
            f'<site name="{name} handle" pos="{deep} {along} 0.275"/>'
            f'<geom type="box" pos="{deep / 2} {along} 0.25" size="{-deep / 2} 0.006 0.006" contype="0" conaffinity="0" '
            f'mass="0.01" rgba="{COLOURS[name]} 1"/></body>'
            for i, name in enumerate(colours)
        )
        + f'<geom type="box" pos="0.8 0 0.14" size="0.1 {width * len(colours) / 2} 0.14" contype="0" conaffinity="0" '
        'rgba="0.6 0.52 0.42 1"/>',
        front=ASIDE,
    )


def _scene(things: str, flags: str = "", front: str = FRONT) -> str:
    servos = "".join(
        f'<general joint="joint{i + 1}" ctrllimited="false" gainprm="{kp}" biastype="affine" biasprm="0 -{kp} -{kv}" '
        f'forcerange="-{FORCE[i]} {FORCE[i]}"/>'
        for i, (kp, kv) in enumerate(GAIN)
    )
    fingers = "".join(
        f'<general joint="{side}" ctrllimited="false" gainprm="800" biastype="affine" biasprm="0 -800 -40" forcerange="-30 30"/>'
        for side in ("left", "right")
    )
    return f"""<mujoco>
<compiler angle="radian" autolimits="true"/>
<option timestep="{TIMESTEP}" integrator="implicitfast" iterations="30" ls_iterations="30" impratio="10"
 cone="elliptic">{flags}</option>
<visual><headlight ambient="0.35 0.35 0.35" diffuse="0.5 0.5 0.5" specular="0 0 0"/><quality shadowsize="1024" offsamples="0"/>
<global offwidth="1024" offheight="1024"/></visual>
<worldbody>
<light pos="0.3 -0.6 2" dir="0 0.3 -1" directional="true" diffuse="0.5 0.5 0.5" specular="0 0 0"/>
<camera name="front" {front} fovy="36"/>
<camera name="top" pos="0.5 0 1.2" xyaxes="0 -1 0 1 0 0" fovy="50"/>
<geom name="table" type="plane" size="1.5 1.5 0.1" rgba="0.55 0.5 0.45 1"/>
<geom type="cylinder" pos="0 0 0.1" size="0.09 0.1" rgba="0.85 0.85 0.85 1" contype="0" conaffinity="0"/>
{_link(0)}
{things}
</worldbody>
<actuator>{servos}{fingers}</actuator>
</mujoco>"""


def _link(number: int) -> str:
    """This link and all that hang on it."""
    if number == len(HINGES):
        return _hand()
    place, turn, limit = HINGES[number]
    low, high = limit if isinstance(limit, tuple) else (-limit, limit)
    ends, radius, mass = LINKS[number]
    shade = 0.9 if number % 2 else 0.75
    return (
        f'<body name="link{number + 1}" pos="{place}" quat="{turn}" gravcomp="1">'
        f'<joint name="joint{number + 1}" axis="0 0 1" range="{low} {high}" armature="0.1" damping="1"/>'
        f'<geom type="capsule" fromto="{" ".join(map(str, ends))}" size="{radius}" mass="{mass}" '
        f'rgba="{shade} {shade} {shade} 1" contype="0" conaffinity="0"/>{_link(number + 1)}</body>'
    )


def _hand() -> str:
    finger = (
        '<joint name="{side}" type="slide" axis="0 1 0" range="0 0.04" armature="0.1" damping="4"/>'
        '<geom type="box" pos="0 0.008 0.025" size="0.009 0.008 0.025" mass="0.015" friction="1.5 0.02 0.001" '
        'rgba="0.25 0.27 0.3 1"/>'
    )
    left, right = (finger.format(side=side) for side in ("left", "right"))
    return (
        '<body name="hand" pos="0 0 0.107" quat="0.9238795 0 0 -0.3826834" gravcomp="1">'
        '<geom type="box" pos="0 0 0.03" size="0.03 0.1 0.028" mass="0.7" rgba="0.9 0.9 0.9 1"/>'
        '<site name="grip" pos="0 0 0.1"/><camera name="wrist" pos="0.07 0 0.02" xyaxes="0 1 0 0.97 0 0.24" fovy="75"/>'
        f'<body name="left" pos="0 0 0.0584" gravcomp="1">{left}</body>'
        f'<body name="right" pos="0 0 0.0584" quat="0 0 0 1" gravcomp="1">{right}</body></body>'
    )
