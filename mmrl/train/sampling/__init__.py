"""Sample prompts, score completions, and apply the rules of sampling."""
