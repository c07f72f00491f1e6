"""Render results: one document for each report, one renderer for each output format, and the graph page.

- ``document.py`` has the blocks of a document, and each ``*_document.py`` makes one from a result. ``terminal.py``
  writes a document as text, ``html_page.py`` as a page. ``json_output.py``, ``csv_table.py``, ``sarif.py`` and
  ``github.py`` write the formats for programs.
- ``page_data.py`` collects the data of the graph page, which are plain lists and dictionaries: groups, nodes, tensors,
  edges, Casts, and what a check found. ``view_html.py`` writes the page.
"""
