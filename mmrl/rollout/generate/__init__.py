"""Tokens from a policy."""
