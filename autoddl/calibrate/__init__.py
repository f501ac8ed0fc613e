"""Measure a cluster and write its profile; the ranks run an engine's probes."""
