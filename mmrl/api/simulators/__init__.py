"""Types and helpers for writing simulators."""
