"""The options of a policy.

To add an option, declare it here as a field of ``PolicyOptions`` and read it in ``lists/load.py``. The argument of
``load_policy``, the option of the command line and the TOML key need no other code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from mixlist.lists.policy import GRAY_POLICIES, Constants
from mixlist.option_fields import option

OpNames = Literal["auto", "onnx", "ascend"]
DEFAULT_LIBRARY = "onnx"
ListPath = str | os.PathLike[str]


@dataclass(frozen=True)
class PolicyOptions:
    """The options of ``load_policy`` (docs/semantics.md, S1 to S6).

    ``ops_info``: the library, as the name of a built-in library, a file, or a directory.
    ``mixlist``: a modify_mixlist file. ``keep_dtype`` and ``customize_dtypes``: node rule files. For each of these
    paths, ``-`` means standard input.
    ``precision_mode``: a mode by its old name. ``precision_mode_v2``: a mode by its new name (Rule S3.1).
    ``protect``: ``none``, or some of ``masks,positions,quantized``; with None the library decides (Rule S4.34).
    ``strict``: if True, comments and trailing commas in the files are errors.
    """

    ops_info: ListPath = option(
        DEFAULT_LIBRARY,
        "The operator library: a file, a directory or a built-in name ('mixlist presets').",
        "library",
        metavar="PATH|PRESET",
    )
    mixlist: ListPath | None = option(None, "A modify_mixlist file ('-' reads standard input).", "list file")
    precision_mode: str | None = option(None, "A mode by its older name, e.g. allow_mix_precision.", metavar="MODE")
    precision_mode_v2: str | None = option(None, "A mode by its newer name.  [default: mixed_float16]", metavar="MODE")
    keep_dtype: ListPath | None = option(
        None, "A file of nodes that keep their type: on each line a name or OpType::Type.", "list file"
    )
    customize_dtypes: ListPath | None = option(
        None, "A file of types for single nodes: on each line a rule.", "list file"
    )
    op_names: str = option("auto", "Name space of the lists.", choices=get_args(OpNames))
    gray_policy: str = option("ascend", "How gray nodes follow their neighbors.", choices=GRAY_POLICIES)
    constants: str = option(
        "keep", "How constants beyond the range of the low type are treated.", choices=get_args(Constants)
    )
    protect: str | None = option(
        None,
        "Patterns that no list makes low precision.  [default: all, none for the lists of an engine or a framework]",
        metavar="masks,positions,quantized|none",
    )
    strict: bool = False
