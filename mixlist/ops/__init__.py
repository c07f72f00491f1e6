"""Know the operators of ONNX: schemas, type signatures, Ascend names, traits, low types, bounded shape inference."""
