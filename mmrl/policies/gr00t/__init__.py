"""GR00T N1.7: so far its action head."""
