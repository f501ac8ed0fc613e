"""Rhino's studies (seed 004), as far as planning alone can repeat them."""
