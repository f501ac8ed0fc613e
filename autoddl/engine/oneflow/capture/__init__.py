"""Read a user's nn.Graph into a Program."""
