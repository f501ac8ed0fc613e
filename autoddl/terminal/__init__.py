"""What is written to a terminal while work goes on."""
