"""Episodes in simulators."""
