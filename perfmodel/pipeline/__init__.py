"""Pipelines of stages: partition, schedules, a step's simulation."""
