"""Configuration of the documentation site. ``make docs`` builds it into ``site/``.

Sphinx builds the site, because one tool then checks every link inside the site, reads Markdown (MyST), and
generates the reference of the Python API from the docstrings (autodoc). ``_extensions`` generates the other references.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from mixlist.version import __version__

project = "mixlist"
author = "the mixlist authors"
copyright = "the mixlist authors"  # noqa: A001 (a name of Sphinx)
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generated_reference",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_extensions", "_static"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4  # the rules of semantics.md and the finding codes are headings that other pages link to
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = False
smartquotes = False  # "--strict" must not become a dash

html_theme = "furo"
html_title = f"mixlist {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
