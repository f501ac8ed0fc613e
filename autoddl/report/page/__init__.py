"""A plan as one HTML file: values, what is drawn of them, templates."""
