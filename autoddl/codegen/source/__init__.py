"""Python as text: expressions, identifiers, lines, tables. Nothing here knows plans or engines."""
