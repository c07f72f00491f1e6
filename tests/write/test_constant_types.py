"""A constant is converted only to a type that each of its readers admits at the model's opset (Rule S4.11)."""

from __future__ import annotations

import os
from random import Random

import onnx
import pytest

import mixlist
from tests.support.builders import model, policy
from tests.support.contract import check_contract
from tests.support.rewriter_cases import case

EXAMPLES = int(os.environ.get("MIXLIST_EXAMPLES", "40"))


@pytest.mark.parametrize(("opset", "scan_type"), [(13, "float32"), (15, "float32"), (16, "bfloat16")])
def test_a_constant_scan_input_stays_as_authored_before_scan_admits_bfloat16(opset: int, scan_type: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
      g (float[2] x) => (float[2] y, float[3,2] z) <float[3,2] k = {{1, 2, 3, 4, 5, 6}}> {{
      [s] y, z = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] p, float[2] q)
        {{ [m] q = Mul(e, e) p = Identity(a) }}>(x, k) }}"""
    result = case(text, mode="mixed_bfloat16", white=["Mul"])
    assert result.nodes["s/body/m"].precision == "bfloat16"
    assert result.initializers() == {"k": scan_type}


class RandomBodies:
    """A random model of Scan, Loop and If, which read constants in all possible ways."""

    UNARY = ("Neg", "Relu", "Exp", "Identity")
    BINARY = ("Add", "Mul", "Sub", "Pow")

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.count = 0
        opset = self.random.choice([13, 13, 14, 15, 16])
        steps, tensors = self.steps(["x"], ["k", "c"], 2, 6)
        outputs = [name for name in tensors if name not in ("x", "k", "c")][-3:] or [tensors[-1]]
        self.text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
          g (float[2] x, bool yes, int64 n) => ({", ".join(f"float[M] {name}" for name in outputs)})
          <float[2] k = {{1, 2}}, float[2] c = {{3, 4}}, float[2, 2] table = {{1, 2, 3, 4}}, bool go = {{1}},
           int64 axis = {{0}}> {{ {steps} }}"""

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def steps(self, data: list[str], constants: list[str], depth: int, most: int) -> tuple[str, list[str]]:
        """Return random nodes, and all tensors of two elements that they can see."""
        lines, seen = [], [*constants, *data]
        kinds = [
            "unary",
            "binary",
            "binary",
            "cumsum",
            "constant",
            *(["conditional", "loop", "scan", "scan"] if depth else []),
        ]
        for _ in range(self.random.randint(2, most)):
            name, a, b = self.name(), self.random.choice(seen), self.random.choice(seen)
            kind = self.random.choice(kinds)
            if kind == "unary":
                lines.append(f"{name} = {self.random.choice(self.UNARY)}({a})")
            elif kind == "binary":
                lines.append(f"{name} = {self.random.choice(self.BINARY)}({a}, {b})")
            elif kind == "cumsum":
                lines.append(f"{name} = CumSum({a}, axis)")  # admits bfloat16 from opset 14 on
            elif kind == "constant":
                lines.append(f"{name} = Constant<value = float[2] {{5, 6}}>()")
            else:
                lines.append(getattr(self, kind)(name, a, b, seen, depth))
            seen.append(name)
        return " ".join(lines), seen

    def body(self, data: list[str], seen: list[str], depth: int) -> tuple[str, list[str]]:
        return self.steps(data, seen, depth - 1, 3)

    def pick(self, inner: list[str], outer: list[str]) -> str:
        """Return a tensor that a body may yield: mostly one of the body, sometimes one from outside."""
        return self.random.choice([name for name in inner if name not in outer] or inner)

    def yielded(self, inner: list[str], outer: list[str]) -> tuple[str, str]:
        """Return nodes that make a tensor of the body, and its name: a body lists no tensor of an outer scope."""
        name = self.pick(inner, outer)
        if name not in outer:
            return "", name
        copy = self.name()
        return f"{copy} = Identity({name})", copy

    def scan(self, name: str, a: str, b: str, seen: list[str], depth: int) -> str:
        state, element = self.name(), self.name()
        steps, inner = self.body([state, element], seen, depth)
        (copy, state2), (copy2, out) = self.yielded(inner, seen), self.yielded(inner, seen)
        out, copy2 = (out, copy2) if out != state2 else ((fresh := self.name()), f"{fresh} = Identity({state2})")
        scanned = self.random.choice(["table", "table", f"{name}u"])
        unsqueeze = f"{name}u = Unsqueeze({b}, {name}a)" if scanned != "table" else ""
        axes = f"{name}a = Constant<value = int64[1] {{0}}>()" if unsqueeze else ""
        return f"""{axes} {unsqueeze} {name}, {name}s = Scan<num_scan_inputs = 1,
          body = b (float[2] {state}, float[2] {element}) => (float[2] {state2}, float[2] {out})
          {{ {steps} {copy} {copy2} }}>({a}, {scanned})"""

    def loop(self, name: str, a: str, b: str, seen: list[str], depth: int) -> str:
        state, go, index, condition = (self.name() for _ in range(4))
        steps, inner = self.body([state], seen, depth)
        (copy, state2), (copy2, out) = self.yielded(inner, seen), self.yielded(inner, seen)
        out, copy2 = (out, copy2) if out != state2 else ((fresh := self.name()), f"{fresh} = Identity({state2})")
        return f"""{name}, {name}s = Loop(n, go, {a})<
          body = b (int64 {index}, bool {go}, float[2] {state}) => (bool {condition}, float[2] {state2}, float[2] {out})
          {{ {condition} = Identity({go}) {steps} {copy} {copy2} }}>"""

    def conditional(self, name: str, a: str, b: str, seen: list[str], depth: int) -> str:
        branches = []
        for branch in ("then_branch", "else_branch"):
            steps, inner = self.body([a, b], seen, depth)
            copy, out = self.yielded(inner, seen)
            branches.append(f"{branch} = b () => (float[2] {out}) {{ {steps} {copy} }}")
        return f"{name} = If(yes)<{', '.join(branches)}>"


@pytest.mark.parametrize("share", range(4))
def test_random_bodies_at_opsets_where_bfloat16_is_new(share: int) -> None:
    converted = 0
    for seed in range(share, max(EXAMPLES // 2, 40), 4):
        bodies = RandomBodies(seed)
        proto = model(bodies.text)
        ops = [*RandomBodies.UNARY, *RandomBodies.BINARY, "CumSum"]
        white = [op for op in ops if bodies.random.random() < 0.6]
        black = [op for op in ops if op not in white and bodies.random.random() < 0.3]
        rules = policy(mode="mixed_bfloat16", white=white, black=black)
        plan = mixlist.resolve(proto, rules)
        result = mixlist.rewrite(proto, plan)
        check_contract(proto, result, plan, runtime=False)
        converted += any(t.data_type == onnx.TensorProto.BFLOAT16 for t in result.model.graph.initializer)
    assert converted > 3
