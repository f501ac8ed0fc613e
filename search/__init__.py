"""Search the assignment of signatures with the lowest cost."""
