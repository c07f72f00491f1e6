"""Round the operators of a running PyTorch loop as the lists decide.

An operator is in the mixed precision of the lists if it runs in the forward of a module, in the backward pass, or where
gradients are enabled and one of its operands needs one. It is float32 in ``Optimizer.step``, where the gradient of a
parameter is added up, and in the loss scale. White: operands and results are rounded. Black: float32. Gray: low if its
first float operand is; with the gray policy ``promote``, if all are, but of a normalization its input alone: its
parameters and their gradients stay float32 then, as in torch.autocast. Statistics of normalizations stay float32, and
so does an operator with a number that the low type would make infinite or zero, as in Rule S4.7. A float16 or bfloat16
tensor in an operator that would be rounded is an error.

PyTorch hands every ATen operator to an active ``TorchDispatchMode``, below autograd: those of the forward pass, and
those that autograd calls in the backward pass. ``RoundingMode`` computes each of them in float32. If an operator is in
low precision, its operands are rounded to the low type before it runs, and its results afterwards.

A tensor in low precision is a float32 tensor whose storage has the mark ``mixlist_low``: all of its values can be
represented in the low type. The mark belongs to the storage, so that views share it. A copy has the precision of the
tensor that it copies, and random numbers and new tensors that of the tensor that they are made like, else float32. An
operator in place counts as its functional form. What is written into a part of a low tensor is rounded; a storage of
which only a part was rounded is float32. Parameters and buffers of modules are float32, whatever is written into them.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mixlist.errors import UsageError
from mixlist.lists.policy import Policy
from mixlist.training.operators import ModulePosition, OperatorLists, ResultDecision, operator_table
from mixlist.training.result import LargestValues, OverflowStart

_HALF_TYPES = (torch.float16, torch.bfloat16)
# Operands of normalizations that every accelerator keeps in float32: statistics, and running averages that the operator
# writes although its schema does not say so.
_STATISTICS = frozenset(
    {"mean", "rstd", "save_mean", "save_invstd", "save_var", "running_mean", "running_var", "total_weight"}
    | {"invstd", "sum_dy", "sum_dy_xmu", "count", "counts"}  # of SyncBatchNorm
    | {"scale", "zero_point", "running_min", "running_max"}  # of quantization
)
# Scalars that are operands, and not attributes such as the epsilon of a normalization.
_SCALAR_OPERANDS = frozenset({"other", "exponent", "value", "min", "max"})
# Normalizations that take a low input and float32 parameters, as in torch.autocast: their result is low, and the
# gradients of the parameters are float32.
_NORMALIZATIONS = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm"})
_NORMALIZATIONS |= {f"{name}_backward" for name in _NORMALIZATIONS} | {
    "_batch_norm_no_update", "_batch_norm_with_update", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "batch_norm_backward", "batch_norm_backward_elemt",
    "batch_norm_backward_reduce", "batch_norm_elemt", "miopen_batch_norm", "miopen_batch_norm_backward",
}  # fmt: skip
# Operators that turn large negative values into zeros: a mask has the same effect there if it becomes minus infinity.
_MASK_READERS = frozenset({"_softmax", "_safe_softmax", "_log_softmax", "logsumexp"})
_ACCUMULATION = "torch::autograd::AccumulateGrad"
_INSIDE_OPTIMIZER = ModulePosition(root="optimizer")


@dataclass(frozen=True, slots=True)
class OperatorForm:
    """The facts about an ATen operator that follow from its schema and its names.

    - ``name``: without overload and trailing underscore.
    - ``kind``: "pass" runs as it is (a view, an operator outside of ATen, or one whose result is no tensor); "move"
      copies or makes values; "compute" computes values; "unlisted" is not in the table: it may consist of other
      operators.
    - ``operands``: the arguments that can be tensors. ``scalars``: arguments that can be Python numbers and count as
      operands. ``written``: the arguments that the operator changes. ``in_place``: whether its result is one of these.
      ``output_mask``: the argument that selects the results to compute, by position; None if there is none.
    """

    name: str
    kind: Literal["pass", "move", "compute", "unlisted"]
    operands: tuple[tuple[int, str], ...]
    scalars: tuple[tuple[int, str], ...]
    written: tuple[tuple[int, str], ...]
    in_place: bool
    output_mask: int | None


@cache
def operator_form(operator: Any) -> OperatorForm:
    """Return the facts about an ``OpOverload``."""
    schema, table = operator._schema, operator_table()
    namespace, _, name = schema.name.partition("::")
    name = name.removesuffix("_")
    arguments = [(index, argument) for index, argument in enumerate(schema.arguments)]
    written = tuple(
        (i, a.name)
        for i, a in arguments
        if a.alias_info is not None and a.alias_info.is_write and a.name not in _STATISTICS
    )
    operands = tuple(
        (i, a.name) for i, a in arguments if "Tensor" in str(a.type) and a.name not in _STATISTICS and not a.is_out
    )
    is_alias = any(result.alias_info is not None for result in schema.returns)
    has_results = any("Tensor" in str(result.type) for result in schema.returns)
    kind: Literal["pass", "move", "compute", "unlisted"] = "unlisted"
    if namespace == "aten" and name in table.moves:
        kind = "move"
    elif namespace != "aten" or (is_alias and not written) or not (operands or written) or not has_results:
        kind = "pass"  # a view, or without a tensor as its result, such as item()
    elif name in table.operators:
        kind = "compute"
    scalars = tuple((i, a.name) for i, a in arguments if a.name in _SCALAR_OPERANDS)
    output_mask = next((i for i, a in arguments if a.name == "output_mask"), None)
    return OperatorForm(name, kind, operands, scalars, written, bool(written) and is_alias, output_mask)


def is_low(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in low precision: all values in its storage can be represented in the low type."""
    storage = _storage(tensor)
    # A parameter that was made from a low result holds low values only until its first update, so it counts as high.
    return storage is not None and getattr(storage, "mixlist_low", False) and not isinstance(tensor, torch.nn.Parameter)


def mark_high(tensor: torch.Tensor) -> None:
    """Forget that a tensor was in low precision, because its values changed."""
    storage = _storage(tensor, any_type=True)
    if hasattr(storage, "mixlist_low"):
        storage.mixlist_low = False


def _mark_low(tensor: torch.Tensor) -> None:
    """Mark a tensor whose values were rounded, unless its storage has other values, too."""
    storage = _storage(tensor)
    if storage is not None and tensor.numel() * tensor.element_size() >= storage.nbytes():
        # PyTorch keeps the Python object of a storage alive, with its attributes.
        storage.mixlist_low = True


def _is_kept(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a parameter or a buffer of a module: these stay float32."""
    storage = _storage(tensor)
    return storage is not None and getattr(storage, "mixlist_kept", False)


def _storage(tensor: torch.Tensor, *, any_type: bool = False) -> Any:
    """Return the storage of a float32 tensor; None for other types, and for sparse tensors, which have none."""
    if tensor.layout is not torch.strided or tensor.is_nested or not (any_type or tensor.dtype is torch.float32):
        return None
    try:
        return tensor.untyped_storage()
    except NotImplementedError:  # a parameter inside of torch.func, which wraps another tensor
        return None


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all values of a tensor are finite; True for types other than float32, and for sparse tensors."""
    return _storage(tensor) is None or bool(torch.isfinite(tensor).all())


def _tensors(values: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in an argument or a result: a tensor, or a list or tuple of them."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


def _with_tensors(values: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return an argument or a result with its tensors converted."""
    if isinstance(values, torch.Tensor):
        return convert(values)
    if isinstance(values, list | tuple) and any(isinstance(value, torch.Tensor) for value in values):
        return type(values)([_with_tensors(value, convert) for value in values])
    return values


@dataclass(frozen=True, slots=True)
class _RunningModule:
    """A module whose forward runs, or an optimizer whose step runs.

    ``node_number``: the number of the autograd node in which it began; None if in none.
    """

    owner: object
    position: ModulePosition
    node_number: int | None


class ModuleTracker:
    """Finds the module that each operator belongs to: by hooks in the forward pass, and by node in the backward pass.

    autograd numbers its nodes in the order in which they are made. A backward operator belongs to the module whose
    forward made its node. PyTorch has no public function for these numbers; ``torch.utils.module_tracker`` uses private
    ones, too.
    """

    def __init__(self) -> None:
        self._running: list[_RunningModule] = []  # the innermost one last
        self._positions: WeakKeyDictionary[torch.nn.Module, ModulePosition] = WeakKeyDictionary()
        self._roots: WeakSet[torch.nn.Module] = WeakSet()
        # From the node ``_starts[k]`` on, nodes belong to ``_owners[k]``.
        self._starts: list[int] = []
        self._owners: list[ModulePosition] = []
        self._earlier = 0  # the length of these lists at the last update
        # By number, the nodes that a backward pass made, for a second backward pass.
        self._gradient_nodes: dict[int, ModulePosition] = {}

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Follow the modules and optimizers of the process."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),  # also if the forward raises an error
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._push(optimizer, _INSIDE_OPTIMIZER)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._leave(optimizer)),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: torch.nn.Module, _inputs: object) -> None:
        parent = self._running[-1].position if self._running else ModulePosition()
        if module not in self._positions:
            if not parent.root or parent is _INSIDE_OPTIMIZER:
                self._add_root(module)
            else:  # made in the forward of another module
                path = f"{parent.path}/{type(module).__name__}".strip("/")
                self._positions[module] = ModulePosition(path, parent.root, _torch_class(module))
        position = self._positions[module]
        self._push(module, replace(position, is_float32=True) if parent.is_float32 else position)

    def _add_root(self, root: torch.nn.Module) -> None:
        """Note the paths of all modules in a module that the loop calls, and that their tensors stay float32."""
        self._roots.add(root)
        for name, module in root.named_modules():
            path = name.replace(".", "/")
            self._positions[module] = ModulePosition(path, type(root).__name__, _torch_class(module))
        for tensor in (*root.parameters(), *root.buffers()):
            storage = _storage(tensor)
            if storage is not None:
                storage.mixlist_low, storage.mixlist_kept = False, True

    def enter_region(self, region: object, *, is_float32: bool) -> None:
        """Note that a region of ``torch.autocast`` begins; a disabled one is float32."""
        position = self._running[-1].position if self._running else ModulePosition()
        if position is not _INSIDE_OPTIMIZER:
            self._push(region, replace(position, is_float32=is_float32))

    def leave_region(self, region: object) -> None:
        """Note that a region ends."""
        if any(running.owner is region for running in self._running):
            self._leave(region)

    @contextmanager
    def function(self, name: str) -> Iterator[None]:
        """Note that a loss of several operators runs."""
        position, owner = self._running[-1].position if self._running else ModulePosition(), object()
        self._push(owner, replace(position, function=name))
        try:
            yield
        finally:
            self._leave(owner)

    def _push(self, owner: object, position: ModulePosition) -> None:
        self._running.append(_RunningModule(owner, position, _node_number()))
        self._note_owner(position)

    def _leave(self, owner: object, *_: object) -> None:
        while self._running and self._running.pop().owner is not owner:
            pass  # an optimizer that raised an error has not left
        self._note_owner(self._running[-1].position if self._running else ModulePosition())

    def _note_owner(self, position: ModulePosition) -> None:
        """Note the module to which the next nodes belong."""
        number = torch._C._autograd._get_sequence_nr()
        # A backward pass on a GPU runs in a thread with numbers of its own: what it computes again keeps its old owner.
        if not self._starts or number >= self._starts[-1]:
            self._starts.append(number)
            self._owners.append(position)

    def start_update(self) -> None:
        """Forget the nodes of the update before the last one; those of the last one can live on in a graph."""
        del self._starts[: self._earlier], self._owners[: self._earlier]
        self._earlier = len(self._starts)
        self._gradient_nodes.clear()

    def note_position(self) -> tuple[ModulePosition, bool] | None:
        """Return the module of the operator that runs now, and whether it runs in the backward pass.

        The result is None in an optimizer, and where autograd adds up the gradients of a parameter. In a backward pass
        whose gradients have gradients, the module is also noted for the autograd node of the operator.
        """
        node = torch._C._current_autograd_node()
        number: int | None = None if node is None else node._sequence_nr()
        # A checkpoint runs the forward of its modules again, inside of a node.
        if self._running and self._running[-1].node_number == number:
            position = self._running[-1].position
            return None if position is _INSIDE_OPTIMIZER else (position, False)
        if number is None:
            return ModulePosition(), False
        if node.name() == _ACCUMULATION:
            return None
        if number in self._gradient_nodes:
            position = self._gradient_nodes[number]
        else:
            index = bisect_right(self._starts, number) - 1
            position = self._owners[index] if index >= 0 else ModulePosition()
        if torch.is_grad_enabled():  # the gradients have gradients: the operator can have a node, which was made last
            self._gradient_nodes.setdefault(torch._C._autograd._get_sequence_nr() - 1, position)
        return position, True

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Yield the parameters of all modules that ran."""
        for root in self._roots:
            yield from root.parameters()

    def parameter_names(self) -> dict[int, str]:
        """Return the names of the parameters of all modules that ran, by the id of the parameter."""
        names: dict[int, str] = {}
        counts: dict[str, int] = {}
        for root in self._roots:
            for name, parameter in root.named_parameters():
                if id(parameter) not in names:
                    counts[name] = counts.get(name, 0) + 1
                    names[id(parameter)] = name if counts[name] == 1 else f"{name} ({counts[name]})"
        return names


def _node_number() -> int | None:
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def _torch_class(module: torch.nn.Module) -> str:
    """Return the name of the class of PyTorch that a module is."""
    return next(kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn.modules"))


class RoundingMode(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not typed here
    """Run the operators of a loop in mixed precision while the mode is entered.

    ``saturate``: a value out of range becomes the largest finite value. ``examines_roundings``: look for overflow in
    every rounding; ``overflows`` is then True after one, until ``start_update``. ``examines_results``:
    ``overflow_start`` is the first operator since ``start_update`` whose result is not finite although its operands are
    finite; with ``examines_roundings``, an overflow in the operator counts, too. ``largest_values``: set it to an empty
    dict to collect the largest values that become low, by module; None collects nothing.
    """

    def __init__(
        self,
        policy: Policy,
        tracker: ModuleTracker,
        *,
        saturate: bool = False,
        examines_roundings: bool = False,
        examines_results: bool = False,
    ) -> None:
        super().__init__()
        self.lists, self.tracker = OperatorLists(policy), tracker
        self.low_type = torch.float16 if policy.mode.low == "float16" else torch.bfloat16
        self.largest = torch.finfo(self.low_type).max
        self.promote = policy.gray_policy == "promote"
        self.keeps_constants = policy.constants != "ieee"  # Rule S4.19
        self.saturate = saturate
        self.examines_roundings, self.examines_results = examines_roundings, examines_results
        # The number of operators so far, by the name in the lists, the list, and whether a result was low.
        self.counts: Counter[tuple[str, str, bool]] = Counter()
        self.overflows = False
        self.overflow_start: OverflowStart | None = None
        self.largest_values: LargestValues | None = None
        self._paused = threading.local()
        self._decisions: dict[tuple[str, ModulePosition, int | None, bool], tuple[ResultDecision, ...]] = {}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run the operators of this thread as they are: those of the loss scale."""
        before = getattr(self._paused, "value", False)
        self._paused.value = True
        try:
            yield
        finally:
            self._paused.value = before

    def start_update(self) -> None:
        """Forget the overflow of the update before."""
        self.overflows, self.overflow_start = False, None
        self.tracker.start_update()

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        form = operator_form(func)
        if form.kind == "pass":
            if torch.is_grad_enabled():
                self.tracker.note_position()  # a view has an autograd node, too
            return func(*args, **kwargs)
        if form.kind == "unlisted":
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        arguments = _Arguments(form, list(args), kwargs)
        place = None if getattr(self._paused, "value", False) else self.tracker.note_position()
        if place is None:
            return self._run_high(func, arguments)
        position, is_gradient = place
        # Outside of modules and of the backward pass, an operator without gradients does not belong to the network: it
        # prepares data, or measures.
        if not (is_gradient or position.root or arguments.need_gradients()):
            return self._run_high(func, arguments)
        if form.kind == "move":
            return self._run_move(func, arguments)
        arguments.refuse_types(position)
        return self._compute(func, arguments, position, is_gradient)

    def _run_high(self, func: Any, arguments: _Arguments) -> Any:
        """Run an operator as it is. What it writes is float32 from then on."""
        result = func(*arguments.values, **arguments.keywords)
        for written in arguments.written():
            mark_high(written)
        return result

    def _run_move(self, func: Any, arguments: _Arguments) -> Any:
        """Run an operator that copies or makes values: a copy has the type of the tensor that it copies."""
        copies_low = any(is_low(operand) for operand in arguments.operands[:1])
        result = func(*arguments.values, **arguments.keywords)
        if arguments.form.written:
            for written in arguments.written():
                if is_low(written):  # what is written into a low tensor is converted
                    written.copy_(self._round(written, may_be_mask=True))
        elif copies_low:
            # Without a look for overflow: the values of a copy are low already, and those of a new tensor mean nothing.
            return _with_tensors(result, lambda tensor: tensor if is_low(tensor) else self._convert(tensor))
        return result

    def _compute(self, func: Any, arguments: _Arguments, position: ModulePosition, is_gradient: bool) -> Any:
        """Run an operator in the precision that the lists decide for each of its results."""
        form, operands = arguments.form, arguments.operands
        name = arguments.operator_name()
        rank = operands[0].ndim if operands else None
        key = name, position, rank, is_gradient
        decisions = self._decisions.get(key)
        if decisions is None:
            decisions = self._decisions[key] = self.lists.decide(name, position, rank, is_gradient=is_gradient)
        if form.kind == "unlisted":
            self.lists.unlisted[form.name] += 1
        keeps_parameters = self._keeps_parameters(decisions, form)
        low_results = self._low_results(decisions, arguments, keeps_parameters=keeps_parameters)
        self.counts[decisions[0].op_type, decisions[0].list or "black", True in low_results] += 1
        if True not in low_results:
            result = self._run_high(func, arguments)
        else:
            result = self._run_low(
                func, arguments, low_results, (str(position), is_gradient), keeps_high=keeps_parameters
            )
        if self.examines_results and self.overflow_start is None:
            self._examine_result(result, arguments, position, decisions, low_results, is_gradient)
        return result

    def _low_results(
        self, decisions: Sequence[ResultDecision], arguments: _Arguments, *, keeps_parameters: bool
    ) -> list[bool | None]:
        """Return for each result whether it is in low precision; None for a statistic.

        ``keeps_parameters``: see ``_keeps_parameters``.
        """
        lists = [decision.list for decision in decisions]
        follows = False
        if "gray" in lists:
            counts_all = self.promote and not keeps_parameters
            low_operands = [is_low(operand) for operand in arguments.operands[: None if counts_all else 1]]
            follows = bool(low_operands) and all(low_operands)
        is_kept = self.keeps_constants and not any(decision.rule for decision in decisions)
        if is_kept and not arguments.scalars_fit(self.low_type):  # as Rule S4.7 does for constants
            return [None if name is None else False for name in lists]
        if keeps_parameters:
            return [
                None if name is None else name == "gray" and follows and index == 0 for index, name in enumerate(lists)
            ]
        return [None if name is None else name == "white" or (name == "gray" and follows) for name in lists]

    def _keeps_parameters(self, decisions: Sequence[ResultDecision], form: OperatorForm) -> bool:
        """Return whether a normalization reads float32 parameters: a gray one with ``promote``."""
        if not self.promote or form.name not in _NORMALIZATIONS:
            return False
        lists = {decision.list for decision in decisions}
        return "gray" in lists and "white" not in lists

    def _run_low(
        self,
        func: Any,
        arguments: _Arguments,
        low_results: list[bool | None],
        place: tuple[str, bool],
        *,
        keeps_high: bool,
    ) -> Any:
        """Run an operator of which some results are in low precision: round its operands, and then these results.

        ``low_results``: see ``_low_results``. ``place``: the module, and whether it is the backward pass.
        ``keeps_high``: operands that are not low stay so.
        """
        reads_masks, is_gradient = arguments.form.name in _MASK_READERS, place[1]

        def round_operand(tensor: torch.Tensor) -> torch.Tensor:
            may_be_mask = reads_masks or not (tensor.requires_grad or is_gradient)
            # The operands of a backward operator can be activations. Its gradient was the result of another one.
            return (
                tensor
                if keeps_high or is_low(tensor)
                else self._round(tensor, may_be_mask, None if is_gradient else place)
            )

        def round_result(tensor: torch.Tensor) -> torch.Tensor:
            may_be_mask = not (is_gradient or arguments.need_gradients())
            return self._round(tensor, may_be_mask, place)

        rounded = arguments.converted(round_operand)
        if arguments.form.in_place:
            return self._write_low(func, arguments, rounded, round_operand, round_result)
        # With the operands as they are, one call computes low and float32 results.
        flags_of_calls = [True] if keeps_high else low_results
        if not isinstance(results := _results_of(func, arguments, rounded, flags_of_calls), tuple):
            return _with_tensors(results, round_result)
        # One entry is for all results; results without an entry are statistics.
        if len(low_results) == 1:
            flags = low_results * len(results)
        else:
            flags = [*low_results, *[None] * len(results)][: len(results)]
        return tuple(
            _with_tensors(result, round_result) if flag else result for result, flag in zip(results, flags, strict=True)
        )

    def _write_low(
        self,
        func: Any,
        arguments: _Arguments,
        rounded: _Arguments,
        round_operand: Callable[[torch.Tensor], torch.Tensor],
        round_result: Callable[[torch.Tensor], torch.Tensor],
    ) -> Any:
        """Run a low-precision operator in place: round the operand where it is, and then the result."""
        # Parameters and buffers are no activations: they stay float32.
        written = [tensor for tensor in arguments.written() if tensor.dtype is torch.float32 and not _is_kept(tensor)]
        for tensor in written:
            tensor.copy_(round_operand(tensor))
        result = func(*rounded.values, **rounded.keywords)
        for tensor in written:
            tensor.copy_(round_result(tensor))
            _mark_low(tensor)
        return result

    def _round(self, tensor: torch.Tensor, may_be_mask: bool, place: tuple[str, bool] | None = None) -> torch.Tensor:
        """Return a float32 tensor with its values rounded to the low type, marked as low; other tensors as they are.

        An overflow sets ``overflows``, unless ``may_be_mask`` is True and only negative values overflow. ``place`` is
        the key in ``largest_values``.
        """
        if _storage(tensor) is None:
            return tensor
        if self.largest_values is not None and place is not None and tensor.numel():
            largest = float(tensor.max() if may_be_mask else tensor.abs().max())
            if math.isfinite(largest):  # an infinity was counted where it arose
                self.largest_values[place] = max(largest, self.largest_values.get(place, 0.0))
        rounded = self._convert(tensor)
        if self.examines_roundings and not self.overflows and tensor.numel():
            self.overflows = self._loses_range(tensor, rounded, may_be_mask)
        return rounded

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a float32 tensor rounded to the low type and marked as low; other tensors as they are."""
        if _storage(tensor) is None:
            return tensor
        clamped = tensor.clamp(-self.largest, self.largest) if self.saturate else tensor
        rounded = clamped.to(self.low_type).to(torch.float32)
        _mark_low(rounded)
        return rounded

    def _loses_range(self, tensor: torch.Tensor, rounded: torch.Tensor, may_be_mask: bool) -> bool:
        """Return whether a finite value became infinite, or was clamped."""
        if not self.saturate and bool(torch.isfinite(rounded).all()):
            return False
        # Rounding alone changes a value by less than 1 %.
        lost = rounded.abs() < tensor.abs() * 0.99 if self.saturate else torch.isinf(rounded)
        lost &= torch.isfinite(tensor) & (tensor.abs() > self.largest)
        if may_be_mask:
            lost &= tensor > 0
        return bool(lost.any())

    def _examine_result(
        self,
        result: Any,
        arguments: _Arguments,
        position: ModulePosition,
        decisions: Sequence[ResultDecision],
        low_results: Sequence[bool | None],
        is_gradient: bool,
    ) -> None:
        """Set ``overflow_start`` if a result is not finite although the operands are."""
        finite = all(_is_finite(tensor) for tensor in _tensors(result))
        if finite and not (self.examines_roundings and self.overflows):
            return
        if not all(_is_finite(tensor) for tensor in arguments.operands):
            return
        index = next((index for index, is_low_result in enumerate(low_results) if is_low_result), 0)
        decision = decisions[index]
        self.overflow_start = OverflowStart(
            module=str(position),
            path=position.path,
            operator=arguments.form.name,
            op_type=decision.op_type,
            list=decision.list or "black",
            by_rule=decision.rule is not None,
            is_gradient=is_gradient,
            is_low=bool(low_results[index]),
        )


class FunctionMode(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not typed here
    """See the functions that the loop calls, before they become operators.

    ``x.float()`` and ``x.to(torch.float32)`` end the low precision of a tensor, as the author says. The operators of a
    loss that consists of several, such as ``cross_entropy``, have its name.
    """

    def __init__(self, mode: RoundingMode) -> None:
        super().__init__()
        self._mode, self._losses = mode, mode.lists.table.functions.keys()

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, named = getattr(func, "__name__", ""), kwargs or {}
        if name in self._losses:
            with self._mode.tracker.function(name):
                return func(*args, **named)
        result = func(*args, **named)
        # Not ``in``, which compares tensors: ``x.to(other)`` has one.
        is_cast = name == "float" or (
            name == "to" and any(argument is torch.float32 for argument in (*args[1:3], named.get("dtype")))
        )
        if is_cast and isinstance(result, torch.Tensor) and is_low(result):
            return _CastToFloat32.apply(result, self._mode)
        return result


class _CastToFloat32(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is not typed here
    """Copy a low tensor as a float32 one; its gradient is rounded, as the gradient of PyTorch's cast is."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor, mode: RoundingMode) -> torch.Tensor:
        with mode.paused():
            return tensor.clone()

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        context.mode = inputs[1]

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        with context.mode.paused():
            return context.mode._round(gradients[0], may_be_mask=False), None


def _results_of(func: Any, high: _Arguments, rounded: _Arguments, flags: Sequence[bool | None]) -> Any:
    """Return the results of an operator: low ones computed from rounded operands, the others from exact ones.

    ``flags``: see ``RoundingMode._low_results``.
    """
    if False not in flags:
        return func(*rounded.values, **rounded.keywords)
    position = high.form.output_mask
    if position is None or len(high.values) <= position:
        low_results = func(*rounded.values, **rounded.keywords)
        high_results = func(*high.values, **high.keywords)
    else:
        # Two calls, each of which computes only its own results.
        mask = high.values[position]
        low_results = func(*rounded.with_value(position, [m and bool(f) for m, f in zip(mask, flags, strict=True)]))
        high_results = func(*high.with_value(position, [m and not f for m, f in zip(mask, flags, strict=True)]))
    return tuple(a if flag else b for a, b, flag in zip(low_results, high_results, flags, strict=True))


class _Arguments:
    """The arguments of one call of an operator. ``operands``: its float tensors, in order."""

    def __init__(self, form: OperatorForm, values: list[Any], keywords: dict[str, Any]) -> None:
        self.form, self.values, self.keywords = form, values, keywords
        self.operands = [
            tensor
            for index, name in form.operands
            for tensor in _tensors(self._get(index, name))
            if tensor.is_floating_point()
        ]

    def _get(self, index: int, name: str) -> Any:
        return self.values[index] if index < len(self.values) else self.keywords.get(name)

    def operator_name(self) -> str:
        """Return the name of the operator in the table: a transposed convolution has its own."""
        # The position of the argument ``transposed``.
        index = {"convolution": 6, "convolution_backward": 7}.get(self.form.name)
        is_transposed = index is not None and bool(self._get(index, "transposed"))
        return f"{self.form.name}.transposed" if is_transposed else self.form.name

    def need_gradients(self) -> bool:
        """Return whether autograd follows the operator."""
        return torch.is_grad_enabled() and any(operand.requires_grad for operand in self.operands)

    def written(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that the operator writes."""
        for index, name in self.form.written:
            yield from _tensors(self._get(index, name))

    def scalars_fit(self, low_type: torch.dtype) -> bool:
        """Return whether the low type holds every number that is an operand: not as infinity, nor as zero."""
        information = torch.finfo(low_type)
        # Half of the smallest number is rounded to zero.
        largest_lost = information.smallest_normal * information.eps / 2
        values = (self._get(index, name) for index, name in self.form.scalars)
        return all(
            largest_lost < abs(value) <= information.max
            for value in values
            if isinstance(value, float) and value and math.isfinite(value)
        )

    def refuse_types(self, position: ModulePosition) -> None:
        """Raise UsageError for an operand that is float16 or bfloat16 by itself, or a nested tensor."""
        for operand in self.operands:
            place = f"{position}: {self.form.name} reads a"
            if operand.is_nested:
                hint = "use padded tensors while mixlist runs"
                raise UsageError(f"{place} nested tensor, whose values mixlist cannot round", hint=hint)
            if operand.dtype in _HALF_TYPES:
                name = str(operand.dtype).removeprefix("torch.")
                raise UsageError(
                    f"{place} {name} tensor: mixlist rounds the operators of a float32 network itself",
                    hint="leave .half(), .bfloat16() and casts to these types out of the network",
                )

    def converted(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> _Arguments:
        """Return the arguments with every operand converted, except for those that the operator writes."""
        values, keywords = list(self.values), dict(self.keywords)
        for index, name in self.form.operands:
            if (index, name) in self.form.written:
                continue
            if index < len(values):
                values[index] = _with_tensors(values[index], convert)
            elif name in keywords:
                keywords[name] = _with_tensors(keywords[name], convert)
        return _Arguments(self.form, values, keywords)

    def with_value(self, position: int, value: object) -> list[Any]:
        """Return the positional arguments with another value at one position."""
        return [*self.values[:position], value, *self.values[position + 1 :]]
