"""From an assignment to the layout that it stands for."""
