"""Types and helpers to write simulators with."""
