"""The execution providers of ONNX Runtime, and tables of their kernels."""
