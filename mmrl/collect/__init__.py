"""Prompts -> rollouts."""
