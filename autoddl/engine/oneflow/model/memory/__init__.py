"""Memory of OneFlow 0.9: lowering to tasks, their order, liveness and allocation of buffers."""
