"""Run models with ONNX Runtime: sessions, worker processes, feeds."""
