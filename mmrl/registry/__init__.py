"""Find, load, check and list plugins."""
