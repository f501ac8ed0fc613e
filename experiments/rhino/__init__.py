"""Rhino (seed 004): what it claims, measured here."""
