"""Look up facts about ONNX operators: schemas, type signatures, Ascend names, traits, low types, bounded inference."""
