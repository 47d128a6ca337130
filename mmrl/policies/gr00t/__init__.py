"""GR00T N1.7: a Qwen3-VL with a diffusion transformer that turns noise into a chunk of actions."""
