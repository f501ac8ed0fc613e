"""Links and kernels of a profile from timed collectives and ops."""
