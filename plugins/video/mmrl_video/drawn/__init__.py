"""Clips that are generated from a seed, so that events, times and positions are known exactly."""
