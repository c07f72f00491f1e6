"""White, black and gray: the types of a node by its list, once everything that it reads is decided.

Rule S4.4: A white node gets the low type on all slots that can be low precision (S4.11), and keeps its authored type
with rule `schema` if no slot can be.

Rule S4.5: A black node keeps the type that the model was authored in, which need not be float32.

Rule S4.6: A gray node takes the type that ``gray_policies`` finds, or keeps its authored type if it cannot have that
type.

Rule S4.35: A node stays as authored with rule `mask` if it carries a mask out of range; ``masks`` finds these nodes.

Rule S4.9: Lists move slots between float32 and the low type only.

``classification`` finds the list of a node. The modes without lists (S3.4 to S3.7) come here as white, black, or as
"raise", which is float32.
"""

from __future__ import annotations

from mixlist.graph.model import Graph, Node, Value
from mixlist.graph.proto_edits import standard_opset
from mixlist.ops import types
from mixlist.ops.schema import find_schema
from mixlist.ops.signature import Assignment, Signature
from mixlist.resolver import gray_policies
from mixlist.resolver.constants_out_of_range import keep_constants
from mixlist.resolver.decisions import UNDECIDED
from mixlist.resolver.solver_state import SolverState, authored_type


def decide_node(node: Node, state: SolverState) -> list[Value]:
    """Decide a node that is neither control flow nor a call; return the outputs whose type rose."""
    solution, signature = state.solution, node.signature
    assert signature is not None
    kind = solution.classifications[node.id].kind
    if kind == "gray":
        target, source = gray_policies.follow(node, state)
        late = state.authored_at_last
        if late and target == state.low and any(v is not None and v.id in late for v in node.outputs):
            # The source was undecided as well and became low precision after this node had to keep its type.
            target, source = authored_type(node), None
        solution.followed_values[node.id] = source
        if target == UNDECIDED:
            return []
        assignment = _aim(node, target, state.shared.classifier.movable, state)
    elif kind == "low":
        assignment = _aim(node, state.low, state.shared.classifier.movable_if_white, state)
    elif kind == "raise":
        assignment = _aim(node, types.FLOAT, state.shared.classifier.movable, state)
    elif kind == "rule":
        assignment = state.shared.rules.assignment(state.graph, node)
    else:
        assignment = signature.authored()
    solution.assignments[node.id] = assignment
    elements = [t if isinstance(t, int) else types.element(t) for t in assignment.outputs]
    if UNDECIDED in elements:  # the schema does not tell the types of a Constant or of a custom operator
        authored = [types.element(v.type) if v is not None else 0 for v in node.outputs]
        elements = [e or a for e, a in zip(elements, authored, strict=False)]
    return state.raise_types(node.outputs, elements)


def _aim(node: Node, target: int, movable: frozenset[int], state: SolverState) -> Assignment:
    """Return the node's types if its slots of a ``movable`` type go for ``target``, as far as schema and constants
    admit it.
    """
    signature, low = node.signature, state.low
    assert signature is not None
    answer = signature.solver_cache.get((target, low, movable))
    if answer is None:
        wish = tuple([target if g.authored in movable else g.authored for g in signature.groups])
        if _can_become(target, low, state.graph):
            assignment = signature.assign(wish)
            answer = (assignment, _is_refused(assignment, target, wish, signature))
        else:
            answer = (signature.authored(), target == low and wish != signature.authored().elements)
        signature.solver_cache[target, low, movable] = answer
    assignment, refused = answer
    state.solution.rule_overrides.pop(node.id, None)
    state.solution.reason_notes.pop(node.id, None)
    if refused:
        state.solution.rule_overrides[node.id] = "schema"
        return assignment
    mask = state.solution.classifications[node.id].mask
    if target == low and mask and assignment.elements != signature.authored().elements:
        state.solution.rule_overrides[node.id] = "mask"
        state.solution.reason_notes[node.id] = mask
        return signature.authored()
    return keep_constants(node, assignment, state) if target == low else assignment


def _can_become(target: int, low: int, graph: Graph) -> bool:
    """Return whether float32 can become the type: float16 and bfloat16 do not mix, and Cast has to know the type."""
    if target != low:
        return target == types.FLOAT
    cast = find_schema("", "Cast", standard_opset(graph.model))
    return cast is None or target in cast.allowed["T2"]


def _is_refused(assignment: Assignment, target: int, wish: tuple[int, ...], signature: Signature) -> bool:
    """Return whether the operator refuses altogether: no group of slots that should change did.

    A node that computes in the type already is not refused: bfloat16 data of a Dropout whose ratio stays float32.
    """
    wanted = [i for i, (w, g) in enumerate(zip(wish, signature.groups, strict=True)) if w != g.authored]
    if signature.primary is not None and signature.primary.authored == target:
        return False
    return bool(wanted) and all(i in assignment.refused for i in wanted)
