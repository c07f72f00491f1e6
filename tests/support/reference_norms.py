"""Find the written-out normalizations of a model.

Rule S4.47: the nodes from the square of a tensor to the roots behind a mean or sum of it, and to the quotients with the
tensor, stay as authored with --protect norms.
"""

from __future__ import annotations

from mixlist.model.traits import Trait, operators
from tests.support.reference_constants import Constants
from tests.support.reference_model import FLOAT, Node, Value
from tests.support.reference_signature import has_container

SUMS = {"ReduceMean", "ReduceSum"}
THROUGH = operators(Trait.MOVES_VALUES) | SUMS | {"Add", "Sub", "Mul", "Div", "Max", "Min", "Clip"}
BEHIND = operators(Trait.MOVES_VALUES) | {"Reciprocal", "Clip", "Max", "Add"}
MOST = 24


def find_norms(nodes: list[Node], constants: Constants) -> list[list[Node]]:
    """Return the nodes of each unit, in the order of the graph; the first one is the square."""
    order = {node: index for index, node in enumerate(nodes)}
    norms = []
    for node in nodes:
        squared = squared_by(node, constants)
        unit = unit_of(node, squared, constants) if squared is not None else set()
        if any(member.op in SUMS for member in unit):
            norms.append(sorted({node, *unit}, key=order.__getitem__))
    return norms


def squared_by(node: Node, constants: Constants) -> Value | None:
    """Return the float32 tensor that the node squares, and that is no constant."""
    if not node.is_standard or node.op not in ("Mul", "Pow") or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if first is None or first.elem != FLOAT or constants.is_constant(first):
        return None
    is_square = first is second if node.op == "Mul" else all_equal(second, constants) == 2
    return first if is_square else None


def all_equal(value: Value | None, constants: Constants) -> float | None:
    """Return the number of a constant whose elements are equal."""
    array = constants.array(value) if value is not None and constants.is_constant(value) else None
    if array is None or not array.size or array.dtype.kind not in "f" or (array != array.flat[0]).any():
        return None
    return float(array.flat[0])


def readers(node: Node) -> list[Node]:
    return [r for v in node.outputs if v is not None for r, _ in v.readers if r.scope is node.scope]


def is_root(node: Node, constants: Constants) -> bool:
    if not node.is_standard or node.bodies:
        return False
    if node.op == "Pow":
        exponent = all_equal(node.inputs[1], constants)
        return exponent is not None and exponent < 1
    return node.op in ("Sqrt", "Reciprocal", "Log")


def unit_of(square: Node, squared: Value, constants: Constants) -> set[Node]:
    """Return the nodes behind a square that belong to its unit; empty if it reaches too many."""
    reached, waiting, roots = {square}, [square], set[Node]()
    while waiting:
        for reader in readers(waiting.pop()):
            if reader in reached:
                continue
            reached.add(reader)
            if is_root(reader, constants):
                roots.add(reader)
            elif reader.is_standard and not reader.bodies and reader.op in THROUGH and not has_container(reader):
                waiting.append(reader)
    if len(reached) > MOST:
        return set()
    unit = {node for node in reached if leads_to(node, roots, reached, set())} - {square}
    return unit | {node for root in roots for node in quotients(root, squared, constants)}


def leads_to(node: Node, roots: set[Node], reached: set[Node], visited: set[Node]) -> bool:
    """Return whether a root is reached from the node, which is a root itself or passes on what it reads."""
    if node in roots:
        return True
    if node in visited or (node.op not in THROUGH and node.op != "Pow"):
        return False
    visited.add(node)
    return any(reader in reached and leads_to(reader, roots, reached, visited) for reader in readers(node))


def quotients(root: Node, squared: Value, constants: Constants) -> set[Node]:
    """Return the nodes from behind a root to each Div or Mul that reads the squared tensor."""
    shortest: dict[Node, tuple[Node, ...]] = {root: ()}
    waiting, members = [root], set[Node]()
    while waiting:
        node = waiting.pop()
        for reader in readers(node):
            if reader in shortest or not reader.is_standard or reader.bodies:
                continue
            path = shortest[reader] = (*shortest[node], reader)
            first = reader.inputs[0]
            if reader.op in ("Div", "Mul") and any(is_same(value, squared) for value in reader.inputs):
                members.update(path)
            elif len(path) <= 4 and (
                (reader.op == "Div" and first is not None and constants.is_constant(first)) or reader.op in BEHIND
            ):
                waiting.append(reader)
    return members


def is_same(value: Value | None, squared: Value) -> bool:
    """Return whether a value is the squared one, or the same operator makes it of the same inputs."""
    if value is squared:
        return True
    if value is None or value.producer is None or squared.producer is None:
        return False
    same_inputs = value.producer.inputs == squared.producer.inputs
    return value.producer.op == squared.producer.op and same_inputs and value.slot == squared.slot
