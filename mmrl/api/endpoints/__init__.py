"""Models behind an OpenAI-compatible endpoint (`/v1/chat/completions`): a client with retries, a budget and a cache."""
