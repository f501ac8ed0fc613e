"""Reproduce the figures and tables of the papers."""
