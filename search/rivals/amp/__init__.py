"""AMP: its price of a strategy, its space, and its dynamic program for cuts."""
