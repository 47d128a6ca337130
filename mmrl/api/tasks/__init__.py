"""Helpers for writing tasks."""
