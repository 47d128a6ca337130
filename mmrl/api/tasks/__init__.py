"""Helpers to write tasks with."""
