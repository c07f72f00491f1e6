"""List the execution providers of ONNX Runtime that mixlist can use, and look up their kernels."""
