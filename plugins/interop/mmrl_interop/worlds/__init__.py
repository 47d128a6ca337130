"""Environments of other programs as tasks and environments of mmrl: each runs in processes of its own, by an interpreter of the
user's choice, which may be one without mmrl."""
