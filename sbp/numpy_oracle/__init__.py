"""The NumPy oracle: tensors and ops on simulated ranks, for proofs and tests of everything else."""
