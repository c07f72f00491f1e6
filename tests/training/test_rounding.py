"""The rounding of ATen operators in a running loop, against the same rounding by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import mixlist
from mixlist import Policy
from mixlist.errors import UsageError
from mixlist.lists.op_catalog import ascend_ops, onnx_domains
from mixlist.model.operator_names import ascend_names
from mixlist.training.operators import ModulePosition, OperatorLists, operator_table
from tests.support.builders import policy
from tests.support.extras import import_extra

torch = import_extra("torch")

from mixlist.training.loop_environment import loop_environment  # noqa: E402
from mixlist.training.rounding_mode import FunctionMode, ModuleTracker, RoundingMode, is_low  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
FLOAT16 = torch.float16


def low(tensor: Any, dtype: Any = FLOAT16) -> Any:
    """Return the values of a tensor rounded to the low type, in float32."""
    return tensor.to(dtype).to(torch.float32)


@contextmanager
def rounding(lists: Policy, **options: Any) -> Iterator[RoundingMode]:
    tracker = ModuleTracker()
    mode = RoundingMode(lists, tracker, **options)
    with loop_environment(0, tracker), tracker.hooks(), mode, FunctionMode(mode):
        yield mode


class Network(nn.Module):  # type: ignore[misc, name-defined]  # mypy does not read torch
    """Call a function in the forward of a module."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def random(*shape: int, requires_grad: bool = False) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), requires_grad=requires_grad)


def test_a_white_matmul_rounds_operands_and_results_forward_and_backward() -> None:
    a, b, gradient = random(5, 7, requires_grad=True), random(7, 3, requires_grad=True), random(5, 3)
    with rounding(policy(white=["MatMul"])):
        result = Network(lambda self, x, y: x @ y)(a, b)
        result.backward(gradient)
    assert torch.equal(result, low(low(a) @ low(b)))
    assert is_low(result) and not is_low(a)
    assert torch.equal(a.grad, low(low(gradient) @ low(b).t()))
    assert torch.equal(b.grad, low(low(a).t() @ low(gradient)))


@pytest.mark.parametrize("black_bias", [False, True])
def test_a_white_convolution_rounds_each_result_by_its_own_list(black_bias: bool) -> None:
    """The gradients of input, weight and bias are three operators."""
    conv = nn.Conv2d(3, 4, 3, padding=1)
    x, gradient = random(2, 3, 6, 6, requires_grad=True), random(2, 4, 6, 6)
    names = ["Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "BiasAddGrad"]
    black = names[3:] if black_bias else []
    with rounding(policy(white=set(names) - set(black), black=black, space="ascend")):
        result = conv(x)
        result.backward(gradient)
    weight, bias = (parameter.detach() for parameter in (conv.weight, conv.bias))
    assert torch.equal(result, low(functional.conv2d(low(x.detach()), low(weight), low(bias), padding=1)))
    arguments = (4,), (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (True, True, True)
    exact = torch.ops.aten.convolution_backward(low(gradient), low(x.detach()), low(weight), *arguments)
    assert torch.equal(x.grad, low(exact[0])) and torch.equal(conv.weight.grad, low(exact[1]))
    if black_bias:
        exact = torch.ops.aten.convolution_backward(gradient, x.detach(), weight, *arguments)
        assert torch.equal(conv.bias.grad, exact[2])
    else:
        assert torch.equal(conv.bias.grad, low(exact[2]))


def test_a_white_layer_norm_keeps_its_statistics() -> None:
    norm, x, gradient = nn.LayerNorm(6), random(4, 6, requires_grad=True), random(4, 6)
    with rounding(policy(white=["LayerNormalization"])):
        result = norm(x)
        result.backward(gradient)
    weight, bias, data = norm.weight.detach(), norm.bias.detach(), x.detach()
    exact, mean, rstd = torch.ops.aten.native_layer_norm(low(data), (6,), low(weight), low(bias), norm.eps)
    assert torch.equal(result, low(exact))
    gradients = torch.ops.aten.native_layer_norm_backward(
        low(gradient), low(data), (6,), mean, rstd, low(weight), low(bias), [True, True, True]
    )
    for parameter, expected in zip((x, norm.weight, norm.bias), gradients, strict=True):
        assert torch.equal(parameter.grad, low(expected))


def test_running_statistics_of_batch_normalization_are_exact() -> None:
    norm, same = nn.BatchNorm1d(5), nn.BatchNorm1d(5)
    x = random(8, 5)
    with rounding(policy(white=["BatchNormalization"])):
        result = norm(x)
    assert torch.equal(result, low(same(low(x))))
    assert torch.equal(norm.running_mean, same.running_mean) and torch.equal(norm.running_var, same.running_var)
    assert not is_low(norm.running_mean)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.InstanceNorm2d(8, affine=True)], ids=["batch", "instance"])
@pytest.mark.parametrize("trains", [True, False])
def test_normalizations_behind_a_low_operator_are_low_as_in_autocast(norm: Any, trains: bool) -> None:
    """Their parameters stay float32, and so do the gradients of these: PyTorch takes both types in one call."""
    torch.manual_seed(0)
    real = nn.Sequential(nn.Conv2d(1, 8, 3), copy.deepcopy(norm), nn.ReLU(), nn.MaxPool2d(2)).train(trains)
    same = copy.deepcopy(real)
    x = torch.randn(4, 1, 10, 10)
    with torch.autocast("cpu", torch.float16):
        expected = real(x)
        expected.float().square().mean().backward()
    with rounding(mixlist.load_policy(ops_info="pytorch", gray_policy="promote")) as mode:
        result = same(x)
        assert is_low(result) and expected.dtype is torch.float16
        result.float().square().mean().backward()
    assert torch.allclose(result, expected.float(), rtol=2e-3, atol=2e-3)
    for parameter, other in zip(same.parameters(), real.parameters(), strict=True):
        assert torch.allclose(parameter.grad, other.grad, rtol=0.02, atol=2e-3)
    found = {name: is_low_result for (name, _, is_low_result) in mode.counts}
    assert found["Relu"] and found["MaxPool"]
    assert not torch.equal(same[1].weight.grad, low(same[1].weight.grad))  # it is not rounded


def test_a_relu_in_place_counts_as_its_functional_form() -> None:
    """The precision of a tensor belongs to its storage."""
    a, b, gradient = random(5, 7, requires_grad=True), random(7, 3), random(5, 3)
    with rounding(policy(white=["MatMul"])):  # Relu is gray
        result = Network(lambda self, x: functional.relu(x @ b, inplace=True))(a)
        result.backward(gradient)
    product = low(low(a.detach()) @ low(b))
    assert torch.equal(result, torch.relu(product)) and is_low(result)
    # The gradient comes in float32, so the gradient of the gray Relu stays float32 until the white product reads it.
    assert torch.equal(a.grad, low(low(gradient * (product > 0)) @ low(b).t()))


def test_white_in_place_operators_round_what_they_write() -> None:
    x = random(6, 6)
    with rounding(policy(white=["Relu", "Mul"])):

        def change(_: Any, data: Any) -> Any:
            data = data.clone()
            data.relu_()
            data[1:3].mul_(0.3)
            return data

        result = Network(change)(x)
    expected = low(torch.relu(low(x)))
    expected[1:3] = low(expected[1:3] * 0.3)
    assert torch.equal(result, expected) and is_low(result)


def test_gray_follows_the_first_float_operand() -> None:
    x, w = random(4, 4), random(4, 4)
    with rounding(policy(white=["MatMul"])):
        first = Network(lambda self, x: (x @ w) + w)(x)
        second = Network(lambda self, x: w + (x @ w))(x)
    product = low(low(x) @ low(w))
    assert torch.equal(first, low(product + low(w))) and is_low(first)
    assert torch.equal(second, w + product) and not is_low(second)
    lists = policy(white=["MatMul"], gray_policy="promote")
    with rounding(lists):
        promoted = Network(lambda self, x: (x @ w) + w)(x)
    assert torch.equal(promoted, product + w)


def test_views_copies_and_writes_keep_the_precision_of_their_storage() -> None:
    """The precision of a tensor belongs to its storage."""
    x, w = random(4, 4), random(4, 4)

    def compute(_: Any, x: Any) -> dict[str, Any]:
        product = x @ w
        written = product.clone()
        written[0] = w[0]  # rounded, because the copy is low
        view = product.t().reshape(2, 8)[1]
        return {"view": view, "copy": product.clone(), "like": torch.zeros_like(product), "written": written,
                "random": torch.rand(4)}  # fmt: skip

    with rounding(policy(white=["MatMul"])):
        results = Network(compute)(x)
    assert [name for name, tensor in results.items() if is_low(tensor)] == ["view", "copy", "like", "written"]
    assert torch.equal(results["written"][0], low(w[0]))


def test_only_modules_backward_and_what_needs_gradients_is_rounded() -> None:
    """Operators of modules and of the backward pass are rounded."""
    weight = torch.nn.Parameter(random(3, 3))
    x = random(3, 3)
    with rounding(policy(white=["MatMul", "Mul", "Add"])):
        outside = x @ x
        with torch.no_grad():
            update = weight * 0.1
        followed = weight @ x
    assert torch.equal(outside, x @ x) and torch.equal(update, weight.detach() * 0.1)
    assert torch.equal(followed, low(low(weight.detach()) @ low(x)))


def test_optimizers_and_added_gradients_stay_float32() -> None:
    layer, same = nn.Linear(3, 2), nn.Linear(3, 2)
    same.load_state_dict(layer.state_dict())
    optimizers = [torch.optim.Adam(module.parameters(), lr=0.1) for module in (layer, same)]
    x = random(4, 3)
    everything = mixlist.load_policy(precision_mode_v2="fp16")
    with rounding(everything):
        for _ in range(2):  # the second gradient is added to the first one
            layer(x).sum().backward()
        optimizers[0].step()
    one = torch.ones(4, 2)
    for _ in range(2):
        gradient = low(one.t() @ low(x))
        same.weight.grad = gradient if same.weight.grad is None else same.weight.grad + gradient
        bias = low(one.sum(0))
        same.bias.grad = bias if same.bias.grad is None else same.bias.grad + bias
    optimizers[1].step()
    assert torch.equal(layer.weight, same.weight) and torch.equal(layer.bias, same.bias)


def test_a_number_that_the_low_type_loses_keeps_its_operator_in_float32() -> None:
    """A number that the low type would make zero keeps its operator in float32, as in Rule S4.7."""
    x = random(4)
    with rounding(policy(white=["Add", "Mul", "Where"])):
        masked = x.masked_fill
        results = Network(
            lambda self, x: (x + 1e-12, x * 1e6, x * 2.5, masked(x > 0, -1e9), masked(x > 0, -float("inf")))
        )(x)
    assert [is_low(result) for result in results] == [False, False, True, False, True]
    assert torch.equal(results[0], x + 1e-12) and torch.equal(results[2], low(low(x) * 2.5))


def test_autocast_keeps_no_operator_because_of_a_number() -> None:
    """S4.19: under `ieee` a range of zero plus an epsilon stays zero, as under autocast."""
    with rounding(mixlist.load_policy(ops_info="pytorch", gray_policy="promote")):
        weight = torch.eye(2)
        scale = Network(lambda self, x: (x @ weight) - (x @ weight) + 1e-8)(random(2, 2))
    assert is_low(scale) and not scale.any()


def test_bfloat16_and_saturation() -> None:
    x = torch.tensor([1e5, -1e5, 1.001, float("inf")])
    identity = Network(lambda self, x: x * 1.0)
    with rounding(policy(white=["Mul"], mode="mixed_bfloat16")):
        assert torch.equal(identity(x), low(x, torch.bfloat16))
    with rounding(policy(white=["Mul"]), examines_roundings=True) as mode:
        assert identity(x).tolist()[:2] == [float("inf"), -float("inf")]
        assert mode.overflows
    with rounding(policy(white=["Mul"]), saturate=True, examines_roundings=True) as mode:
        assert identity(x).tolist() == [65504, -65504, low(torch.tensor(1.001)).item(), 65504]
        assert mode.overflows


def test_masks_are_no_overflow() -> None:
    """An overflow in any operator can be an exception; a mask is none."""
    scores = random(3, 3, requires_grad=True)
    mask = torch.full((3, 3), -1e9).triu(1)
    lists = policy(white=["Add", "Softmax", "Where"])
    with rounding(lists, examines_roundings=True) as mode:
        Network(lambda self, x: torch.softmax(x + mask, -1))(scores).sum().backward()
        Network(lambda self, x: torch.softmax(x.masked_fill(mask < 0, -1e9), -1))(scores).sum().backward()
        assert not mode.overflows
        Network(lambda self, x: x * 1e4 * 1e4)(scores.detach().abs().requires_grad_())
        assert not mode.overflows  # Mul is gray here, and follows a float32 tensor
        Network(lambda self, x: (x + 0.0) * 1e4 * 1e4)(scores.detach().abs().requires_grad_())
        assert mode.overflows


def test_the_first_operator_with_an_overflow_is_found_by_module() -> None:
    """The finding names the module of the forward operator, in the backward pass too."""
    lists = policy(white=["Gemm", "MatMul", "Exp"])
    network = Network(lambda self, x: torch.exp(self.dense(x)), dense=nn.Linear(2, 2))
    nn.init.constant_(network.dense.bias, 20.0)
    with rounding(lists, examines_results=True) as mode:
        network(random(3, 2)).sum().backward()
    finding = mode.overflow_start
    assert finding is not None
    assert (finding.module, finding.operator, finding.op_type, finding.list) == ("Network", "exp", "Exp", "white")
    assert finding.is_low and not finding.is_gradient
    network = Network(lambda self, x: self.dense(x), dense=nn.Linear(2, 2))
    with rounding(lists, examines_results=True) as mode:
        (network(random(3, 2)) * 1e6).sum().backward()  # the gradients of Gemm are products that read 1e6
    assert mode.overflow_start is not None
    start = mode.overflow_start
    assert (start.module, start.is_gradient, start.op_type) == ("dense", True, "MatMul")


def test_operators_in_lstm_have_its_name() -> None:
    """The names of Ascend and ONNX for a module that an accelerator runs as one operator."""
    lstm, x = nn.LSTM(3, 4), random(5, 2, 3, requires_grad=True)
    with rounding(
        policy(black=["DynamicRNN", "DynamicRNNGrad"], white=["MatMulV2", "Mul", "Add"], space="ascend")
    ) as mode:
        lstm(x)[0].sum().backward()
        assert not any(is_low for *_, is_low in mode.counts)
    with rounding(policy(white=["LSTM"])):
        result = lstm(x)[0]
    assert is_low(result)


def test_checkpoints_and_recomputation_belong_to_their_modules() -> None:
    from torch.utils.checkpoint import checkpoint

    lists = policy(white=["Gemm", "MatMul", "Mul"])
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    x = random(3, 4, requires_grad=True)
    gradients = []
    for run in (
        layers,
        lambda x: checkpoint(layers, x, use_reentrant=False),
        lambda x: checkpoint(layers, x, use_reentrant=True),
    ):
        x.grad = layers[0].weight.grad = None
        with rounding(lists) as mode:
            run(x).square().sum().backward()
        assert mode.tracker.note_position() == (ModulePosition(), False)  # nothing is left on the stack
        gradients.append((x.grad.clone(), layers[0].weight.grad.clone()))
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))


def test_half_precision_is_refused_with_module_and_operator() -> None:
    """Nothing else rounds."""
    network = Network(lambda self, x: self.dense(x), dense=nn.Linear(2, 2).half())
    with rounding(policy(white=["Gemm"])), pytest.raises(UsageError, match=r"dense: addmm reads a float16 tensor"):
        network(random(3, 2).half())


def test_autocast_compile_and_fused_attention_are_switched_off() -> None:
    """Nothing else rounds or fuses."""
    query = random(1, 2, 4, 8)
    with loop_environment(0, ModuleTracker()) as switched_off:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert nn.Linear(2, 2)(random(3, 2)).dtype is torch.float32
        assert torch.compile(nn.Linear(2, 2))(random(3, 2)).shape == (3, 2)
        assert switched_off == {"autocast", "bfloat16", "compile"}
    with rounding(policy(white=["Softmax"], black=["MatMul"])) as mode:
        Network(lambda self, q: functional.scaled_dot_product_attention(q, q, q, is_causal=True))(query)
    assert [count for (*_, is_low), count in mode.counts.items() if is_low] == [1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nn.Linear(2, 2)(random(3, 2)).dtype is torch.bfloat16


@pytest.mark.parametrize(
    "pattern", ["block", "block/*", "block.0", "./block", "Network/block/0", "b*k", "OpType::Gemm"]
)
def test_node_rules_name_modules(pattern: str, tmp_path: Any) -> None:
    """Node rules of a training name modules."""
    (tmp_path / "keep.txt").write_text(f"{pattern}\nnone/*\n")
    lists = mixlist.load_policy(ops_info="onnx", keep_dtype=tmp_path / "keep.txt")
    network = Network(lambda self, x: self.block(x), block=nn.Sequential(nn.Linear(4, 4)))
    x = random(3, 4, requires_grad=True)
    with rounding(lists) as mode:
        result = network(x)
        result.sum().backward()
        assert [warning.message for warning in mode.lists.find_warnings()] == ["no module that ran is called 'none/*'"]
    layer = network.block[0]
    assert torch.equal(result, x @ layer.weight.t() + layer.bias)


def test_customize_dtypes_has_one_type_for_a_module(tmp_path: Any) -> None:
    """A customize_dtypes rule must have one type for all slots."""
    rule = tmp_path / "customize.txt"
    rule.write_text("act::InputDtype:float16,OutputDtype:float16\n")
    with rounding(mixlist.load_policy(customize_dtypes=rule)):
        assert is_low(Network(lambda self, x: self.act(x), act=nn.Softmax(-1))(random(3, 4)))
    rule.write_text("act::InputDtype:float16,OutputDtype:float32\n")
    with pytest.raises(UsageError, match="one type to all slots"):
        OperatorLists(mixlist.load_policy(customize_dtypes=rule))


def test_one_layer_is_low_under_origin(tmp_path: Any) -> None:
    """MindSpore's ``net.dense.to_float(mstype.float16)``: the other operators stay in float32 (Rule S3.5)."""
    rule = tmp_path / "one.txt"
    rule.write_text("dense::InputDtype:float16,float16,OutputDtype:float16\n")
    lists = mixlist.load_policy(precision_mode_v2="origin", customize_dtypes=rule)
    network = Network(lambda self, x: (self.dense(x), self.act(x)), dense=nn.Linear(4, 4), act=nn.Softmax(-1))
    with rounding(lists):
        low, high = network(random(3, 4))
    assert is_low(low) and not is_low(high)


@pytest.mark.parametrize("name", ["l1_loss", "cross_entropy", "mse_loss", "huber_loss", "poisson_nll_loss"])
def test_a_loss_is_float32_where_its_library_says_so(name: str) -> None:
    """MindSpore's O2 makes the rest low, and sets the loss layer to float32; so does autocast."""
    loss, x = getattr(functional, name), random(4, 3, requires_grad=True)
    targets = torch.tensor([0, 1, 2, 0]) if name == "cross_entropy" else random(4, 3)
    for library in ("mindspore-o2", "pytorch", "mindspore-o1", "nnabla-half"):
        with rounding(mixlist.load_policy(ops_info=library)):
            result = loss(Network(lambda self, x: x * 1.0)(x), targets)
        y = x.detach() if library in ("pytorch", "mindspore-o1") else low(x.detach())
        assert torch.equal(result, loss(y, targets)) and not is_low(result), library


def test_rsqrt_and_erfinv_have_names_of_their_own() -> None:
    x = random(4, requires_grad=True).abs().clamp(0.1, 0.9)
    lists = policy(white=["Sqrt", "Erf", "aten::erfinv"], black=["aten::rsqrt"])
    with rounding(lists):
        results = [Network(lambda self, x, f=f: f(x))(x) for f in (torch.rsqrt, torch.erfinv, torch.sqrt)]
    assert [is_low(result) for result in results] == [False, True, True]


def test_sync_batch_normalization_keeps_its_statistics() -> None:
    """Its kernels are for accelerators: the decisions on their results."""
    lists = OperatorLists(policy(white=["BatchNormalization"]))
    names = ("batch_norm_stats", "batch_norm_elemt", "batch_norm_backward_reduce", "batch_norm_backward_elemt")
    decided = [[d.list for d in lists.decide(name, ModulePosition(), 4, is_gradient=False)] for name in names]
    assert decided == [[None], ["white"], [None, None, "white", "white"], ["white"]]


def test_unlisted_operators_are_gray_and_counted() -> None:
    """An operator without an entry follows its operands."""
    with rounding(policy(white=["MatMul"])) as mode:
        result = Network(lambda self, x: torch.special.bessel_j0(x @ x))(random(3, 3))
    assert is_low(result) and mode.lists.unlisted == {"special_bessel_j0": 1}


@pytest.mark.parametrize("mode", ["fp16", "origin", "cube_fp16in_fp32out"])
def test_modes(mode: str) -> None:
    """A mode that leaves every operator in float32 has no mixed training."""
    lists = mixlist.load_policy(precision_mode_v2=mode)
    if mode != "fp16":
        with pytest.raises(UsageError, match=f"{mode} leaves every operator in float32"):
            OperatorLists(lists)
        return
    with rounding(lists):
        assert is_low(Network(lambda self, x: torch.softmax(x, -1))(random(3, 4)))


def test_gray_policies_that_look_ahead_are_refused() -> None:
    with pytest.raises(UsageError, match="between reads operators that have not run yet"):
        OperatorLists(policy(gray_policy="between"))


def _is_composite(name: str) -> bool:
    """Return whether an operator without an alias always runs as other operators: a mode meets those."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    known = [overload for overload in overloads if torch._C._dispatch_has_kernel(overload.name())]
    has_alias = any(result.alias_info is not None for overload in known for result in overload._schema.returns)

    def has(overload: Any, key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)

    fused_on_cuda = {"_fused_rms_norm"}
    return (
        bool(known)
        and not has_alias
        and name not in fused_on_cuda
        and all(has(overload, "CompositeImplicitAutograd") and not has(overload, "CPU") for overload in known)
    )


def test_the_table_has_only_names_that_exist() -> None:
    """ATen operators have the names of ONNX and Ascend."""
    table = operator_table()
    of_modules = [(module.forward, module.gradient) for module in table.modules.values()]
    entries = [entry for entries in (*table.operators.values(), *of_modules) for entry in entries]
    assert {name for module in table.modules.values() for name in module.operators} <= set(table.operators)
    names = {entry.onnx for entry in entries if entry is not None} | {entry.onnx for entry in table.functions.values()}
    own = {name.removeprefix("aten::") for name in names if name.startswith("aten::")}
    assert names - {f"aten::{name}" for name in own} <= set(onnx_domains()[""])
    for name in own:
        assert hasattr(torch.ops.aten, name) or hasattr(functional, name), name
    assert all(hasattr(functional, name) for name in table.functions)
    # The built-in libraries have an entry for each, and so has the default.
    entries_of_default = mixlist.load_policy().lists.library.lists
    assert {f"aten::{name}" for name in own} == {op for op in entries_of_default if "aten::" in op}
    # Without Ascend op types of its own, an entry has those of the map of ONNX operators.
    own = [entry for entry in entries if entry is not None and entry.ascend != ascend_names("", entry.onnx)]
    assert {name for entry in own for name in entry.ascend} <= set(ascend_ops())
    assert not table.moves & set(table.operators)
    for name in (*table.operators, *table.moves):
        assert not _is_composite(name), f"{name}: decompose() covers it"
        base = name.removesuffix(".transposed")
        assert hasattr(torch.ops.aten, base) or hasattr(torch.ops.aten, f"{base}_"), name


def test_parameters_and_buffers_stay_float32() -> None:
    """What a forward writes in place into a buffer is no activation."""

    class Counting(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("average", torch.ones(3))

        def forward(self, x: Any) -> Any:
            self.average.mul_(0.9999).add_(x.mean(0), alpha=0.0001)
            return x * self.average

    network, x = Counting(), random(4, 3)
    with rounding(mixlist.load_policy(precision_mode_v2="fp16")):
        network(x)
    assert not is_low(network.average)
    assert torch.equal(network.average, torch.ones(3) * 0.9999 + 0.0001 * low(low(x).mean(0)))


def test_a_part_of_a_tensor_does_not_mark_the_whole() -> None:
    """The mark means that every value in the storage is rounded."""
    data = random(6, 3)
    expected = data.clone()
    with rounding(policy(white=["Mul"])):
        Network(lambda self, x: x[:, 0].mul_(2.0))(data)
        assert not is_low(data)
        complex_parts = Network(lambda self, x: x * 1.0)(random(4, 2))
        assert is_low(complex_parts)
        torch.view_as_complex(complex_parts).mul_(torch.tensor(0.3 + 0.1j))
        assert not is_low(complex_parts)
    expected[:, 0] = low(low(expected[:, 0]) * 2)
    assert torch.equal(data, expected)


def test_new_tensors_are_no_overflow() -> None:
    """The memory of a new tensor has no meaning; dropout on a CPU fills one."""
    x = random(64, 64, requires_grad=True)
    network = Network(lambda self, x: functional.dropout(self.act(x) * 1.0, 0.5, training=True), act=nn.Softmax(-1))
    with rounding(policy(white=["Softmax", "Mul", "Div"]), examines_roundings=True) as mode:
        for _ in range(20):
            garbage = torch.full((64, 64), 1e30)  # memory that is used again
            del garbage
            network(x).sum().backward()
        assert not mode.overflows


def test_a_gradient_belongs_to_the_module_of_its_forward_operator() -> None:
    """Views, custom functions, checkpoints and second derivatives, too."""
    from torch.utils.checkpoint import checkpoint

    class Square(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            (x,) = context.saved_tensors
            return 2 * x * gradients[0]

    positions: set[tuple[str, str, bool]] = set()

    class Noting(OperatorLists):
        def decide(self, operator: str, position: ModulePosition, rank: int | None, *, is_gradient: bool) -> Any:
            positions.add((operator, str(position), is_gradient))
            return super().decide(operator, position, rank, is_gradient=is_gradient)

    def run(forward: Callable[..., Any], second: bool = False) -> set[tuple[str, str, bool]]:
        positions.clear()
        network = Network(
            forward, a=Network(lambda self, x: Square.apply(x)), b=nn.Sequential(nn.Tanh(), nn.Linear(3, 3))
        )
        x = random(4, 3, requires_grad=True)
        lists = policy(white=["Mul"])
        with rounding(lists) as mode:
            mode.lists = Noting(lists)
            result = network(x).sum()
            if second:
                (gradient,) = torch.autograd.grad(result, x, create_graph=True)
                result = gradient.square().sum()
            result.backward()
        return positions

    found = run(lambda self, x: self.b(self.a(x)))
    assert {("mul", "a", False), ("mul", "a", True), ("tanh", "b/0", False), ("tanh_backward", "b/0", True)} <= found
    assert ("mm", "b/1", True) in found
    for reentrant in (False, True):
        again = run(lambda self, x: checkpoint(self.b, self.a(x), use_reentrant=reentrant))  # noqa: B023
        assert again == found, reentrant
    second = run(lambda self, x: self.b(x), second=True)
    assert {path for operator, path, is_gradient in second if operator == "mm"} == {"b/1"}
    assert ("mul", "b/0", True) in second  # of the derivative of tanh_backward


def test_a_submodule_that_is_called_alone_keeps_its_path() -> None:
    network = Network(lambda self, x: self.block(x), block=nn.Sequential(nn.Linear(3, 3)))
    with rounding(policy(white=["Gemm"]), examines_results=True) as mode:
        network(random(2, 3))
        network.block(torch.full((2, 3), 1e5))
    assert mode.overflow_start is not None and mode.overflow_start.module == "block/0"


def test_only_the_modules_of_torch_have_the_name_of_one_operator() -> None:
    """A class of the user's that is called LSTM is no LSTM."""

    class LSTM(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x.exp()

    class Mine(nn.LSTM):  # type: ignore[misc, name-defined]
        pass

    with rounding(policy(white=["LSTM"])):
        assert not is_low(LSTM()(random(3, 3)))
        assert is_low(Mine(3, 4)(random(5, 2, 3))[0])


def test_statistics_of_instance_normalization_and_losses_stay_float32() -> None:
    norm, same = (nn.InstanceNorm2d(3, track_running_stats=True) for _ in range(2))
    x = random(2, 3, 4, 4)
    everything = mixlist.load_policy(precision_mode_v2="fp16")
    with rounding(policy(white=["InstanceNormalization"])):
        norm(x)
    same(low(x))
    assert torch.equal(norm.running_mean, same.running_mean)
    logits = torch.zeros(70000, 2, requires_grad=True)
    with rounding(everything):
        functional.cross_entropy(
            Network(lambda self, x: x * 1.0)(logits), torch.zeros(70000, dtype=torch.int64)
        ).backward()
    assert logits.grad.abs().sum() > 0


def test_operators_that_change_an_auxiliary_tensor_round_their_result() -> None:
    with rounding(mixlist.load_policy(precision_mode_v2="fp16")):
        assert is_low(Network(lambda self, x: functional.rrelu(x, training=True))(random(4, 4)))
        x = random(4)
        Network(lambda self, x: x.unsqueeze_(1).squeeze_(1))(x)
    assert torch.equal(x, random(4)) and not is_low(x)


def test_copies_keep_their_precision_in_inference_mode() -> None:
    with rounding(policy(white=["MatMul"])), torch.inference_mode():
        result = Network(lambda self, x: torch.relu((x @ x).t().contiguous().reshape(-1)))(random(3, 3))
        assert is_low(result)


def test_nested_tensors_are_refused_and_casts_from_float16_are_not() -> None:
    """A float16 or bfloat16 tensor in an operator that would be rounded is an error."""
    with rounding(policy(white=["Gemm"])):
        Network(lambda self, x: self.dense(x.float()), dense=nn.Linear(3, 3))(random(2, 3).half())
        nested = torch.nested.nested_tensor([random(2, 3), random(3, 3)], layout=torch.jagged)
        with pytest.raises(UsageError, match="nested tensor"):
            Network(lambda self, x: torch.relu(x))(nested)


def test_with_everything_black_a_training_is_that_of_torch_bit_for_bit() -> None:
    """Dropout, attention, batch normalization, in-place operators and views, forward and backward."""

    def train(mode: bool) -> list[Any]:
        with loop_environment(3, ModuleTracker()):
            attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
            network = nn.Sequential(
                nn.Linear(8, 8), nn.BatchNorm1d(5), nn.ReLU(inplace=True), attention, nn.Linear(8, 2)
            )
            optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
            losses = []
            tracker = ModuleTracker()
            black = RoundingMode(policy(black=list(onnx_domains()[""])), tracker)
            with tracker.hooks():
                for _ in range(4):
                    if mode:
                        black.__enter__()
                    loss = network(torch.randn(6, 5, 8))[:, 0].square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if mode:
                        black.__exit__(None, None, None)
                    losses.append(loss.item())
            return [*losses, *(value.clone() for value in network.state_dict().values())]

    plain, rounded = train(mode=False), train(mode=True)
    assert plain[:4] == rounded[:4]
    assert all(torch.equal(a, b) for a, b in zip(plain[4:], rounded[4:], strict=True))


# --- what the author of the loop decides ---


def test_a_region_without_autocast_is_float32_forward_and_backward() -> None:
    """Also a module that it calls, and with an autocast around it."""
    x, inner, outer = random(4, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self: Any, x: Any) -> Any:
        with torch.autocast("cpu", torch.float16), torch.autocast("cpu", enabled=False):
            y = self.inner(x)
        return self.outer(y)

    with rounding(policy(white=["MatMul"])):
        result = Network(forward, inner=inner, outer=outer)(x)
        result.sum().backward()
    exact = x @ inner.weight.detach().t()
    assert torch.equal(result, low(low(exact) @ low(outer.weight.detach()).t()))
    gradient = low(low(torch.ones(4, 8)) @ low(outer.weight.detach()))
    assert torch.equal(inner.weight.grad, gradient.t() @ x)


def test_an_enabled_region_inside_of_a_disabled_one_follows_the_lists() -> None:
    x = random(4, 8)
    with rounding(policy(white=["MatMul"])), torch.autocast("cpu", enabled=False), torch.autocast("cuda"):
        assert torch.equal(Network(lambda self, x: x @ x.t())(x), low(low(x) @ low(x).t()))


@pytest.mark.parametrize(
    "cast", [lambda y: y.float(), lambda y: y.to(torch.float32), lambda y: y.to("cpu", torch.float32)]
)
def test_a_cast_to_float32_ends_low_precision_and_rounds_the_gradient(cast: Callable[[Any], Any]) -> None:
    x = random(4, 8, requires_grad=True)
    with rounding(policy(white=["MatMul"])):
        low_result = Network(lambda self, x: x @ x.t())(x)
        assert low_result.to(low_result.detach() + 1) is low_result  # of the type of another tensor
        result = cast(low_result)
        assert is_low(low_result) and not is_low(result) and not is_low(result * 3)
        (gradient,) = torch.autograd.grad((result * (1 / 3)).sum(), low_result)
    assert torch.equal(result, low_result) and torch.equal(gradient, low(torch.full((4, 4), 1 / 3)))
    assert "float" not in vars(torch.Tensor) and "to" not in vars(torch.Tensor)


def test_what_a_checkpoint_computes_again_follows_the_lists() -> None:
    """PyTorch restores the state of autocast there, which is off."""
    x, seen = random(4, 8, requires_grad=True), []

    def forward(self: Any, x: Any) -> Any:
        y = x @ x.t()
        seen.append(is_low(y))
        return y.sin()

    network = Network(forward)
    with rounding(policy(white=["MatMul"])):
        torch.utils.checkpoint.checkpoint(network, x, use_reentrant=False).sum().backward()
    assert seen == [True, True]


def test_a_black_gradient_of_a_normalization_stays_float32_beside_gray_ones() -> None:
    """An Ascend chip has names of its own for the gradients of the input and of the parameters."""
    lists = policy(black=["BNTrainingReduceGrad"], white=["Conv2D"], space="ascend", gray_policy="promote")
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with rounding(lists) as mode:
        network(torch.randn(2, 1, 5, 5)).sum().backward()
    assert not any(is_low_result for (name, _, is_low_result) in mode.counts if name == "BNTrainingReduceGrad")
