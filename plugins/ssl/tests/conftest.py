"""The fixtures of these tests."""

from noisy_pictures import folder

__all__ = ["folder"]
