"""Commands that measure links and devices, and show what was measured."""
