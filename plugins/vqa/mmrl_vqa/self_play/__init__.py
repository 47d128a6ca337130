"""The policy asks questions about pictures without labels, answers them, and learns from both (VisPlay)."""
