"""A bare environment of LIBERO, as the published evaluations use it; run by the interpreter that has LIBERO.

python bare.py SUITE TASK STATE SIZE ACTIONS.npy SEEN.npz CONTROL
"""

import sys

import numpy
from libero.libero import benchmark
from libero.libero.envs import OffScreenRenderEnv

NAMES = ("agentview_image", "robot0_eye_in_hand_image", "robot0_eef_pos", "robot0_gripper_qpos")

suite, task, state, size, actions, seen, control = sys.argv[1:]
found = benchmark.get_benchmark(suite)()
env = OffScreenRenderEnv(
    bddl_file_name=found.get_task_bddl_file_path(int(task)), camera_heights=int(size), camera_widths=int(size)
)
env.seed(0)
env.reset()
obs = env.set_init_state(found.get_task_init_states(int(task))[int(state)])
for _ in range(10):
    obs, *_ = env.step([0, 0, 0, 0, 0, 0, -1])
controller = env.env.robots[0].controller
controller.use_delta = control == "delta"
shown, poses = [obs], [(controller.ee_pos.copy(), controller.ee_ori_mat.copy())]
for action in numpy.load(actions):
    shown.append(env.step(action.astype("float64"))[0])
    poses.append((controller.ee_pos.copy(), controller.ee_ori_mat.copy()))
places, turns = zip(*poses, strict=True)
words = found.get_task(int(task)).language
numpy.savez(seen, language=words, places=places, turns=turns, **{name: [obs[name] for obs in shown] for name in NAMES})
