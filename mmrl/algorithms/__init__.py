"""Advantages and losses: pure functions over tensors, each with its paper."""
