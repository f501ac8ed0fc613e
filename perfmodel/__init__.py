"""Price computation, communication and memory on a profile."""
