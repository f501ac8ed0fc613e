"""Programs as OneFlow runs them: with the ops that it adds between gradients and updates."""
