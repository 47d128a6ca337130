"""GR00T N1.7 and N1.6: a backbone with a diffusion transformer that turns noise into a chunk of actions."""
