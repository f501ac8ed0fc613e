"""What scripts carry of functions that are the same for every plan, as modules that can be imported.

Scripts get the source of single functions; above them they define the names in capitals as their plan has
them. Here these stand for one device, so that the functions can be tried alone.
"""
