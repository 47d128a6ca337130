"""What is wrong with a run before its first step."""
