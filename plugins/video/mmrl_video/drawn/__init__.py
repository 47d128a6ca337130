"""Clips that code draws from a seed, so that what happens in them, when and where is known exactly."""
