"""Prompts: their source, selection and mixture."""
