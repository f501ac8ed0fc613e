"""Local search: moves of one variable and of blocks of them."""
