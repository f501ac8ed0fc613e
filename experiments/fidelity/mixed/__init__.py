"""Simulated against measured steps on unlike nodes."""
