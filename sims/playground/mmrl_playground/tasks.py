"""Playground's tasks whose models are in its package: those of DeepMind's Control Suite (Tassa et al. 2018), of version 0.2."""

from __future__ import annotations

from dataclasses import dataclass

MAX_STEPS = 1000
"""`episode_length` of all of them, in steps of the policy."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the suite."""

    name: str
    """Playground's own."""
    dims: int
    """Numbers of an action."""
    control_hz: float
    """Actions in a simulated second: 1 / `ctrl_dt`."""
    instruction: str


TASKS = {
    "acrobot-swingup": Task("AcrobotSwingup", 1, 100.0, "swing both links up and balance them"),
    "acrobot-swingup-sparse": Task("AcrobotSwingupSparse", 1, 100.0, "swing both links up and balance them"),
    "ball-in-cup": Task("BallInCup", 2, 50.0, "catch the ball in the cup"),
    "cartpole-balance": Task("CartpoleBalance", 1, 100.0, "keep the pole upright"),
    "cartpole-balance-sparse": Task("CartpoleBalanceSparse", 1, 100.0, "keep the pole upright"),
    "cartpole-swingup": Task("CartpoleSwingup", 1, 100.0, "swing the pole up and keep it upright"),
    "cartpole-swingup-sparse": Task("CartpoleSwingupSparse", 1, 100.0, "swing the pole up and keep it upright"),
    "cheetah-run": Task("CheetahRun", 6, 100.0, "run forward"),
    "finger-spin": Task("FingerSpin", 2, 50.0, "spin the body on its hinge"),
    "finger-turn-easy": Task("FingerTurnEasy", 2, 50.0, "turn the tip of the body into the large target"),
    "finger-turn-hard": Task("FingerTurnHard", 2, 50.0, "turn the tip of the body into the small target"),
    "fish-swim": Task("FishSwim", 5, 25.0, "swim to the target"),
    "hopper-hop": Task("HopperHop", 4, 50.0, "hop forward"),
    "hopper-stand": Task("HopperStand", 4, 50.0, "stand upright"),
    "humanoid-stand": Task("HumanoidStand", 21, 40.0, "stand upright"),
    "humanoid-walk": Task("HumanoidWalk", 21, 40.0, "walk"),
    "humanoid-run": Task("HumanoidRun", 21, 40.0, "run"),
    "pendulum-swingup": Task("PendulumSwingup", 1, 50.0, "swing the pendulum up and keep it upright"),
    "point-mass": Task("PointMass", 2, 50.0, "bring the ball to the target"),
    "reacher-easy": Task("ReacherEasy", 2, 50.0, "reach the large target"),
    "reacher-hard": Task("ReacherHard", 2, 50.0, "reach the small target"),
    "swimmer-swimmer6": Task("SwimmerSwimmer6", 5, 1 / 0.03, "swim to the target"),
    "walker-run": Task("WalkerRun", 6, 40.0, "run forward"),
    "walker-stand": Task("WalkerStand", 6, 40.0, "stand upright"),
    "walker-walk": Task("WalkerWalk", 6, 40.0, "walk forward"),
}
"""Id after `playground/` -> the task: plain data, so that listing simulators imports no JAX."""
