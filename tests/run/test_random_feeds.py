"""Test random data: sizes by names and positions, ranges, and equal values for equal seeds."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from mixlist.cli.command_index import load_command
from mixlist.cli.options import spell_flag
from mixlist.errors import UsageError
from mixlist.option_spelling import spelled_by
from mixlist.run.feeds import Batches, random_batches
from mixlist.run.local_session import LocalSession
from tests.support.builders import model
from tests.support.local_sessions import make_session

PICTURES = "g (float[N, 3, H, ?] x, int64[N, L] ids) => (float[N, 3, H, ?] y) { y = Neg (x) }"
SIZES = {"H": 5, "x.3": 6, "L": 7}
UNBOUNDED = "input 'ids': integers 0 or 1, because the graph shows no range"


def first_batch(text: str, **options: Any) -> dict[str, Any]:
    """Return the first random batch for a model, or for its inputs in ONNX text."""
    return next(iter(random_batches(model_with_inputs(text) if "=>" not in text else model(text), 1, **options)))


def model_with_inputs(kinds: str) -> onnx.ModelProto:
    """Return a model with inputs in ONNX text: ``float[N] x, int64 n``."""
    return model(f"g ({kinds}) => (float y) {{ y = Constant <value_float = 1.0> () }}", check=False)


def are_equal(first: Batches, second: Batches) -> bool:
    pairs = zip(first, second, strict=True)
    return all(a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a) for a, b in pairs)


def messages(batches: Batches) -> list[str]:
    return [warning.message for warning in batches.warnings]


def test_sizes_by_name_and_by_position() -> None:
    batches = random_batches(model(PICTURES), 3, dims={**SIZES, "N": 2})
    assert len(batches) == 3
    assert batches.names() == ("random 0", "random 1", "random 2")
    assert [(feed["x"].shape, feed["ids"].shape) for feed in batches] == [((2, 3, 5, 6), (2, 7))] * 3
    assert messages(batches) == [UNBOUNDED]


def test_a_size_by_position_wins_over_one_by_name() -> None:
    feed = first_batch("float[N, L] a, float[N, L] b", dims={"L": 4, "b.1": 9, "N": 1})
    assert (feed["a"].shape, feed["b"].shape) == ((1, 4), (1, 9))


def test_a_pattern_gives_the_sizes_that_it_matches() -> None:
    """A pattern gives several sizes of random data."""
    text = "float[s10, s12] a, float[?, s86] state, float[batch, s12] b"
    sizes = {
        "s*": 32,
        "batch": 3,
        "s12": 5,
        "s1?": 7,
        "*": 9,
    }  # an exact name wins, then the first pattern that matches
    feed = first_batch(text, dims=sizes)
    assert {name: value.shape for name, value in feed.items()} == {"a": (32, 5), "state": (32, 32), "b": (3, 5)}
    feed = first_batch(text, dims={"state.0": 2, "s1?": 7, "*": 9})
    assert {name: value.shape for name, value in feed.items()} == {"a": (7, 7), "state": (2, 9), "b": (9, 7)}


def test_only_stars_and_question_marks_are_patterns() -> None:
    proto = model_with_inputs("float[4, 4] x")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n[0]"
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n0"
    feed = next(iter(random_batches(proto, 1, dims={"n[0]*": 3, "n?": 5})))
    assert feed["x"].shape == (3, 5)


def test_a_missing_batch_size_is_one_with_a_warning() -> None:
    batches = random_batches(model(PICTURES), 1, dims=SIZES)
    assert next(iter(batches))["x"].shape == (1, 3, 5, 6)
    assert messages(batches) == ["size N is not given: 1 is used", UNBOUNDED]
    recurrent = random_batches(model_with_inputs("float[B, 4] x, float[2, B, 8] state, float[?, 2] z"), 1)
    assert next(iter(recurrent))["state"].shape == (2, 1, 8)
    assert messages(recurrent) == ["size B is not given: 1 is used", "size z.0 is not given: 1 is used"]


def test_one_error_lists_all_missing_sizes() -> None:
    with pytest.raises(UsageError, match=r"random data needs sizes that the model leaves open: H, x\.3, L") as error:
        random_batches(model(PICTURES), 1)
    together = "(sizes that belong together must fit)"
    assert error.value.hint == f"set them {together}, for example: dims={{'H': 320, 'x.3': 320, 'L': 16}}"


def test_the_hint_for_a_decoder_names_only_sizes_that_fit_each_other() -> None:
    proto = model_with_inputs(
        "int64[1, sequence_length] ids, int64[1, total_length] mask, float[1, past_sequence_length, 4] past,"
        " float[1, L] x"
    )
    with pytest.raises(UsageError) as error:
        random_batches(proto, 1)
    hint = (
        "set them (sequence_length and total_length follow from past_sequence_length),"
        " for example: dims={'past_sequence_length': 16, 'L': 16}"
    )
    assert error.value.hint == hint
    feed = next(iter(random_batches(proto, 1, dims={"past_sequence_length": 16, "L": 16})))
    assert (feed["ids"].shape, feed["mask"].shape, feed["x"].shape) == ((1, 1), (1, 17), (1, 16))


def test_hints_quote_the_names_that_a_shell_would_change() -> None:
    """Some exporters call a size ``?``: unquoted, it would match the names of files."""
    proto = model("g (float[N, 2] x) => (float[N, 2] y) { y = Relu (x) }")
    first, second = proto.graph.input[0].type.tensor_type.shape.dim
    first.dim_param, second.dim_param = "batch size", "?"
    with pytest.raises(UsageError) as error, spelled_by(partial(spell_flag, load_command("check"))):
        random_batches(proto, 1)
    assert error.value.hint == "set them, for example: --dim '?=16'"
    with spelled_by(partial(spell_flag, load_command("check"))):
        batches = random_batches(proto, 1, dims={"?": 2})
    assert batches.warnings[0].hint == "set it with --dim 'batch size=N'"
    assert random_batches(proto, 1, dims={"?": 2}).warnings[0].hint == "set it with dims={'batch size': N}"


def test_the_proposed_sizes_fit_images() -> None:
    """The sizes of the metadata that ultralytics writes, else a multiple of 32; texts stay short."""
    proto = model("g (float[1, 3, H, W] x, int64[1, L] ids) => (float[1, 3, H, W] y) { y = Relu (x) }")
    with pytest.raises(UsageError) as error:
        random_batches(proto, 1)
    assert error.value.hint is not None and error.value.hint.endswith("dims={'H': 320, 'W': 320, 'L': 16}")
    proto.metadata_props.add(key="imgsz", value="[640, 480]")
    with pytest.raises(UsageError, match="H, W") as error:
        random_batches(proto, 1)
    assert error.value.hint is not None and error.value.hint.endswith("dims={'H': 640, 'W': 480, 'L': 16}")
    channels_last = model("g (float[1, H, W, 3] x) => (float[1, H, W, 3] y) { y = Relu (x) }")
    with pytest.raises(UsageError) as error:
        random_batches(channels_last, 1)
    assert error.value.hint is not None and error.value.hint.endswith("dims={'H': 320, 'W': 320}")


def test_a_size_may_be_zero() -> None:
    feed = first_batch("float[N, 4] x, int64[N] i, string[N] s, bool[N] b", dims={"N": 0})
    assert {value.size for value in feed.values()} == {0}


def test_the_seed_decides_the_values() -> None:
    def batches(count: int, **options: Any) -> Batches:
        return random_batches(model_with_inputs("float[4] x, int64[9] i, string[5] s"), count, **options)

    assert are_equal(batches(3), batches(3))  # with the same default seed
    assert are_equal(batches(3, seed=7), batches(3, seed=7))
    assert not are_equal(batches(3), batches(3, seed=7))
    first, second, _ = batches(3)
    assert (first["x"] != second["x"]).any()
    assert (next(iter(batches(1)))["x"] == first["x"]).all()  # the number of batches does not count


def test_values_have_the_declared_type() -> None:
    feed = first_batch(
        "float[1000] f, double[1000] d, float16[1000] h, bfloat16[1000] b, int8[1000] i, uint64[1000] u, bool[1000] t,"
        " string[1000] s, complex64[9] c, float n, string w"
    )
    types = {name: value.dtype for name, value in feed.items()}
    assert types == {
        "f": np.float32, "d": np.float64, "h": np.float16, "b": ml_dtypes.bfloat16, "i": np.int8, "u": np.uint64,
        "t": np.bool_, "s": np.object_, "c": np.complex64, "n": np.float32, "w": np.object_,
    }  # fmt: skip
    for name in "fdhb":
        wide = feed[name].astype(np.float64)
        assert abs(wide.mean()) < 0.2
        assert 0.8 < wide.std() < 1.2
    for name in "iut":
        assert set(feed[name].tolist()) == {0, 1}
    assert {type(word) for word in feed["s"]} == {str}
    assert feed["n"].shape == feed["w"].shape == ()
    assert isinstance(feed["w"].item(), str)


def test_ranges() -> None:
    feed = first_batch(
        "float[5000] f, int64[5000] i, int8[5000] s, uint64[50] u, bool[50] b, float16[5000] h, double[99] d, int64 n",
        ranges={"f": (2, 3.5), "i": (0, 30521), "s": (-128, 127), "u": (2**64 - 2, 2**64 - 1), "b": (1, 1),
                "h": (-65504, 65504), "d": (-1e308, 1e308), "n": (16000, 16000)},
    )  # fmt: skip
    assert 2 <= feed["f"].min() < 2.1
    assert 3.4 < feed["f"].max() <= 3.5
    assert 0 <= feed["i"].min() < 300
    assert 30200 < feed["i"].max() <= 30521
    assert (feed["s"].min(), feed["s"].max()) == (-128, 127)  # both ends are included
    assert set(feed["u"].tolist()) <= {2**64 - 2, 2**64 - 1}
    assert feed["b"].all()
    assert np.isfinite(feed["h"]).all()
    assert np.isfinite(feed["d"]).all()
    assert feed["n"] == 16000


def test_integers_have_the_range_that_the_graph_shows() -> None:
    """Random integers have the range that the graph shows."""
    text = """g (float[V, 4] table, int64[N, L] ids, int64[N, L] mask, int64 n) => (float[N, L, 4] y, bool[N, L] m) {
      [look] y = Gather (table, ids) m = Cast<to = 9> (mask) }"""
    batches = random_batches(model(text), 1, dims={"V": 9, "L": 400, "N": 1}, ranges={"n": (3, 3)})
    feed = next(iter(batches))
    assert set(feed["ids"].reshape(-1).tolist()) == set(range(9))
    assert set(feed["mask"].reshape(-1).tolist()) == {0, 1}
    assert messages(batches) == [
        "input 'ids': integers from 0 to 8, because Gather look picks from 9",
        "input 'mask': integers 0 or 1, because Cast Cast_0 makes bools of them",
    ]
    assert {(w.code, w.hint) for w in batches.warnings} == {("ML601", "set another range with ranges=...")}
    narrow = model("g (int8[N] i) => (bool[N] y) <int8 k = {127}> { y = Less (k, i) }")
    assert next(iter(random_batches(narrow, 1, dims={"N": 999})))["i"].max() == 127  # the largest int8


@pytest.mark.parametrize(
    ("options", "says", "hint"),
    [
        ({"dims": {"h": 4}}, "no input has a size called 'h'", "did you mean H?"),
        ({"dims": {"depth": 4}}, "no input has a size called 'depth'", "the open sizes are N, H, x.3, L"),
        ({"dims": {"x.1": 4}}, "x.1 is 3 in the model, not 4", "leave it out"),
        ({"dims": {"z*": 4}}, "no open size of an input matches 'z*'", "the open sizes are N, H, x.3, L"),
        ({"dims": {"x.1*": 4}}, "no open size of an input matches 'x.1*'", "the open sizes are N, H, x.3, L"),
        ({"dims": {"x.9": 4}}, "no input has a size called 'x.9'", "the open sizes are N, H, x.3, L"),
        ({"ranges": {"IDs": (0, 1)}}, "the model has no input 'IDs'", "did you mean ids?"),
        ({"ranges": {"ids": (0, 1.5)}}, "'ids': (0, 1.5)} does not fit int64", "whole numbers"),
        ({"ranges": {"ids": (0, 2**63)}}, "does not fit int64", "whole numbers from"),
    ],
)
def test_wrong_names_and_ranges(options: Any, says: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        random_batches(model(PICTURES), 1, **{"dims": SIZES, **options})
    assert says in error.value.message
    assert hint in str(error.value.hint)


@pytest.mark.parametrize(
    ("kind", "bounds", "says"),
    [
        ("float16[N]", (0, 1e6), "is beyond the range of float16"),
        ("bool[N]", (0, 2), "does not fit bool"),
        ("string[N]", (0, 2), "its values have no order"),
        ("uint8[N]", (-1, 2), "does not fit uint8"),
    ],
)
def test_ranges_beyond_the_type(kind: str, bounds: tuple[float, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        random_batches(model_with_inputs(f"{kind} x"), 1, ranges={"x": bounds})


@pytest.mark.parametrize("kind", ["seq(float[N])", "float[]", "optional(float[N])"])
def test_inputs_that_random_data_cannot_fill(kind: str) -> None:
    proto = model_with_inputs(f"{kind} x")
    if kind.startswith("optional"):
        assert list(random_batches(proto, 1)) == [{}]  # an optional may be missing
        return
    with pytest.raises(UsageError, match="input x: ") as error:
        random_batches(proto, 1)
    assert "data=..." in str(error.value.hint)


def test_an_initializer_keeps_its_value_unless_an_option_names_it() -> None:
    text = "g (float[N, 4] x, float[1, 4] w) => (float[N, 4] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add (x, w) }"
    assert list(first_batch(text)) == ["x"]
    assert (first_batch(text, ranges={"w": (5, 5)})["w"] == 5).all()


def test_random_data_runs() -> None:
    text = "g (float[V, 4] table, int64[N, L] ids) => (float[N, L, 4] y) { y = Gather (table, ids) }"
    proto = model(text)
    runner = LocalSession(make_session(proto))
    for feed in random_batches(proto, 4, dims={"V": 10, "L": 6}):
        assert runner.run(None, feed)[0].shape == (1, 6, 4)


@pytest.mark.parametrize(
    ("kinds", "size"),
    [
        ("float[2147483648] x", "8.6 GB"),
        ("float[2147483648,2147483648] x", "18,446,744,073.7 GB"),
        ("float[4194304,4194304,4194304] x", "295,147,905,179.4 GB"),
        ("float16[4611686018427387904] x", "9,223,372,036.9 GB"),
        ("int8[9223372036854775807] x", "9,223,372,036.9 GB"),
        ("string[1073741824] x", "8.6 GB"),
        ("float[N,1000000] x", "8.0 GB"),
    ],
)
def test_sizes_that_cannot_be_allocated(kinds: str, size: str) -> None:
    """Numpy would raise errors of its own for some of these sizes, and work for minutes on others."""
    with pytest.raises(
        UsageError, match=f"random data takes {size} for input x: .*, more than the limit of 1 GB"
    ) as error:
        random_batches(model_with_inputs(kinds), 1, dims={"N": 2000} if "N" in kinds else {})
    assert error.value.hint is not None and "data=..." in error.value.hint


def test_many_inputs_that_cannot_be_allocated_together() -> None:
    kinds = ", ".join(f"float[100000000] x{at}" for at in range(4))
    with pytest.raises(UsageError, match=r"takes 0.4 GB for input x0: .* and 1.6 GB for all inputs, more"):
        random_batches(model_with_inputs(kinds), 1)


# The first layer of a decoder as ONNX Runtime's exporter of language models writes it: the mask gives the lengths.
DECODER = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
g (int64[batch_size, sequence_length] input_ids, int64[batch_size, total_sequence_length] attention_mask,
   float[batch_size, 1, past_sequence_length, 8] past_key, float[batch_size, 1, past_sequence_length, 8] past_value)
=> (float[batch_size, sequence_length, 8] y, float[batch_size, 1, T, 8] present_key,
    float[batch_size, 1, T, 8] present_value)
<float[3, 8] table = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}, int64[1] axis = {1}, int64 one = {1}> {
  hidden = Gather (table, input_ids)
  sums = ReduceSum <keepdims = 0> (attention_mask, axis)
  last = Sub (sums, one)
  lengths = Cast <to = 6> (last)
  shape = Shape (attention_mask)
  size = Gather (shape, one)
  total = Cast <to = 6> (size)
  y, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1>
    (hidden, hidden, hidden, past_key, past_value, lengths, total)
}"""


def test_the_length_of_a_cache_gives_a_decoder_all_sizes() -> None:
    """One new word follows the cache, and the mask covers both."""
    proto = model(DECODER, check=False)
    batches = random_batches(proto, 2, dims={"past_sequence_length": 6})
    feed = next(iter(batches))
    assert feed["input_ids"].shape == (1, 1) and feed["input_ids"].max() < 3
    assert feed["attention_mask"].tolist() == [[1] * 7]
    outputs = LocalSession(make_session(proto)).run(None, feed)
    assert [array.shape for array in outputs] == [(1, 1, 8), (1, 1, 7, 8), (1, 1, 7, 8)]
    assert "size total_sequence_length is not given: 7 is used, the cache and the new words together" in messages(
        batches
    )


def test_options_win_over_the_sizes_of_a_decoder() -> None:
    sizes = {"past_sequence_length": 6, "sequence_length": 3}
    assert first_batch(DECODER, dims=sizes)["attention_mask"].tolist() == [[1] * 9]
    text = "int64[total_length] mask, float[past_sequence_length] past"
    feed = first_batch(text, dims={"past_sequence_length": 4, "total_length": 9})
    assert (feed["mask"].shape, feed["past"].shape) == ((9,), (4,))


def test_without_the_length_of_the_cache_every_open_size_is_named() -> None:
    with pytest.raises(UsageError, match="sequence_length, total_sequence_length, past_sequence_length"):
        first_batch(DECODER, dims={})
