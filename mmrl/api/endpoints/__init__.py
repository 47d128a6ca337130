"""Models behind an OpenAI-compatible endpoint (`/v1/chat/completions`): a client with retries, a budget and a cache."""

JUDGE_KEYS = ("OPENAI_API_KEY", "MMRL_JUDGE_KEY")
"""Environment variables from which a verifier may read the key of an endpoint: what its `VerifierSpec.environment` names."""
