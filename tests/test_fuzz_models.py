"""Damaged model files: resolve and apply end with exit status 2 and a message, or with 0 if the damage is harmless.

The status is never 3, and there is no traceback or hang. MIXLIST_FUZZ is the number of damaged messages (480 by
default), MIXLIST_FUZZ_SEED the seed of the first. The models are those of the golden files, before and after, and
``additional_models``.
"""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mixlist.cli import main
from tests.support.builders import model
from tests.support.golden_file import read_golden
from tests.support.mutation import mutate
from tests.test_golden import FILES, models

COUNT = int(os.environ.get("MIXLIST_FUZZ", "480"))
SEED = int(os.environ.get("MIXLIST_FUZZ_SEED", "0"))
PARTS = 8 if COUNT > 2000 else 2
SECONDS = 20  # for one command on a model of a few nodes; they take milliseconds
POLICIES = [
    *([], [], ["--precision-mode-v2", "fp16"], ["--precision-mode-v2", "mixed_bfloat16"]),
    *(["--precision-mode-v2", "cube_fp16in_fp32out"], ["--precision-mode", "allow_fp32_to_fp16"]),
    *(["--gray-policy", "between"], ["--gray-policy", "promote"]),
    *(["--constants", "clamp"], ["--ops-info", "ascend910b"], ["--ops-info", "tensorflow", "--gray-policy", "between"]),
]
RESOLVE = [["--format", "json"], ["--format", "csv"], ["--provider", "cuda"], ["--explain", "n"]]
APPLY = [
    *([], ["--io", "low"], ["--io", "float32"], ["--external-data", "yes"], ["--external-data", "no"]),
    *(["--report", "-"], ["--keep-io", "x", "--io", "low"]),
]
SLOW_APPLY = [["--opset", "22"], ["--inline-functions"]]  # each starts a process, so these are rare


def run(*arguments: object) -> tuple[int, str]:
    """Run a command in this process; return its exit status and standard error."""
    stderr = io.StringIO()
    start = time.monotonic()
    with redirect_stdout(io.StringIO()), redirect_stderr(stderr):
        status = main([str(argument) for argument in arguments])
    assert time.monotonic() - start < SECONDS, "the command took too long"
    return status, stderr.getvalue()


def assert_refused_or_processed(path: Path, damage: str, rng: random.Random) -> list[int]:
    """Assert that resolve and apply end with 0, or with 2 and a message; return the two exit statuses."""
    options, statuses = rng.choice(POLICIES), []
    out = path.with_name("out.onnx")
    for command in (
        ["resolve", path, *options, *rng.choice(RESOLVE)],
        ["apply", path, "-o", out, "--force", *options, *rng.choice(SLOW_APPLY if rng.random() < 0.01 else APPLY)],
    ):
        status, stderr = run(*command)
        description = f"{' '.join(map(str, command))}\nafter {damage}:\n{stderr}"
        assert status in (0, 2), description
        assert "Traceback" not in stderr, description
        assert status == 0 or "error" in stderr.lower(), description
        statuses.append(status)
    assert {file.name for file in path.parent.iterdir() if file.name.startswith(".")} == set()
    return statuses


# --- the models ---


def additional_models() -> Iterator[onnx.ModelProto]:
    """Yield models with external or sparse data, attributes of many types, other domains, or deep nesting."""
    embedded = model(
        "g (float[4,4] x) => (float[4,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> { y = MatMul(x, w) }"
    )
    external = onnx.ModelProto()
    external.CopyFrom(embedded)
    tensor = external.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "64"), ("length", "64")):
        tensor.external_data.add(key=key, value=value)
    yield external
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "s")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 3]), "i"), [4])
    sparse_model = model(
        "g (float[4] x) => (float[4] y) { n = Constant<value_floats=[1.0]>() y = Sum(x, n, s) }", check=False
    )
    sparse_model.graph.sparse_initializer.append(sparse)
    sparse_model.graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="n"
    )
    sparse_model.training_info.add().algorithm.CopyFrom(embedded.graph)
    sparse_model.metadata_props.add(key="pkg.mixlist.policy", value="other")
    yield sparse_model
    yield model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "c" : 1]> g (float[2,4] x) => (float[2,4] y) {
        a = com.microsoft.Gelu(x) b = c.Own<t=float[2] {1,2}, f=[1.5], s="t">(a) y = LayerNormalization(b, a) }""",
        check=False,
    )
    yield model(NESTED)
    yield model(FUNCTIONS)


NESTED = """g (float[2,4] x, bool c) => (float[2,4] y) {
    y = If(c) <
        then_branch = t () => (float[2,4] z) {
            z = If(c) <then_branch = u () => (float[2,4] v) { v = Relu(x) },
                       else_branch = w () => (float[2,4] o) { o = Exp(x) }> },
        else_branch = e () => (float[2,4] q) {
            s = SequenceConstruct(x, x)
            zero = Constant<value_int=0>()
            q = SequenceAt(s, zero) }> }"""
FUNCTIONS = """<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
g (float[4] x) => (float[4] y) { y = f.A<k=2.0>(x) }
<domain: "f", opset_import: ["" : 18, "f" : 1]>
A <k: float = 1.0> (x) => (y) { c = Constant<value_float: float = @k>() z = f.B(x) y = Mul(z, c) }
<domain: "f", opset_import: ["" : 18]>
B (x) => (y) { y = Softmax(x) }"""


def serialized_models() -> list[bytes]:
    """Return the bytes of the golden models and the additional ones."""
    golden_models = [golden for path in FILES for golden in models(read_golden(path))]
    return [m.SerializeToString() for m in (*golden_models, *additional_models())]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the external data of one of the models.

    It becomes the working folder: in the checkout, each command would read pyproject.toml in search of a configuration.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.data").write_bytes(np.arange(32, dtype=np.float32).tobytes())
    return tmp_path


# --- the tests ---


@pytest.mark.parametrize("part", range(PARTS))
def test_a_damaged_message_is_refused_or_processed(folder: Path, part: int) -> None:
    sources, path = serialized_models(), folder / "m.onnx"
    refused = 0
    for number in range(part, COUNT, PARTS):
        rng = random.Random(SEED + number)
        damaged = onnx.ModelProto.FromString(rng.choice(sources))
        damage = "; ".join(mutate(damaged, rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        path.write_bytes(damaged.SerializeToString())
        refused += 2 in assert_refused_or_processed(path, f"mutation {number}: {damage}", rng)
    assert COUNT // PARTS // 10 < refused < COUNT // PARTS  # some damage is refused, and some is harmless


def test_a_truncated_file_is_refused_or_processed(folder: Path) -> None:
    path, rng = folder / "m.onnx", random.Random(SEED)
    for data in serialized_models()[::8]:
        for at in sorted(rng.sample(range(len(data)), 12)):
            path.write_bytes(data[:at])
            assert_refused_or_processed(path, f"cut to {at} of {len(data)} bytes", rng)


def test_a_file_with_flipped_bits_is_refused_or_processed(folder: Path) -> None:
    path, rng = folder / "m.onnx", random.Random(SEED)
    for data in serialized_models()[::6]:
        for _ in range(8):
            bits, flipped = rng.sample(range(8 * len(data)), rng.choice((1, 1, 4))), bytearray(data)
            for bit in bits:
                flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            assert_refused_or_processed(path, f"bits {bits}", rng)
