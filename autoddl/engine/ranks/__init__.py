"""The parts of the launcher; stdlib only."""
