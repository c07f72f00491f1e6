"""Read list files and combine them into a Policy. This folder does not import onnx.

``load.py`` reads the files and options into a Policy, which ``policy.py`` defines. The other files:

- The lists: ``library.py`` (the list of each op type), ``ops_info.py`` (libraries in files: read, set flags),
  ``presets.py`` (the built-in libraries), ``modify_mixlist.py`` (edits of lists), ``op_catalog.py`` (the op types that
  exist);
- ``node_rules.py``: the files keep_dtype and customize_dtypes;
- One file alone: ``detect_kind.py`` (the kind of a file, the list files of a folder), ``schema_check.py`` (keys and
  types), ``validate_file.py`` (all findings), ``finding_selection.py`` (codes), ``corrections.py``
  (``validate --fix``), ``fmt.py`` (the canonical form);
- ``diff.py`` compares two policies;
- ``suggestions.py``: the names that are similar to a misspelled one.
"""
