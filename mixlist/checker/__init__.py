"""Judge the mixed model against the reference on data: the verdict on numbers.

``run.py`` runs a check from start to end. The other files, in the order in which a check needs them:

- ``options.py``, ``limits.py``: the arguments of ``mixlist.check``;
- ``check_sessions.py``, ``model_pair.py``: the reference and the mixed model, in sessions that observe ranges;
- ``batch_ranges.py``: the ranges of one batch; ``hidden_overflow.py`` adds the overflows that ranges do not show;
- ``finding_rules.py``, ``operand_rules.py``: the findings of one batch, of node outputs and of converted inputs;
- ``finding_records.py``, ``refused_batches.py``: what all batches show of a tensor; batches that do not run;
- ``accuracy.py``, ``array_comparison.py``, ``label_accuracy.py``: the outputs of both models, compared;
- ``value_counts.py``, ``inner_sums.py``, ``layerwise.py``: further runs after the last batch, which explain the
  findings;
- ``exception_rate.py``, ``evidence.py``: the verdict;
- ``findings.py``, ``advice.py``, ``result.py``: the report;
- ``native_comparison.py``: the differences of an emulated check from a native one.
"""
