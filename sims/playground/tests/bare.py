"""Playground as it publishes itself, without mmrl; run by the interpreter that has it.

python bare.py TASK SEED... ACTIONS.npy SEEN.npz: environments of these seeds are one batch of `jax.vmap`. ACTIONS is float32
[steps, environments, A]. SEEN has obs [steps + 1, environments, S], reward and done [steps, environments], the task's
`facts`, and `names`, all tasks of the suite with their numbers of action dims, seconds of a step and steps of an episode.
"""

import sys

import jax
import numpy
from mujoco_playground import dm_control_suite

task, *seeds, actions, seen = sys.argv[1:]
env = dm_control_suite.load(task, config_overrides={"impl": "jax"})
reset, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))
state = reset(jax.numpy.stack([jax.random.PRNGKey(int(seed)) for seed in seeds]))
obs, reward, done = [state.obs], [], []
for each in numpy.load(actions):
    state = step(state, each)
    obs.append(state.obs)
    reward.append(state.reward)
    done.append(state.done)
facts = {}
for name in dm_control_suite.ALL_ENVS:
    other = dm_control_suite.load(name, config_overrides={"impl": "jax"})
    low, high = other.mj_model.actuator_ctrlrange.T
    facts[name] = [other.action_size, other.dt, other._config.episode_length, low.min(), high.max()]
numpy.savez(seen, obs=obs, reward=reward, done=done, names=list(facts), facts=list(facts.values()))
