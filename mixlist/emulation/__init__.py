"""Emulate low precision on float32 hardware: the graph that rounds, its probes, and the ranges that a run observes.

- The models: ``emulate.py`` (the emulation, and the references in float32 and float64), ``emulation_builder.py`` (the
  rewrite behind all of them), ``float64_reference.py`` (which nodes have a float64 kernel), ``shared_weights.py`` (the
  weights of these models in one file).
- The probes: ``graph_statistics.py`` (probes, statistics and the instrumented model), ``conversions.py`` (the tensors
  that low-precision nodes convert), ``instrument.py`` (adds the nodes), ``packing.py`` and ``safe_reductions.py`` (its
  helpers).
- The results: ``observer.py`` (runs an instrumented model), ``observed_range.py`` (the range of one tensor).
"""
