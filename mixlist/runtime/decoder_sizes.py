"""Derive the sizes of a decoder's inputs from the length of its cache.

Exporters of language models give these sizes fixed names: ``sequence_length`` new words follow the
``past_sequence_length`` words of the cache, and the mask covers all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mixlist.diagnostics import Diagnostic, warning
from mixlist.runtime.inputs import Input
from mixlist.text_escapes import quote_argument

_PAST, _NEW = "past_sequence_length", "sequence_length"
# The names of the whole length: of ONNX Runtime's exporter of language models, and of Optimum, which writes the sum.
_TOTALS = frozenset({"total_sequence_length", "total_length", f"{_PAST} + {_NEW}"})


def add_decoder_sizes(inputs: Sequence[Input], dims: Mapping[str, int]) -> tuple[dict[str, int], list[Diagnostic]]:
    """Return ``dims`` with the sizes that follow from the length of the cache, and a warning for each (Rule S8.24).

    Without the option ``past_sequence_length`` nothing follows, and an option always wins over a derived size.
    """
    sizes = dict(dims)
    if _PAST not in dims:
        return sizes, []
    warnings = []
    names = {size for model_input in inputs for size in model_input.shape or () if isinstance(size, str)}
    for name in (_NEW, *sorted(_TOTALS)):
        if name not in names or name in sizes:
            continue
        if name == _NEW:
            sizes[name], reason = 1, "one new word follows the cache"
        else:
            sizes[name], reason = sizes[_PAST] + sizes.get(_NEW, 1), "the cache and the new words together"
        message = f"size {name} is not given: {sizes[name]} is used, {reason}"
        warnings.append(warning("ML601", message, hint=f"set it with --dim {quote_argument(name)}=N"))
    return sizes, warnings


def is_as_long_as_the_text(model_input: Input) -> bool:
    """Return whether the last axis of an input has a name of the whole length, as that of an attention mask."""
    shape = model_input.shape or ()
    return bool(shape) and shape[-1] in _TOTALS
