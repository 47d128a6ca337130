"""Tasks for other programs: the implementation of `mmrl.api.serving`."""
