"""Rewrite a model as its Plan says: insert Casts, convert constants. This folder decides nothing.

``rewrite_model.py`` goes from a Plan to a RewriteResult (``result.py``). The other files, in the order of their use:

- ``cast_layout.py`` chooses the places of Casts, and the constants to convert;
- ``constant_conversion.py`` converts these constants in the messages; ``tensor_conversion.py`` converts one tensor;
- ``layout_writer.py`` writes Casts, names and types into the messages.
"""

from mixlist.write.result import RewriteResult
from mixlist.write.rewrite_model import lay_out_plan, rewrite, rewrite_in_place
from mixlist.write.tensor_conversion import ConstantReport

__all__ = ["ConstantReport", "RewriteResult", "lay_out_plan", "rewrite", "rewrite_in_place"]
