"""Training: a run is a list of stages, a stage is a list of steps."""
