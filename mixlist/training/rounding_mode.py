"""Round the operators of a running PyTorch loop as the lists decide (Rules S10.27 to S10.29).

PyTorch hands every ATen operator to an active ``TorchDispatchMode``, below autograd: those of the forward pass, and
those that autograd calls in the backward pass. ``RoundingMode`` computes each of them in float32. If an operator is in
low precision, its operands are rounded to the low type before, and its results after that.

A tensor in low precision is a float32 tensor whose storage has the mark ``mixlist_low``: all of its values can be
represented in the low type. The mark belongs to the storage, so that views share it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from mixlist.errors import UsageError
from mixlist.lists.policy import Policy
from mixlist.training.operators import ModulePosition, OperatorLists, ResultDecision, operator_table
from mixlist.training.result import OverflowStart

_HALF_TYPES = (torch.float16, torch.bfloat16)
# Operands of normalizations that every accelerator keeps in float32: statistics, and running averages that the operator
# writes although its schema does not say so.
_STATISTICS = frozenset({"mean", "rstd", "save_mean", "save_invstd", "save_var", "running_mean", "running_var"})
# Scalars that are operands, and not attributes such as the epsilon of a normalization.
_SCALAR_OPERANDS = frozenset({"other", "exponent", "value", "min", "max"})
# Operators that turn large negative values into zeros: minus infinity is what a mask means there.
_MASK_READERS = frozenset({"_softmax", "_safe_softmax", "_log_softmax", "logsumexp"})
_ACCUMULATION = "torch::autograd::AccumulateGrad"
_INSIDE_OPTIMIZER = ModulePosition(root="optimizer")


@dataclass(frozen=True, slots=True)
class OperatorForm:
    """The facts about an ATen operator that follow from its schema and its names.

    - ``name``: without overload and trailing underscore.
    - ``kind``: "pass" runs as it is (a view, or an operator outside of ATen); "move" copies or makes values; "compute"
      computes values; "unlisted" is not in the table: it may consist of other operators.
    - ``operands``: the arguments that can be tensors. ``scalars``: arguments that can be Python numbers and count as
      operands. ``written``: the arguments that the operator changes. ``output_mask``: the argument that selects the
      results to compute, by position; None if there is none.
    """

    name: str
    kind: Literal["pass", "move", "compute", "unlisted"]
    operands: tuple[tuple[int, str], ...]
    scalars: tuple[tuple[int, str], ...]
    written: tuple[tuple[int, str], ...]
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
    is_view = not written and any(result.alias_info is not None for result in schema.returns)
    kind: Literal["pass", "move", "compute", "unlisted"] = "unlisted"
    if namespace != "aten" or is_view or not (operands or written):
        kind = "pass"
    elif name in table.moves:
        kind = "move"
    elif name in table.operators:
        kind = "compute"
    scalars = tuple((i, a.name) for i, a in arguments if a.name in _SCALAR_OPERANDS)
    output_mask = next((i for i, a in arguments if a.name == "output_mask"), None)
    return OperatorForm(name, kind, operands, scalars, written, output_mask)


def is_low(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in low precision: all values in its storage can be represented in the low type."""
    storage = _storage(tensor)
    return storage is not None and getattr(storage, "mixlist_low", False)


def _mark(tensor: torch.Tensor, low: bool) -> None:
    storage = _storage(tensor)
    if storage is not None and (low or hasattr(storage, "mixlist_low")):
        storage.mixlist_low = low  # PyTorch keeps the Python object of a storage, with its attributes, alive


def _storage(tensor: torch.Tensor) -> Any:
    """Return the storage of a float32 tensor; None for other types, and for sparse tensors, which have none."""
    if tensor.dtype is not torch.float32 or tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage()


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


class ModuleTracker:
    """Finds the module that each operator belongs to: by hooks in the forward pass, and by node in the backward pass.

    autograd numbers its nodes in the order of the forward pass. A backward operator belongs to the module that made its
    node. PyTorch has no public function for these numbers; ``torch.utils.module_tracker`` uses the same private ones.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[object, ModulePosition]] = []  # modules whose forward runs, the innermost one last
        self._positions: WeakKeyDictionary[torch.nn.Module, ModulePosition] = WeakKeyDictionary()
        self._roots: WeakSet[torch.nn.Module] = WeakSet()
        # By the number of the autograd node. The nodes of the update before are kept: their graph may live on.
        self._nodes: dict[int, ModulePosition] = {}
        self._earlier_nodes: dict[int, ModulePosition] = {}

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
        outside = not any(position is not _INSIDE_OPTIMIZER for _, position in self._stack)
        if outside and module not in self._roots:
            self._roots.add(module)
            root = type(module).__name__
            for name, child in module.named_modules():
                self._positions[child] = ModulePosition(name.replace(".", "/"), root, type(child).__name__)
        position = self._positions.get(module)
        if position is None:  # made in the forward of another module
            parent, name = self._stack[-1][1], type(module).__name__
            position = ModulePosition(f"{parent.path}/{name}".strip("/"), parent.root, name)
        self._push(module, position)

    def _push(self, owner: object, position: ModulePosition) -> None:
        self._stack.append((owner, position))

    def _leave(self, owner: object, *_: object) -> None:
        while self._stack and self._stack.pop()[0] is not owner:
            pass  # an optimizer that raised an error has not left

    def forget_old_nodes(self) -> None:
        """Forget the nodes of the update before the last one."""
        self._earlier_nodes, self._nodes = self._nodes, {}

    def position(self) -> tuple[ModulePosition, bool] | None:
        """Return the module of the operator that runs now, and whether it runs in the backward pass.

        The result is None in an optimizer, and where autograd adds up the gradients of a parameter.
        """
        node = torch._C._current_autograd_node()
        if node is not None:
            if node.name() == _ACCUMULATION:
                return None
            number = node._sequence_nr()
            position = self._nodes.get(number) or self._earlier_nodes.get(number)
            return position or ModulePosition(), True
        position = self._stack[-1][1] if self._stack else ModulePosition()
        if position is _INSIDE_OPTIMIZER:
            return None
        if position.root and torch.is_grad_enabled():
            # The first operator after a node was made is the one that the node belongs to.
            self._nodes.setdefault(torch._C._autograd._get_sequence_nr() - 1, position)
        return position, False

    def parameter_names(self) -> dict[int, str]:
        """Return the names of the parameters of all modules that ran, by the id of the parameter."""
        names: dict[int, str] = {}
        for root in self._roots:
            names.update((id(parameter), name) for name, parameter in root.named_parameters())
        return names


class RoundingMode(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not typed here
    """Run the operators of a loop in mixed precision while the mode is entered.

    ``saturate``: a value out of range becomes the largest finite value. ``examines``: look for overflow in every
    rounding; ``overflows`` is then True after one, until ``start_update``. ``finds``: ``finding`` is the first operator
    since then whose result is not finite (or that overflows, if each is examined) although its operands are finite.
    """

    def __init__(
        self,
        policy: Policy,
        tracker: ModuleTracker,
        *,
        saturate: bool = False,
        examines: bool = False,
        finds: bool = False,
    ) -> None:
        super().__init__()
        self.lists, self.tracker = OperatorLists(policy), tracker
        self.low_type = torch.float16 if policy.mode.low == "float16" else torch.bfloat16
        self.largest = torch.finfo(self.low_type).max
        self.promote = policy.gray_policy == "promote"
        self.saturate, self.examines, self.finds = saturate, examines, finds
        self.low_operators = 0  # the number of operators that were in low precision so far
        self.overflows = False
        self.finding: OverflowStart | None = None
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
        self.overflows, self.finding = False, None
        self.tracker.forget_old_nodes()

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        form = operator_form(func)
        if form.kind == "pass":
            return func(*args, **kwargs)
        if form.kind == "unlisted":
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        arguments = _Arguments(form, list(args), kwargs)
        place = None if getattr(self._paused, "value", False) else self.tracker.position()
        if place is None or not (place[1] or place[0].root or arguments.need_gradients()):
            return self._run_high(func, arguments)
        position, is_gradient = place
        arguments.refuse_half_types(position)
        if form.kind == "move":
            return self._run_move(func, arguments)
        return self._compute(func, arguments, position, is_gradient)

    def _run_high(self, func: Any, arguments: _Arguments) -> Any:
        """Run an operator as it is. What it writes is float32 from then on."""
        result = func(*arguments.values, **arguments.keywords)
        for written in arguments.written():
            _mark(written, low=False)
        return result

    def _run_move(self, func: Any, arguments: _Arguments) -> Any:
        """Run an operator that copies or makes values: a copy has the type of the tensor that it copies."""
        low = any(is_low(operand) for operand in arguments.operands[:1])
        result = func(*arguments.values, **arguments.keywords)
        if arguments.form.written:
            for written in arguments.written():
                if is_low(written):  # what is written into a low tensor is converted
                    written.copy_(self._round(written, may_be_mask=True))
        elif low:
            return _with_tensors(result, lambda tensor: self._round(tensor, may_be_mask=True))
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
            self.lists.count_unlisted(form.name)
        low = self._low_results(decisions, arguments)
        if True not in low:
            result = self._run_high(func, arguments)
        else:
            self.low_operators += 1
            result = self._run_low(func, arguments, low, is_gradient)
        if self.finds and self.finding is None:
            self._examine_result(result, arguments, position, decisions, low, is_gradient)
        return result

    def _low_results(self, decisions: Sequence[ResultDecision], arguments: _Arguments) -> list[bool | None]:
        """Return for each result whether it is in low precision; None for a statistic."""
        lists = [decision.list for decision in decisions]
        by_rule = [decision.rule is not None for decision in decisions]
        follows = False
        if "gray" in lists:
            low = [is_low(operand) for operand in arguments.operands[: None if self.promote else 1]]
            follows = bool(low) and all(low)
        low_results = [None if name is None else name == "white" or (name == "gray" and follows) for name in lists]
        if True in low_results and not any(by_rule) and not arguments.scalars_fit(self.low_type):
            return [None if low is None else False for low in low_results]  # as Rule S4.7 does for constants
        return low_results

    def _run_low(self, func: Any, arguments: _Arguments, low: Sequence[bool | None], is_gradient: bool) -> Any:
        """Run an operator of which some results are in low precision: round its operands, and then these results."""
        reads_masks = arguments.form.name in _MASK_READERS

        def round_operand(tensor: torch.Tensor) -> torch.Tensor:
            may_be_mask = reads_masks or not (tensor.requires_grad or is_gradient)
            return tensor if is_low(tensor) else self._round(tensor, may_be_mask)

        def round_result(tensor: torch.Tensor) -> torch.Tensor:
            may_be_mask = not (is_gradient or arguments.need_gradients())
            return self._round(tensor, may_be_mask)

        rounded = arguments.converted(round_operand)
        if arguments.form.written:
            # In place: the values of the operand are rounded where they are, and so is the result.
            for before in arguments.written():
                if before.dtype is torch.float32:
                    before.copy_(round_operand(before))
            result = func(*rounded.values, **rounded.keywords)
            for written in arguments.written():
                if written.dtype is torch.float32:
                    written.copy_(round_result(written))
                    _mark(written, low=True)
            return result
        if not isinstance(results := _results_of(func, arguments, rounded, low), tuple):
            return _with_tensors(results, round_result)
        flags = list(low) if len(low) == len(results) else [low[0]] * len(results)
        return tuple(
            _with_tensors(result, round_result) if flag else result for result, flag in zip(results, flags, strict=True)
        )

    def _round(self, tensor: torch.Tensor, may_be_mask: bool) -> torch.Tensor:
        """Return a float32 tensor with its values rounded to the low type, marked as low; other tensors as they are.

        An overflow sets ``overflows``, unless ``may_be_mask`` is True and only negative values overflow.
        """
        if _storage(tensor) is None:
            return tensor
        clamped = tensor.clamp(-self.largest, self.largest) if self.saturate else tensor
        rounded = clamped.to(self.low_type).to(torch.float32)
        if self.examines and not self.overflows and tensor.numel():
            self.overflows = self._loses_range(tensor, rounded, may_be_mask)
        _mark(rounded, low=True)
        return rounded

    def _loses_range(self, tensor: torch.Tensor, rounded: torch.Tensor, may_be_mask: bool) -> bool:
        """Return whether a finite value became infinite, or was clamped."""
        if not self.saturate and bool(torch.isfinite(rounded).all()):
            return False
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
        low: Sequence[bool | None],
        is_gradient: bool,
    ) -> None:
        """Set ``finding`` if a result is not finite although the operands are."""
        finite = all(_is_finite(tensor) for tensor in _tensors(result))
        if finite and not (self.examines and self.overflows):
            return
        if not all(_is_finite(tensor) for tensor in arguments.operands):
            return
        index = next((index for index, is_low_result in enumerate(low) if is_low_result), 0)
        decision = decisions[index]
        self.finding = OverflowStart(
            module=str(position),
            operator=arguments.form.name,
            op_type=decision.op_type,
            list=decision.list or "black",
            by_rule=decision.rule is not None,
            is_gradient=is_gradient,
            is_low=bool(low[index]),
        )


def _results_of(func: Any, high: _Arguments, rounded: _Arguments, low: Sequence[bool | None]) -> Any:
    """Return the results of an operator: low ones computed from rounded operands, the others from exact ones."""
    if False not in low:
        return func(*rounded.values, **rounded.keywords)
    position = high.form.output_mask
    if position is None or len(high.values) <= position:
        low_results = func(*rounded.values, **rounded.keywords)
        high_results = func(*high.values, **high.keywords)
    else:
        # Two calls, each of which computes only its own results.
        mask = high.values[position]
        low_results = func(*rounded.with_value(position, [m and bool(f) for m, f in zip(mask, low, strict=True)]))
        high_results = func(*high.with_value(position, [m and not f for m, f in zip(mask, low, strict=True)]))
    return tuple(a if flag else b for a, b, flag in zip(low_results, high_results, low, strict=True))


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
        for index, name in self.form.scalars:
            value = self._get(index, name)
            # Half of the smallest number is rounded to zero.
            lost = information.smallest_normal * information.eps / 2
            if isinstance(value, float) and value and math.isfinite(value) and not lost < abs(value) <= information.max:
                return False
        return True

    def refuse_half_types(self, position: ModulePosition) -> None:
        """Raise UsageError for an operand that is float16 or bfloat16 by itself."""
        for operand in self.operands:
            if operand.dtype in _HALF_TYPES:
                raise UsageError(
                    f"{position}: {self.form.name} reads a {str(operand.dtype).removeprefix('torch.')} tensor: mixlist"
                    " rounds the operators of a float32 network itself",
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
