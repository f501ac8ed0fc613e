"""Programs whose BatchNorm and dropout are several ops, of which the large ones may be cut, and back."""
