"""The run folder: its writer and its reader."""
