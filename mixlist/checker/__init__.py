"""Judge the mixed model against the reference on data: the verdict on numbers.

``run.py`` runs a check from start to end. The other files, in the order in which a check needs them:

- ``options.py``, ``limits.py``: the arguments of ``mixlist.check``, and what they admit;
- ``check_sessions.py``, ``model_pair.py``: the reference and the mixed model, in sessions that observe ranges;
- ``finding_rules.py``: the ranges and the findings of each batch; ``intended_infinities.py`` finds what is no overflow,
  and ``hidden_overflow.py`` the overflows that ranges do not show;
- ``accuracy.py``: the outputs of both models, compared;
- ``value_counts.py``, ``inner_sums.py``, ``layerwise.py``: further runs after the last batch, which explain the
  findings;
- ``findings.py``, ``result.py``: the report.

Without a float16 accelerator the mixed model is emulated: a graph in float32 that rounds like the low type.

- The models: ``emulation.py`` (the emulation, and the reference), ``shared_weights.py`` (the weights of these models
  in one file).
- The probes: ``instrument.py`` (adds statistics of tensors to a model), ``conversions.py`` (the tensors that
  low-precision nodes convert), ``observer.py`` (runs an instrumented model, and reads the range of each tensor).
"""
