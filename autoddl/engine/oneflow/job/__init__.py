"""Write a plan into the job that OneFlow compiles: states, redistributions, stages, halves, casts."""
