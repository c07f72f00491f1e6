"""Give random nodes a seed, so that the reference and the mixed model of a check draw the same numbers.

The difference of two draws is no error of the low type. The written model has no seed, and the trials of a search draw
anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from mixlist.model.protos import copy_message, nodes_in
from mixlist.model.traits import Trait, operators

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import GraphProto, NodeProto

    from mixlist.model.load import LoadedModel

# Those of com.microsoft, and Dropout before opset 12, which is no random operator, have no seed or need none.
_WITH_SEED = {op_type for op_type in operators(Trait.RANDOM) if "Dropout" not in op_type}


def seed_random_nodes(loaded: LoadedModel) -> LoadedModel:
    """Return a copy of a model in which each random node has a seed; ``loaded`` itself if it needs none.

    The seed follows from the name of the output, so two files with equal names draw the same numbers.
    """
    if next(_unseeded(loaded.proto.graph), None) is None:
        return loaded
    proto = copy_message(loaded.proto)
    for node in _unseeded(proto.graph):
        seed = crc32(node.output[0].encode()) % 2**16
        if node.op_type == "Dropout":
            node.attribute.add(name="seed", i=seed, type=2)  # 2 is AttributeProto.INT
        else:
            node.attribute.add(name="seed", f=seed, type=1)  # FLOAT
    return loaded._replace(proto=proto)


def _unseeded(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the random nodes without a seed. A Dropout is random if it has the third input, ``training_mode``."""
    for node in nodes_in(graph):
        is_random = node.op_type in _WITH_SEED or (node.op_type == "Dropout" and len(node.input) > 2)
        if is_random and not node.domain and all(attribute.name != "seed" for attribute in node.attribute):
            yield node
