"""A bare environment of robosuite with a controller of its own, as robomimic makes and steps it (robomimic,
envs/env_robosuite.py); run by the interpreter that has robosuite.

python bare.py SEED SIZE ACTIONS.npy SEEN.npz
"""

import sys

import numpy
import robosuite

NAMES = ("agentview_image", "robot0_eye_in_hand_image", "robot0_eef_pos", "object-state")

seed, size, actions, seen = sys.argv[1:]
env = robosuite.make(
    "Lift",
    robots="Panda",
    has_renderer=False,
    has_offscreen_renderer=True,
    ignore_done=True,
    use_camera_obs=True,
    camera_names=["agentview", "robot0_eye_in_hand"],
    camera_heights=int(size),
    camera_widths=int(size),
    reward_shaping=True,
    control_freq=20,
)
env.rng.bit_generator.state = numpy.random.default_rng(int(seed)).bit_generator.state
shown, rewards = [env.reset()], []
for action in numpy.load(actions):
    obs, reward, _, _ = env.step(action.astype("float64"))
    shown.append(obs)
    rewards.append(reward)
numpy.savez(seen, rewards=rewards, **{name: [obs[name] for obs in shown] for name in NAMES})
