"""Predicted memory against what OneFlow would allocate."""
