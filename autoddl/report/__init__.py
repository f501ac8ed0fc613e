"""What is shown of a plan: printed tables, the timeline of a step."""
