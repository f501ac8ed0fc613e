"""Devices: ops timed inside training steps, fitted per kernel."""
