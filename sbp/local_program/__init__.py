"""The distributed program as a value: what every rank computes and what ranks send each other.

`lower` makes it of a layout, `check` proves it against the program of one device. It knows no engine: one
that has local tensors and collectives only runs it (numpy_oracle/simulated_program.py does so in NumPy).
"""
