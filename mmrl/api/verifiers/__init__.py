"""Helpers for writing verifiers."""
