"""Searches of papers and simple ones, by name: what our own is compared with."""
