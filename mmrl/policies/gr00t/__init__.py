"""GR00T N1.7: its network. A policy that acts with it is not written yet."""
