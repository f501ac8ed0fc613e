"""OneFlow 0.9; the only package that imports it."""
