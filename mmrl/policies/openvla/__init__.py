"""OpenVLA."""
