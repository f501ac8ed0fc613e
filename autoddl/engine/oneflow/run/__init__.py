"""Run a plan: compile the rewritten job of a graph, call it, save and load what it holds."""
