"""Ask OneFlow for the SBP signatures of ops that no rule knows."""
