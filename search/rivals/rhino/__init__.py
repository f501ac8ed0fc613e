"""Rhino's search: cones of an integer linear program, segments between critical nodes, the k largest."""
