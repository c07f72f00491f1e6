"""Rewrite a model as its Plan says: insert Casts, convert constants.

This folder decides nothing.
"""

from mixlist.write.result import RewriteResult
from mixlist.write.rewrite_model import lay_out_plan, rewrite, rewrite_in_place
from mixlist.write.tensor_conversion import ConstantReport

__all__ = ["ConstantReport", "RewriteResult", "lay_out_plan", "rewrite", "rewrite_in_place"]
