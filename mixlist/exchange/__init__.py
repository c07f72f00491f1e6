"""Exchange decisions with other mixed-precision tools: export them as the tools' own lists, and recover them.

Export: each tool has one file. It turns a Plan into an ExportResult, and it holds what the tool decides by itself: the
version from whose source these facts were read is in the result. ``block_lists.py`` and ``converter_facts.py`` have
what several tools share. ``registry.py`` says how to add a tool.

Recover: ``recover.py`` goes from another tool's output to lists and node rules. It uses

- ``model_matching.py`` to pair the nodes of the two models,
- ``mixed_types.py`` to read the types that the other tool gave each node,
- ``recover_edits.py`` to find the smallest lists and node rules,
- ``recover_result.py`` for the result as values.
"""
