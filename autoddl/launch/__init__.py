"""Start the ranks of a job on one node, watch them and end them together; stdlib only."""
