"""Policies that act in simulators."""
