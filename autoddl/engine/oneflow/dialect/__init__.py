"""OneFlow's dialect of generated scripts: global tensors, run eagerly, on CPU or CUDA.

Ops are written by templates (op_templates: a table; op_writers, layer_writers), states by terms; the
rest of a script are tables (script_tables), what trains (optimizer_text), what is around all
(script_frame) and functions that are the same for every plan (runtime).
"""
