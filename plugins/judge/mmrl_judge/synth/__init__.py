"""Harder questions with the same answer, written by a model: SynthRL."""
