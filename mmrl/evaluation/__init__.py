"""Scores on held-out prompts, with intervals and paired comparisons."""
