"""Predictions beside what others measured on clusters of GPUs."""
