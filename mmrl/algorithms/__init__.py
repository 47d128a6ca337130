"""Advantages and losses: pure functions of tensors, each with its source."""
