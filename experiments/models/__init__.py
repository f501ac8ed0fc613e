"""The model zoo: each file has `build(**sizes) -> (graph, inputs)` for an unmodified nn.Graph."""
