"""Helpers to write verifiers with."""
