"""How planning time and memory grow with layers, devices and mesh axes."""
