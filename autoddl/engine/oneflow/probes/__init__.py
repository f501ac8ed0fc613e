"""Programs that ranks run to measure links, ops and compiled memory."""
