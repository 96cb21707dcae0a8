"""Shapes and types of results: rules, prediction, and classes of shapes.

- `demands`, `shape_rules` and `type_rules` check that an operator's inputs fit each other.
- `results` and `result_shapes` infer the shapes of its outputs, `shape_arithmetic` small integer
  tensors that hold shapes.
- `symbolic_size` traces what is computed from sizes and which decisions depend on them;
  `expressions` and `linear_form` hold the trace. `shape_class` rewrites a graph once for all sizes
  for which these decisions (guards) come out alike.
- `fold_allowance` and `fold_work` limit constant folding.
"""
