"""Read list files and combine them into a Policy. This room imports no onnx."""
