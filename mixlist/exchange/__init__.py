"""Export decisions to other mixed-precision tools, as the tools' own lists.

Each tool has one file. It turns a Plan into an ExportResult, and it holds what the tool decides by itself: the version
from whose source these facts were read is in the result. ``block_lists.py`` and ``converter_facts.py`` have what
several tools share.
"""

# ``export_for_TOOL`` in the module TOOL returns the ExportResult of a plan.
TOOLS = ("modelopt", "ort", "onnxconverter", "atc")
