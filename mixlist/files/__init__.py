"""Write files atomically, and read JSON with the line and column of each value.

- Write: ``atomic_writes.py`` (a file or folder appears whole or not at all), ``scratch_folder.py`` (temporary files);
- Read: ``list_text.py`` (text within limits), ``jsonc.py`` (JSON with comments, and edits of it), ``regular_files.py``
  (no pipes and devices), ``package_data.py`` (data of the package);
- ``strict_json.py``: values as strict JSON.
"""
