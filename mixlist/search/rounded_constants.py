"""Round the constants of a gated graph: large ones once as initializers, small ones as Constant nodes in branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mixlist.model import dtypes
from mixlist.model.low_precision import LOW_TYPES
from mixlist.model.naming import NameGenerator
from mixlist.model.weights import is_external, read_pieces
from mixlist.write.tensor_conversion import ConstantReport, convert_piece, reduce_piece

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from onnx import AttributeProto, ModelProto, NodeProto, TensorProto


class RoundedConstants:
    """Makes rounded copies of a model's constants.

    The copies are float32, and a low type can hold each of their numbers. ``folder``: the folder of the model's
    external data.
    """

    def __init__(self, proto: ModelProto, new_names: NameGenerator, folder: Path | None) -> None:
        self.proto, self.new_names, self.folder = proto, new_names, folder
        # The names of initializers by the constant (the id of its message), the type, the clamping and the limit.
        self._initializers: dict[tuple[int, int, bool, float], str] = {}

    def add_initializer(
        self, name: str, constant: TensorProto | AttributeProto, elem: int, clamp: bool, limit: float = 0.0
    ) -> str:
        """Return the name of an initializer that holds a constant rounded to ``elem``; add the initializer if needed.

        ``name``: the constant's own name, which is returned if rounding changes no number. ``clamp``: numbers beyond
        the range become the largest finite number, else they become infinite. ``limit``: the magnitude to which a
        mask's constant is reduced, 0 for other constants.
        """
        from onnx import numpy_helper

        key = (id(constant), elem, clamp, limit)
        if key not in self._initializers:
            unrounded = self._read_rounded(constant, 0, clamp)
            rounded = self._read_rounded(constant, elem, clamp, limit)
            self._initializers[key] = name
            # Compare bytes and not numbers: a NaN is not equal to itself, and 0.0 is equal to -0.0.
            if unrounded.tobytes() != rounded.tobytes():
                new_name = self.new_names.make_name(f"{name}_{dtypes.type_name(elem) if elem else 'mask'}")
                self._initializers[key] = new_name
                self.proto.graph.initializer.append(numpy_helper.from_array(rounded, new_name))
        return self._initializers[key]

    def make_constant(
        self, constant: TensorProto | AttributeProto, elem: int, output: str, clamp: bool, limit: float
    ) -> NodeProto:
        """Return a Constant node with a copy of a constant, rounded to ``elem``; if ``elem`` is 0, not rounded."""
        from onnx import TensorProto, helper, numpy_helper

        node = self.new_names.make_node("Constant", [], output)
        must_convert = isinstance(constant, TensorProto) and (
            constant.data_type in LOW_TYPES or is_external(constant)  # the gated graph is float32 and has no files
        )
        if elem or limit or must_convert:
            constant = numpy_helper.from_array(self._read_rounded(constant, elem, clamp, limit))
        # An authored Constant may hold its numbers in the attribute value_float or value_floats: copy that attribute.
        node.attribute.append(
            helper.make_attribute("value", constant) if isinstance(constant, TensorProto) else constant
        )
        return node

    def _read_rounded(
        self, constant: TensorProto | AttributeProto, elem: int, clamp: bool, limit: float = 0.0
    ) -> NDArray[np.generic]:
        """Return the numbers of a constant as an array of its shape; numbers of a low type become float32.

        If ``elem`` is not 0, they are rounded to that type. If ``limit`` is not 0, magnitudes above ``limit`` are
        reduced to it before the rounding.
        """
        import numpy as np
        from onnx import TensorProto

        # An attribute is the value_floats (a list) or the value_float (a scalar) of a Constant node.
        if isinstance(constant, TensorProto):
            dims, is_low = list(constant.dims), constant.data_type in LOW_TYPES
        else:
            dims, is_low = [len(constant.floats)] if constant.name == "value_floats" else [], False
        report = ConstantReport("")  # counts what changes; nothing reads it here
        parts = [np.asarray(piece) for piece in read_pieces(constant, self.folder)]
        if limit:
            parts = [reduce_piece(part, limit, report) for part in parts]
        if elem:
            parts = [convert_piece(part, elem, clamp, report).astype(np.float32) for part in parts]
        elif is_low:
            parts = [part.astype(np.float32) for part in parts]
        return (np.concatenate(parts) if parts else np.zeros(0, np.float32)).reshape(dims)


def remove_initializers_from_inputs(proto: ModelProto) -> None:
    """Raise a model to IR version 4, and remove its initializers from the inputs.

    Before version 4 every initializer is also an input. From version 4 on, ONNX Runtime does not treat an initializer
    that is an input as a constant, because a feed may replace it.
    """
    proto.ir_version = 4
    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value_info for value_info in proto.graph.input if value_info.name not in initializers]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
