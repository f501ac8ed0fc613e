"""Plans on the clock: ours beside the experts' and OneFlow's own, trained by turns on one testbed."""
