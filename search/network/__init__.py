"""The cost function network of a planning problem, and how it is built and evaluated."""
