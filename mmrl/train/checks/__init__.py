"""Checks of a run before its first step."""
