"""Search for the nodes to keep low, for the smallest list, and for the nodes that repair a float16 model.

``convert.py`` keeps the cheapest nodes low with which a model keeps its limits: ``cheapest_nodes.py`` finds them for a
set of nodes that must be high, ``convert_result.py`` has its report, and ``convert_summary.py`` what the report tells.

``tune.py`` runs a tuning from start to end. The other files, in the order in which a tuning needs them:

- ``options.py``: the arguments of ``mixlist.convert``, ``mixlist.tune`` and ``mixlist.repair``;
- ``checks.py``: the check under the given lists, which says whether a search is needed, and that on validation data;
- ``edits.py``: an edit, and the policy and the files that a set of edits makes;
- ``candidates.py``: the edits that may be tried, the most likely ones first;
- ``strategy.py``, ``minimal_sets.py``: the search for the smallest set of edits;
- ``trials.py``, ``search_state.py``: one trial for each set of edits, and the file that keeps the outcomes;
- ``trial_compiler.py``, ``rounding_plan.py``: from a set of edits to the flags of the gated graph;
- ``observed_shapes.py``: the shapes that depend on data, for the share of matrix work;
- ``gated_graph.py``: the gated graph, and its segments;
- ``trial_statistics.py``, ``trial_worker.py``: the statistics that show an overflow, and the runs in worker processes;
- ``trial_verdict.py``: the outcome of a trial;
- ``search_result.py``, ``tune_result.py``: the result of a search, and the report.

``repair.py`` searches in the same way for the fewest nodes of a float16 model to raise to float32, and makes Clips
instead of some; ``repair_result.py`` has its report.
"""
