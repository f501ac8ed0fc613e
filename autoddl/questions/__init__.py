"""What users ask before they have a plan."""
