"""Run a plan: write it into the job that OneFlow compiles."""
