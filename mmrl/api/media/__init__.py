"""Pictures and videos, for tasks and verifiers."""
