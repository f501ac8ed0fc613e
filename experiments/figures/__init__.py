"""The figures and tables of the AutoDDL paper, made again."""
