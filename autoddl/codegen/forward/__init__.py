"""The forward pass as functions: which modules get one, what they are passed, how values are called.

A section is a part of the pass with all its values (section); scopes say which modules become functions
(module_scopes); each is written on its own, callees first (frame, local_names, function_writer); equal
ones are shared (function, function_text).
"""
