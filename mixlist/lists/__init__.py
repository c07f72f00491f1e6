"""Read list files and combine them into a Policy. This folder does not import onnx."""
