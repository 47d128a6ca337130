"""Further questions that an evaluation can ask of a policy: blanked or shuffled media, sparse frames, steering."""
