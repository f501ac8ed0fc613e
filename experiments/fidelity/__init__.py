"""Fidelity: how well the performance model predicts plans that it has never seen, on shaped testbeds."""
