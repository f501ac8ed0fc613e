"""Links: collectives over every kind of group, fitted to α + βn."""
