"""From one cost function network to another, and back from its assignments."""
