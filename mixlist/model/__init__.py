"""Represent a model and its operators: what ONNX says of an operator, and the scopes, nodes and tensors of a model.

- Operators: ``schema.py`` and ``signature.py`` (the types that a node may have), ``traits.py`` (what an operator does
  to values), ``dtypes.py`` and ``low_precision.py`` (element types), ``operator_names.py`` (names in lists and in
  the Ascend libraries, and the list of an operator), ``name_warnings.py`` (names without effect),
  ``shape_inference.py`` (ONNX's inference within bounds).
- The linked model: ``graph.py`` has the classes, and ``build.py`` fills them: it connects and sorts the nodes, and
  finds their types. ``control_flow.py`` joins the types around bodies. ``value_origins.py`` finds constants and values
  from shapes.
- Names and walks: ``naming.py`` (references by name, display names, new names), ``protos.py`` (walks, copies and edits
  of messages), ``dataflow.py`` (the tensors that a node reads across bodies).
- Files: ``load.py`` (loads, refuses damaged models, adds the user's types), ``save.py`` and ``weights.py`` (external
  data).
- Changes of a whole model: ``onnx_conversion.py`` (inline functions, change the opset), ``prune.py`` (remove what no
  output needs), ``split.py`` (cut into parts).
- Shapes: ``inferred_shapes.py`` (ONNX's inference on a copy without weights), ``shape_propagation.py`` (all shapes for
  given input sizes).
"""
