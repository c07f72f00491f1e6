"""Run a module with other tensors in place of its own, and restore the module afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@contextmanager
def unchanged_module(module: Module) -> Iterator[None]:
    """In this context, the attributes of ``module`` and its submodules may change; at the end they are restored.

    The lists, dicts and sets that the attributes hold get their old entries back. The values of tensors are not copied.
    """
    # The tensors of a module are in its dicts ``_parameters`` and ``_buffers``, its hooks in others.
    attributes = [(part, dict(part.__dict__)) for part in module.modules()]
    containers = [
        (value, copy.copy(value))
        for _, values in attributes
        for value in values.values()
        if isinstance(value, dict | list | set)
    ]
    try:
        yield
    finally:
        for part, values in attributes:
            part.__dict__.clear()
            part.__dict__.update(values)
        for container, entries in containers:
            container.clear()
            if isinstance(container, list):
                container.extend(entries)
            else:
                container.update(entries)


def replace_tensors(module: Module, replacements: Mapping[str, Tensor]) -> None:
    """Replace parameters and buffers of ``module`` by tensors of the same names, also under their other names.

    Call this within ``unchanged_module``. ``torch.func.functional_call`` does the same, but loses the parameters of a
    submodule that the module holds under two names.
    """
    own_tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    by_identity = {id(tensor): replacements[name] for name, tensor in own_tensors.items()}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = by_identity[id(tensor)]
