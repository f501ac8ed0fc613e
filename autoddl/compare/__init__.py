"""Plans beside plans: what differs, what costs what elsewhere, what if, how many devices; values."""
