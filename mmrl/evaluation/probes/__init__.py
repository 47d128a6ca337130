"""Probes of an evaluation: blank images, shuffled frames, sparse frames, steering."""
