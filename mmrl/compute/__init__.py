"""Devices, ranks, processes and clusters."""
