"""Diffusion Policy, in the layout of LeRobot."""
