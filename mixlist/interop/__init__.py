"""Export the decisions of a plan as the lists of other tools, with each decision that a tool makes otherwise.

Each tool has one file. It turns a Plan into an ExportResult, and it holds what the tool decides by itself: the version
from whose source these facts were read is in the result. ``registry.py`` says how to add a tool.
"""

from mixlist.interop.registry import export, register_exporter
from mixlist.interop.result import ExportException, ExportResult

__all__ = ["ExportException", "ExportResult", "export", "register_exporter"]
