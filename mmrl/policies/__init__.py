"""Policies: any transformers image-text-to-text model, one small adapter per family, and tiny ones for CPUs."""
