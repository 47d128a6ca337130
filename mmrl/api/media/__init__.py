"""Images and videos, for tasks and verifiers."""
