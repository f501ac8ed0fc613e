"""The whole way on one machine: calibrate, plan a GPT, train it, compare."""
