"""Proofs by exhaustion or sampling: of the rules, and of what engines accept."""
