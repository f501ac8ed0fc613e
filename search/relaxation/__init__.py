"""The LP relaxation of a cost function network: dual ascent, and multipliers of memory."""
