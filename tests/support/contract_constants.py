"""Rule S7.6: constants can have both types, the high one is bit-exact, and no unused constant remains."""

from __future__ import annotations

from collections.abc import Iterator, Set

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.support.pairing import Pairing, is_constant
from tests.support.scopes import Scope, reads

Key = tuple[int, tuple[int, ...], bytes]
NUMPY = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16, TensorProto.FLOAT: np.float32}


def check(pairing: Pairing, low: int, constants: str, limits: Set[float] = frozenset()) -> None:
    """Assert that every constant of the result is an original one, bit for bit, or the conversion of one.

    ``limits`` are the magnitudes to which the constants of masks are reduced, and those of guards raised.
    """
    old_constants = [entry for scope in pairing.before.scopes() for entry in float_constants(scope)]
    allowed = {key(array, elem) for _, array, elem in old_constants}
    for _, array, elem in old_constants:
        for target in (low, TensorProto.FLOAT):
            if elem in (TensorProto.FLOAT, low) and elem != target:
                allowed.add(key(convert(array, target, constants), target))
            if elem == TensorProto.FLOAT:
                allowed |= {key(convert(reduced, target, constants), target) for reduced in _reduced(array, limits)}
    new_constants = {
        key(array, elem): (scope, name)
        for scope in pairing.after.scopes()
        for name, array, elem in float_constants(scope)
    }
    for constant_key, (scope, name) in new_constants.items():
        label = f"constant {name!r} in {scope.path!r}"
        assert constant_key in allowed, f"point 7: {label} is neither an original constant nor a conversion of one"
    _check_same_names(pairing, low, constants, limits)
    _check_leftovers(pairing)


def key(array: np.ndarray, elem: int) -> Key:
    """A constant's identity: type, shape, bits."""
    return elem, array.shape, array.tobytes()


def float_constants(scope: Scope) -> Iterator[tuple[str, np.ndarray, int]]:
    """The float constants of a scope: name, values, element type."""
    for name, tensor in scope.initializers.items():
        if tensor.data_type in NUMPY:
            yield name, numpy_helper.to_array(tensor), tensor.data_type
    for node in scope.nodes:
        if is_constant(node):
            value_and_type = constant_value(node)
            if value_and_type and value_and_type[1] in NUMPY:
                yield node.output[0], *value_and_type


def constant_value(node: onnx.NodeProto) -> tuple[np.ndarray, int] | None:
    """The dense float value of a Constant node, None for any other kind."""
    for attr in node.attribute:
        if attr.ref_attr_name:
            return None
        if attr.name == "value":
            return numpy_helper.to_array(attr.t), attr.t.data_type
        if attr.name == "value_float":
            return np.float32(attr.f).reshape(()), TensorProto.FLOAT
        if attr.name == "value_floats":
            return np.array(attr.floats, np.float32), TensorProto.FLOAT
    return None


def convert(array: np.ndarray, target: int, constants: str) -> np.ndarray:
    """The conversion that the policy's ``constants`` asks for; "clamp all" is that of Ascend, infinities included."""
    dtype = NUMPY[target]
    with np.errstate(all="ignore"):
        if constants.startswith("clamp") and target != TensorProto.FLOAT:
            limit = np.float32(ml_dtypes.finfo(dtype).max)
            finite = np.isfinite(array) | (np.isinf(array) & (constants == "clamp all"))
            array = np.where(finite, np.clip(array, -limit, limit), array).astype(array.dtype)
        return np.asarray(array.astype(dtype))


def _reduced(array: np.ndarray, limits: Set[float]) -> list[np.ndarray]:
    """For each limit, the constant with its finite magnitudes reduced to the limit; raised to one below 1."""
    finite = np.isfinite(array)
    masks = [np.where(finite, np.clip(array, -limit, limit), array) for limit in sorted(limits) if limit > 1]
    guards = [np.maximum(array, limit) for limit in limits if limit < 1]
    return [changed.astype(array.dtype) for changed in (*masks, *guards)]


def _check_same_names(pairing: Pairing, low: int, constants: str, limits: Set[float]) -> None:
    for pair in pairing.pairs:
        before = {name: (array, elem) for name, array, elem in float_constants(pair.before)}
        for name, array, elem in float_constants(pair.after):
            if name not in before:
                continue
            expected_array, old_elem = before[name]
            label = f"constant {name!r} in {pair.before.path!r}"
            if old_elem != elem:
                assert {old_elem, elem} == {TensorProto.FLOAT, low}, f"point 7: {label} changed its type"
                expected_array = convert(expected_array, elem, constants)
            reduced = [key(convert(values, elem, constants), elem) for values in _reduced(before[name][0], limits)]
            assert key(array, elem) in [key(expected_array, elem), *reduced], f"point 7: {label} changed its values"


def _check_leftovers(pairing: Pairing) -> None:
    """Assert that a constant that lost all its uses is removed, and that a new constant is used."""
    for pair in pairing.pairs:
        used_before, used_after = _used(pair.before), _used(pair.after)
        idle_before = {name for name, _, _ in float_constants(pair.before)} - used_before
        for name, _, _ in float_constants(pair.after):
            needed = name in used_after or name in pair.after.inputs or name in idle_before
            assert needed, f"point 7: constant {name!r} in {pair.before.path!r} is left over"


def _used(scope: Scope) -> set[str]:
    return {name for node in scope.nodes for name in reads(node)} | set(scope.outputs)
