"""Code generation: the source of torch functions from derived formulas, and their descriptions."""
