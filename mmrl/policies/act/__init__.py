"""ACT, Action Chunking with Transformers, in the layout of LeRobot."""
