"""Make a Plan real: Casts, constants, functions. Nothing is decided here."""

from mixlist.rewriter.result import RewriteResult
from mixlist.rewriter.rewrite_model import rewrite, rewrite_in_place
from mixlist.rewriter.tensor_conversion import ConstantReport

__all__ = ["ConstantReport", "RewriteResult", "rewrite", "rewrite_in_place"]
