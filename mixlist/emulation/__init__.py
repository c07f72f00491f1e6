"""Emulate low precision on float32 hardware: the graph that rounds, its probes, and the ranges that a run observes.

- The models: ``emulate.py`` (the emulation, and the references in float32 and float64), ``emulation_builder.py`` (the
  rewrite behind all of them), ``shared_weights.py`` (the weights of these models in one file).
- The probes: ``instrument.py`` (adds statistics of tensors to a model), ``conversions.py`` (the tensors that
  low-precision nodes convert).
- The results: ``observer.py`` (runs an instrumented model, and reads the range of each tensor).
"""
