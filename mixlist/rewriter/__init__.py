"""Make a Plan real: Casts, constants, functions. Nothing is decided here."""

from mixlist.rewriter.convert import ConstantReport
from mixlist.rewriter.result import RewriteResult
from mixlist.rewriter.rewrite_model import rewrite, rewrite_in_place

__all__ = ["ConstantReport", "RewriteResult", "rewrite", "rewrite_in_place"]
