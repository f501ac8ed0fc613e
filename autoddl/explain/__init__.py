"""Explanations of plans: what they do, why, and what other choices would cost; values, without text."""
