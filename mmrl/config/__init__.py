"""The run file: its sections and keys, and how it is loaded."""
