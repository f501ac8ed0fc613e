"""Plans as values: what they say, and the file that keeps them."""
