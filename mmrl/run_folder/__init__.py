"""The folder that a run writes: its only writer, its only reader."""
