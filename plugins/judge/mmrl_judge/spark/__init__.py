"""The policy as its own judge: prompts that are made of its rollouts, trained in the same step (SPARK)."""
