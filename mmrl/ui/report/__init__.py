"""How people look at runs and at data."""
