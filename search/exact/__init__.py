"""Exact search: dual ascent, reduced-cost fixing, and an integer program for what is left."""
