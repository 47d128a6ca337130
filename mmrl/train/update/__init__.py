"""The policy update: packing, the learner and its optimiser."""
