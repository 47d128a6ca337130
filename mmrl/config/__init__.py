"""The run file: its sections and keys, and loading it."""
