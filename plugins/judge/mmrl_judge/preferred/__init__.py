"""A reward that is learned during the run from a model's preferences between pictures (RL-VLM-F)."""
