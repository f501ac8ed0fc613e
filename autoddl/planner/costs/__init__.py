"""What assignments cost, cut into stages or not: seconds, bytes, rows by module."""
