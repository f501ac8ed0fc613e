"""The step itself as objective: critical paths as weights, and a bound by busy resources."""
