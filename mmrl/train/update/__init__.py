"""From credit to new weights: packing, the learner and its optimiser."""
