"""Render results: one document for each report, one renderer for each output format, and the graph page.

- ``document.py`` has the blocks of a document, and each ``*_document.py`` makes one from a result. ``terminal.py``
  writes a document as text, ``html_page.py`` as a page. ``json_csv.py`` writes JSON and CSV for other
  programs.
- ``graph_page.py`` writes the graph page. Its data are plain lists and dictionaries: groups (``scope_tree.py``), nodes,
  tensors, edges and Casts (``graph_tables.py``), and what a check found (``check_results.py``).
"""
