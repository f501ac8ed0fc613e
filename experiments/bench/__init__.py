"""How long planning takes, and whether it still finds the same."""
