"""Meshes with shares: which the user may ask for, and which are tried where devices are unlike."""
