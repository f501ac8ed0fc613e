"""What experiments share: command lines, rows that grow, figures, programs, ranks."""
