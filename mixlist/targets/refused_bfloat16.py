"""Say why ONNX Runtime's CPU provider does not load a bfloat16 model."""

from __future__ import annotations

from mixlist.model import dtypes
from mixlist.model.build import build_graph
from mixlist.model.load import LoadedModel
from mixlist.targets.target import load_target


def describe_refused_bfloat16(loaded: LoadedModel) -> str:
    """Return that ONNX Runtime's CPU provider does not load a model, and why; "" if no bfloat16 node is the reason.

    The provider inserts Casts around a float16 node without a kernel, but not around a bfloat16 node (Rule S13.3).
    """
    cpu, counts = load_target("cpu"), {True: 0, False: 0}
    # The nodes have the types in which they run, so the Casts of mixlist must be in the graph.
    graph = build_graph(loaded.proto, show_marked_casts=True)
    for node in graph.nodes:
        outputs = tuple(
            slot
            for slot, value in enumerate(node.outputs)
            if value is not None and dtypes.element(value.type) == dtypes.BFLOAT16
        )
        # ONNX Runtime runs the nodes inside a function instead of its call.
        if not outputs or node.bodies or node.is_call or node.op_type in ("Cast", "Constant"):
            continue
        opset = graph.opsets.get(node.domain, 1)
        counts[cpu.runs(node.domain, node.op_type, opset, "bfloat16", outputs)] += 1
    if not counts[False]:
        return ""
    return (
        f"ONNX Runtime's CPU provider does not load {loaded.name}: it has no kernel for {counts[False]} of its"
        f" {sum(counts.values())} bfloat16 nodes"
    )
