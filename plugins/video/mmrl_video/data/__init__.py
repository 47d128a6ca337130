"""Clips that people bring: tables of what happens when, of questions, of boxes."""
