"""The scaler of a loop, and the calls of the loop."""

from __future__ import annotations

import math
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixlist
from mixlist.errors import UsageError
from mixlist.training.run import StepProgress, read_metric
from tests.support.builders import policy
from tests.support.extras import import_extra

torch = import_extra("torch")

from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # noqa: E402

from mixlist.training.loop_scaler import is_sampled  # noqa: E402
from mixlist.training.verdict import learns  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
STEPS = 30
LOSS = torch.ones(())
HIGH = policy(black=["Gemm", "MatMul", "Relu", "LogSoftmax", "NegativeLogLikelihoodLoss", "Mul"])
LOW = policy(white=["Gemm", "MatMul"])


def batches(steps: int = STEPS) -> Iterator[tuple[Any, Any]]:
    """Yield batches of a classification that a linear layer can learn."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator)
        yield x, (x @ weight).argmax(1)


class Loop:
    """A loop that notes what it sees: parameters after each call, scales, and the seeds of its random numbers.

    ``change(step, loss)`` returns the loss to train with. ``lr`` is that of SGD.
    """

    def __init__(self, change: Callable[[int, Any], Any] = lambda step, loss: loss, lr: float = 0.3) -> None:
        self.change, self.lr = change, lr
        self.calls: list[dict[str, Any]] = []

    def __call__(self, seed: int, scaler: Any) -> float:
        call: dict[str, Any] = {"seed": seed, "scales": [], "drawn": (random.random(), np.random.random())}
        self.calls.append(call)
        network = nn.Linear(4, 3)
        call["first"] = network.weight.detach().clone()
        optimizer = torch.optim.SGD(network.parameters(), lr=self.lr)
        for step, (x, y) in enumerate(batches()):
            loss = self.change(step, functional.cross_entropy(network(x), y))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            call["scales"].append(scaler.get_scale())
            scaler.update()
        call["weight"] = network.weight.detach().clone()
        x, y = next(batches())
        return float((network(x).argmax(1) == y).float().mean())


def train(loop: Any, lists: Any = LOW, **options: Any) -> Any:
    return mixlist.train(loop, lists, **options)


def test_each_seed_trains_three_times_from_one_start() -> None:
    """Each seed trains three times."""
    loop = Loop()
    report = train(loop, runs=2, first_seed=5)
    assert [call["seed"] for call in loop.calls] == [5, 5, 5, 6, 6, 6]
    for mixed, float32, twin in (loop.calls[:3], loop.calls[3:]):
        assert torch.equal(mixed["first"], float32["first"]) and torch.equal(mixed["first"], twin["first"])
        assert mixed["drawn"] == float32["drawn"] == twin["drawn"]
        assert not torch.equal(mixed["weight"], float32["weight"])
        assert not torch.equal(twin["weight"], float32["weight"])
    assert not torch.equal(loop.calls[0]["first"], loop.calls[3]["first"])
    assert [run.seed for run in report.runs] == [5, 6]
    assert all(len(run.mixed.loss) == len(run.float32.loss) == len(run.twin.loss) == STEPS for run in report.runs)


def test_a_twin_differs_by_one_rounding_at_its_first_step() -> None:
    """The parameters change by a relative 2^-11, up or down at random."""
    loop = Loop(lr=0.0)
    train(loop, runs=1)
    _, float32, twin, _ = (call["weight"] for call in loop.calls)  # the last without updates: the loss does not fall
    ratio = twin / float32 - 1
    assert torch.allclose(ratio.abs(), torch.full_like(ratio, 2.0**-11), rtol=1e-3)
    assert 0 < (ratio > 0).sum() < ratio.numel()


@pytest.mark.parametrize("scale", [2.0**16, 2.0**130, 3e38])
def test_the_scaler_follows_the_grad_scaler_of_torch(scale: float) -> None:
    """Scales, skipped steps and parameters are those of torch.amp.GradScaler."""
    scale = min(scale, 2.0**127)
    loop = Loop(lambda step, loss: loss * 100, lr=0.003)
    arguments = {"init_scale": scale, "growth_interval": 4}
    report = train(loop, HIGH, runs=1, scaler_parameters=arguments)
    theirs = Loop(loop.change, loop.lr)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    theirs(0, torch.amp.GradScaler("cpu", **arguments))
    assert loop.calls[0]["scales"] == theirs.calls[0]["scales"]
    assert torch.equal(loop.calls[0]["weight"], theirs.calls[0]["weight"])
    assert torch.equal(loop.calls[1]["weight"], theirs.calls[0]["weight"])  # float32 follows
    assert (len(report.runs[0].mixed.skipped) > 0) == (scale > 2.0**100)


class OwnScaler(Loop):
    """A loop that makes its own GradScaler, as ``make`` says, or has it from before."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(lambda step, loss: loss * (1e36 if step in (3, 4) else 1.0))
        self.make = make

    def __call__(self, seed: int, scaler: Any = None) -> float:
        return super().__call__(seed, self.make())


def import_scaler() -> Any:
    with pytest.warns(FutureWarning, match="deprecated"):
        return torch.cuda.amp.GradScaler(init_scale=1024.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.amp.GradScaler(init_scale=1024.0),
        lambda: torch.amp.GradScaler("cpu", 1024.0, enabled=False),
        import_scaler,
        lambda: ShardedGradScaler("cpu", init_scale=1024.0),
    ],
    ids=["torch.amp", "disabled", "torch.cuda.amp", "sharded"],
)
def test_a_loop_that_makes_its_scaler_trains_as_with_the_given_one(make: Callable[[], Any]) -> None:
    """Its arguments count; whether it is enabled does not."""
    given = train(Loop(OwnScaler(make).change), runs=1, scaler_parameters={"init_scale": 1024})
    own = train(OwnScaler(make), runs=1)
    assert own.runs == given.runs and own.runs[0].mixed.skipped[:2] == [3, 4]
    assert own.scaler["init_scale"] == 1024


def test_a_scaler_from_before_is_that_of_the_training() -> None:
    """And the options count before the arguments of the loop's scaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    own = OwnScaler(lambda: torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert train(own, runs=1, float32=False, scaler_parameters={"init_scale": 2}).scaler["init_scale"] == 2
    assert train(own, runs=1, float32=False, loss_scaler="mindspore").scaler["init_loss_scale"] == 2**24
    report = train(OwnScaler(lambda: scaler), runs=1)
    assert report.runs[0].mixed.scale[0] == 65536 and report.runs[0].mixed.skipped[:2] == [3, 4]
    assert scaler.get_scale() == 8 and scaler.state_dict()["scale"] == 8  # its own again


def test_two_scalers_of_a_loop_share_one_scale() -> None:
    """Both are updated at the end of a step, which is one step."""

    def loop(seed: int) -> float:
        networks = [nn.Linear(4, 3), nn.Linear(4, 3)]
        optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in networks]
        scalers = [torch.amp.GradScaler("cpu") for _ in networks]
        for x, y in batches():
            for network, optimizer, scaler in zip(networks, optimizers, scalers, strict=True):
                optimizer.zero_grad()
                scaler.scale(functional.cross_entropy(network(x), y)).backward()
                scaler.step(optimizer)
            for scaler in scalers:
                scaler.update()
        return 1.0

    assert len(train(loop, runs=1).runs[0].mixed.loss) == STEPS


def test_a_loop_without_a_scaler_is_refused_at_its_first_step() -> None:
    seen: list[int] = []

    def loop(seed: int) -> float:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for x, y in batches():
            seen.append(seed)
            functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        return 1.0

    text = "SGD steps, and no loss was scaled before: the loop uses no GradScaler"
    with pytest.raises(UsageError, match=text) as error:
        train(loop)
    assert "loss_scaler='none'" in str(error.value.hint)
    assert seen == [0]


def test_float32_and_twin_skip_what_the_mixed_training_skips() -> None:
    loop = Loop(lambda step, loss: loss * (1e36 if step in (3, 4) else 1.0))
    report = train(loop, runs=1, scaler_parameters={"init_scale": 2.0**10})
    mixed, float32, twin = loop.calls[:3]
    run = report.runs[0]
    assert run.mixed.exceptions[:2] == [3, 4] and run.mixed.skipped == run.mixed.exceptions
    assert run.float32.skipped == run.twin.skipped == run.mixed.skipped
    assert mixed["scales"] == float32["scales"] == twin["scales"]


def test_a_scaler_without_overflow_check_applies_bad_steps() -> None:
    loop = Loop(lambda step, loss: loss * (1e36 if step == 3 else 1.0))
    options = {
        "loss_scaler": "mindspore-fixed",
        "scaler_parameters": {"loss_scale": 2.0**10, "drop_overflow_update": False},
    }
    report = train(loop, runs=1, **options)
    assert report.runs[0].mixed.skipped == [] and report.runs[0].mixed.exceptions[0] == 3
    assert report.verdict == "inconclusive"  # float32 applies the infinite gradient, too


def test_a_loop_can_clip_and_accumulate() -> None:
    """unscale_() divides the gradients once."""

    def run(scaler: Any, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        for step, (x, y) in enumerate(batches(20)):
            scaler.scale(functional.cross_entropy(network(x), y) / 2).backward()
            if step % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(network.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return network.weight.detach().clone()

    weights: list[Any] = []

    def loop(seed: int, scaler: Any) -> float:
        weights.append(run(scaler, seed))
        return 1.0

    report = train(loop, HIGH, runs=1)
    assert torch.equal(weights[0], run(torch.amp.GradScaler("cpu")))
    assert len(report.runs[0].mixed.loss) == 10


def test_each_optimizer_is_skipped_for_its_own_gradients() -> None:
    """With several optimizers, each is skipped for its own gradients."""
    weights: list[list[Any]] = []

    def loop(seed: int, scaler: Any) -> float:
        networks = [nn.Linear(4, 3), nn.Linear(4, 3)]
        optimizers = [torch.optim.SGD(network.parameters(), lr=1e-6) for network in networks]
        starts = [network.weight.detach().clone() for network in networks]
        for x, y in batches(5):
            for network, optimizer, factor in zip(networks, optimizers, (1.0, 1e36), strict=True):
                optimizer.zero_grad()
                scaler.scale(functional.cross_entropy(network(x), y) * factor).backward()
                scaler.step(optimizer)
            scaler.update()
        weights.append([bool((n.weight != s).any()) for n, s in zip(networks, starts, strict=True)])
        return 1.0

    report = train(loop, HIGH, runs=1)
    assert weights[:3] == [[True, False], [True, False], [True, True]]  # the twin's change by one rounding
    assert report.runs[0].mixed.exceptions == [0, 1, 2, 3, 4]


def test_a_closure_and_sparse_gradients() -> None:
    """The gradients of an embedding with sparse=True are examined without their zeros."""

    def loop(seed: int, scaler: Any) -> float:
        network = nn.Embedding(10, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(network.parameters(), lr=0.1)
        for step in range(12):
            loss = network(torch.tensor([1, 2, 1])).square().mean() * (1e35 if step == 2 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return 1.0

    assert train(loop, runs=1).runs[0].mixed.exceptions == [2]


def test_the_replay_tells_the_scale_from_the_network() -> None:
    """An exception belongs to the scale or to the network."""
    report = train(Loop(), runs=3, scaler_parameters={"init_scale": 2.0**24})
    assert report.verdict == "pass", report.reasons
    assert {replay.repeats for replay in report.replays} == {True}
    assert {replay.own_exceptions for replay in report.replays} == {()}
    assert report.scale_exceptions is not None and report.scale_exceptions.first_scale < 2.0**24
    assert any("start it at" in reason for reason in report.reasons)
    assert report.findings == ()


class Rate(nn.Module):  # type: ignore[misc, name-defined]
    """A network whose exponential overflows in float16, in a module of its own or not."""

    def __init__(self, is_inner: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 1)
        nn.init.constant_(self.dense.bias, 12.5)
        self.inner = Exponential() if is_inner else None

    def forward(self, x: Any) -> Any:
        logarithms = self.dense(x)[:, 0]
        return logarithms.exp() if self.inner is None else self.inner(logarithms)


class Exponential(nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return x.exp()


@pytest.mark.parametrize(("is_inner", "module"), [(False, "Rate"), (True, "inner")])
def test_own_exceptions_name_the_operator_and_what_keeps_it(is_inner: bool, module: str, tmp_path: Path) -> None:
    """A module is kept before a whole op type. The file takes the place of the one of this training."""
    kept = tmp_path / "keep.txt"
    kept.write_text("other\nOpType::Softmax\n")
    lists = replace(policy(white=["Gemm", "MatMul", "Exp"]), rules=mixlist.load_policy(keep_dtype=kept).rules)

    def loop(seed: int, scaler: Any) -> dict[str, float]:
        network = Rate(is_inner)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        x = 0.1 * torch.randn(8, 2)
        for _ in range(STEPS):
            loss = (network(x) / math.exp(12) - 1).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"loss": loss.item()}

    report = train(loop, lists, runs=2)
    assert report.verdict == "fail" and len(report.replays) == 2
    operator = report.findings[0].operator
    assert (operator.module, operator.operator, operator.op_type) == (module, "exp", "Exp")
    assert report.keep_dtype == ("OpType::Softmax\ninner\nother\n" if is_inner else "")
    assert ('"Exp"' in report.suggestion and '"black-list"' in report.suggestion) != is_inner


def test_a_scale_that_falls_to_zero_is_no_fault_of_float32() -> None:
    """As PyTorch's does after 166 steps with an exception: no gradient is finite then, in any precision."""

    def loop(seed: int, scaler: Any) -> dict[str, float]:
        network = Rate(is_inner=True)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        for _ in range(STEPS):
            loss = (network(0.1 * torch.randn(8, 2)) / math.exp(12) - 1).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"loss": loss.item()}

    parameters = {"init_scale": 1e-40, "backoff_factor": 0.01}
    report = train(loop, policy(white=["Gemm", "MatMul", "Exp"]), runs=1, scaler_parameters=parameters)
    assert report.runs[0].mixed.scale[-1] == 0 and report.runs[0].float32.diverged == ""
    assert report.verdict == "fail" and report.keep_dtype == "inner\n"
    assert report.comparison is None  # float32 was not trained: it skips the same steps


def test_an_option_replaces_one_argument_of_the_loops_own_scaler() -> None:
    def loop(seed: int) -> float:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=50)
        return Loop()(seed, scaler)

    report = train(loop, runs=1, scaler_parameters={"init_scale": 2048.0})
    assert (report.scaler["init_scale"], report.scaler["growth_interval"]) == (2048.0, 50)
    assert report.runs[0].mixed.scale[0] == 2048.0


def test_several_losses_that_rise_tenfold_are_no_training() -> None:
    """An accumulation has several losses in a step. Those of a GAN need not fall, but rise less."""

    def loop(seed: int, scaler: Any) -> float:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=30.0)
        for x, y in batches():
            for part in (slice(8), slice(8, 16)):
                scaler.scale((network(x[part]) - y[part, None]).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return 0.5

    report = train(loop, HIGH, runs=1)
    assert report.verdict == "inconclusive" and "its loss rises" in report.reasons[0]


def test_what_fails_in_float32_is_not_advised_against() -> None:
    """The mixed training overflows where float32 diverges: a smaller learning rate helps, and no list does."""
    for loop in (Loop(lr=1e30), Loop(lambda step, loss: loss**4, lr=1e30)):
        report = train(loop, runs=1)
        assert report.verdict == "inconclusive" and report.replays[0].own_exceptions
        assert report.runs[0].mixed.skips_most and report.reasons[0].startswith("seed 0: training in float32")
        assert report.findings == () and report.keep_dtype == report.suggestion == ""


def test_float32_is_judged_without_the_steps_that_mixed_precision_skips() -> None:
    """Behind the first step, the mixed training skips all: float32, which skips them too, is not trained."""

    def loop(seed: int, scaler: Any) -> float:
        network = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for step in range(30):
            x = torch.randn(32, 1)
            # From the second step on, the input lies beyond float16. float32 learns y = 3 x all the same.
            size = 1e7 if step else 1.0
            y = network(x * size) / size
            optimizer.zero_grad()
            loss = (y - 3 * x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"mse": float((network(torch.ones(1, 1)) - 3).square().detach())}

    report = train(loop, LOW, runs=3)
    assert [(run.mixed.skips_most, learns(run.float32.loss)) for run in report.runs] == [(True, False)] * 3
    assert [run.unskipped for run in report.runs] == ["", "", ""]
    assert report.verdict == "fail" and "have an exception that no loss scale prevents" in report.reasons[0]


def test_a_loop_that_depends_on_more_than_its_seed_is_inconclusive() -> None:
    network = nn.Linear(4, 3)

    def loop(seed: int, scaler: Any) -> float:  # goes on training the same network
        optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
        for x, y in batches():
            optimizer.zero_grad()
            scaler.scale(functional.cross_entropy(network(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        return 1.0

    report = train(loop, runs=2)
    assert report.verdict == "inconclusive"
    assert any("make network, optimizer and data inside of the function" in reason for reason in report.reasons)


def test_gradients_that_become_zero_fail() -> None:
    """Gradients do not become zero. The gray sum of the bias follows the float32 gradient of the loss."""
    loop = Loop(lambda step, loss: loss * 1e-8, lr=3e7)
    report = train(loop, loss_scaler="none", runs=2)
    assert report.verdict == "fail" and "become zero" in report.reasons[0]
    underflow = report.underflow
    assert underflow is not None and underflow.zero == pytest.approx(0.8)
    assert underflow.by_parameter == {"weight": 1, "bias": 0}
    scaled = train(Loop(lambda step, loss: loss * 1e-8, lr=3e7), runs=3, scaler_parameters={"init_scale": 2.0**24})
    assert scaled.verdict == "pass", scaled.reasons


def test_the_sampled_steps() -> None:
    """The first 8, then 4 in each octave."""
    later = [8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert [step for step in range(70) if is_sampled(step)] == [*range(8), *later]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda scaler, optimizer: None, r"loop never calls scaler\.update\(\)"),
        (lambda scaler, optimizer: scaler.update(), r"update\(\) without scaler\.step\(optimizer\)"),
        (lambda scaler, optimizer: (scaler.unscale_(optimizer), scaler.unscale_(optimizer)), r"unscale_\(\) twice"),
        (
            lambda scaler, optimizer: (scaler.scale(LOSS), scaler.step(optimizer), scaler.unscale_(optimizer)),
            r"or after step\(\)",
        ),
        (
            lambda scaler, optimizer: (scaler.scale(LOSS), scaler.step(optimizer), scaler.update(3.0)),
            "sets the loss scale itself",
        ),
        (lambda scaler, optimizer: scaler.step(optimizer), "SGD steps, and no loss was scaled before"),
        (lambda scaler, optimizer: scaler.step(optimizer, lambda: 1.0), "with a closure"),
    ],
)
def test_wrong_calls_of_the_scaler_are_refused(call: Callable[[Any, Any], Any], message: str) -> None:
    def loop(seed: int, scaler: Any) -> float:
        network = nn.Linear(4, 3)
        call(scaler, torch.optim.SGD(network.parameters(), lr=0.1))
        return 1.0

    with pytest.raises(UsageError, match=message):
        train(loop)


@pytest.mark.parametrize(
    ("result", "name", "expected"),
    [
        (0.5, None, ("metric", [0.5])),
        ([0.5, 1], None, ("metric", [0.5, 1.0])),
        ({"loss": [1, 2]}, None, ("loss", [1.0, 2.0])),
        ({"loss": 1, "accuracy": np.float32(0.5)}, "accuracy", ("accuracy", [0.5])),
        ({"f1": np.array([0.25])}, None, ("f1", [0.25])),
        (math.nan, None, None),
    ],
)
def test_what_a_loop_can_return(result: object, name: str | None, expected: object) -> None:
    """The loop returns the metric."""
    found = read_metric(result, name, "loop")
    assert found == expected if expected else math.isnan(found[1][0])
    assert read_metric(torch.tensor(0.5), None, "loop") == ("metric", [0.5])


@pytest.mark.parametrize(
    ("result", "name", "message"),
    [
        (None, None, "loop returned None, and not a metric"),
        ("0.9", None, "loop returned an object of the type str"),
        ([], None, "loop returned an object of the type list"),
        ({"a": 1, "b": 2}, None, "loop returned 2 metrics: a, b"),
        ({"a": 1}, "b", "loop returned no metric 'b': it has a"),
        ({}, None, "loop returned no metric"),
        (np.zeros(3), None, "loop returned an object of the type ndarray"),
        ({"a": "x"}, None, "loop returned an object of the type str"),
    ],
)
def test_results_that_are_no_metric_are_refused(result: object, name: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_metric(result, name, "loop")


def test_an_error_of_the_loop_passes_through_and_leaves_torch_as_it_was() -> None:
    compiled, autocast = torch.compile, torch.set_autocast_enabled

    def loop(seed: int, scaler: Any) -> float:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(loop)
    assert torch.compile is compiled and torch.set_autocast_enabled is autocast
    assert torch.backends.mha.get_fastpath_enabled()
    assert not nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize("after", [0, 10, 40, 70, 110, 6 * STEPS + 10])
def test_ctrl_c_ends_with_the_report_so_far(after: int) -> None:
    """An interrupted training is no pass."""
    seen: list[StepProgress] = []

    def stop(state: Any) -> None:
        seen.append(state.detail)
        if len(seen) > after:
            raise KeyboardInterrupt

    report = train(Loop(), runs=2, progress=stop, scaler_parameters={"init_scale": 2.0**24})
    assert not report.complete and report.verdict == "inconclusive"
    where = f"after {len(seen) // (3 * STEPS)} of 2 runs" if after < 6 * STEPS else "in a replay"
    assert report.reasons[0] == f"interrupted {where}"
    losses = sum(len(h.loss) for run in report.runs for h in (run.mixed, run.float32, run.twin))
    assert losses == min(len(seen), 6 * STEPS)
    assert report.to_json()["complete"] is False


def test_a_replay_divides_by_the_scale_that_it_uses() -> None:
    """A gradient penalty that divides by get_scale(), and a loop that compares the scales after a step."""
    learning_rates: list[list[float]] = []

    def loop(seed: int, scaler: Any) -> float:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        rates = []
        for x, y in batches():
            loss = functional.cross_entropy(network(x), y)
            gradients = torch.autograd.grad(scaler.scale(loss), list(network.parameters()), create_graph=True)
            scale = scaler.get_scale()
            penalty = sum((gradient / scale).square().sum() for gradient in gradients)
            optimizer.zero_grad()
            scaler.scale(loss + 0.01 * penalty).backward()
            scaler.step(optimizer)
            scaler.update()
            if scale <= scaler.get_scale():
                schedule.step()
            rates.append(schedule.get_last_lr()[0])
        learning_rates.append(rates)
        return float(loss.detach())

    report = train(loop, runs=3, scaler_parameters={"init_scale": 2.0**24})
    assert [replay.repeats for replay in report.replays] == [True] * 3
    assert len(learning_rates) == 12  # mixed, float32 and twin of each seed, then the replays
    for seed in range(3):
        assert learning_rates[9 + seed] == learning_rates[3 * seed] == learning_rates[3 * seed + 1]
    assert report.verdict in ("pass", "inconclusive") and report.replays[0].own_exceptions == ()


def test_the_losses_of_several_optimizers_are_not_compared_with_each_other() -> None:
    """Their fall is not asked for."""

    def loop(seed: int, scaler: Any) -> float:
        networks = [nn.Linear(4, 3), nn.Linear(4, 3)]
        optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in networks]
        for x, y in batches():
            for network, optimizer, factor in zip(networks, optimizers, (1.0, 5.0), strict=True):
                optimizer.zero_grad()
                scaler.scale(functional.cross_entropy(network(x), y) * factor).backward()
                scaler.step(optimizer)
                scaler.update()
        return 1.0

    report = train(loop, runs=3)
    assert report.verdict == "pass" and report.runs[0].float32.several_losses


def test_torch_func_sees_a_scaled_loss() -> None:
    seen: list[Any] = []

    def loop(seed: int, scaler: Any) -> float:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for x, y in batches():
            parameters = dict(network.named_parameters())
            gradients = torch.func.grad(
                lambda values: scaler.scale(functional.cross_entropy(torch.func.functional_call(network, values, x), y))  # noqa: B023
            )(parameters)
            for name, parameter in parameters.items():
                parameter.grad = gradients[name].detach()
            scaler.step(optimizer)
            scaler.update()
        seen.append(network.weight.detach())
        return 1.0

    assert len(train(loop, runs=1).runs[0].mixed.loss) == STEPS and len(seen) >= 3


def test_an_error_says_in_which_training_it_arose() -> None:
    def loop(seed: int, scaler: Any) -> float:
        Loop()(seed, scaler)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        train(loop)
    assert caught.value.__notes__ == [f"mixlist: in the mixed training of seed 0, after {STEPS} steps"]


def test_an_unknown_metric_says_which_direction_is_better() -> None:
    assert "of metric, more counts as better: better='lower' says otherwise" in train(Loop(), runs=1).notes
    assert train(Loop(), runs=1, better="higher").notes == ("lists: test, gray policy ascend",)


def test_progress_counts_the_steps_of_all_trainings() -> None:
    states: list[Any] = []
    train(Loop(), runs=2, progress=states.append)
    assert [state.done for state in states] == list(range(1, 6 * STEPS + 1))
    assert states[0].total is None and states[-1].total == 6 * STEPS
    assert [state.detail.kind for state in states[::STEPS]] == ["mixed", "float32", "twin"] * 2
    assert states[0].detail.step == 1 and states[0].detail.scale == 65536


def test_a_training_without_an_applied_step_comes_to_nothing() -> None:

    def loop(seed: int, scaler: Any) -> float:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for x, _ in batches(20):
            optimizer.zero_grad()
            scaler.scale((network(x) * 1e30).square().mean() * 0 + network(x).exp().sum() * 1e38 * 10).backward()
            scaler.step(optimizer)
            scaler.update()
        return 1.0

    report = train(loop, runs=1, loss_scaler="nnabla")
    assert len(report.runs[0].mixed.loss) == 20
    assert report.runs[0].mixed.diverged == "applied no step: every step was skipped"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "at least 1"),
        ({"loss_scaler": "amp"}, "no loss scaler 'amp'"),
        ({"better": "more"}, "value of better 'more' is not known"),
        ({"overflow_mode": "wrap"}, "overflow mode 'wrap'"),
        ({"overflow_detection": "none"}, "overflow detection 'none'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(Loop(), **options)


def test_a_function_with_other_arguments_is_refused() -> None:
    with pytest.raises(UsageError, match=r"<lambda>\(\) cannot be called with a seed, or with a seed and a scaler"):
        train(lambda: 1.0)
    with pytest.raises(UsageError, match="object of the type int, and not a function"):
        train(3)
    with pytest.raises(TypeError, match="pass a Policy"):
        mixlist.train(Loop(), "modify.json")


def test_lists_under_which_nothing_is_low_warn() -> None:
    report = train(Loop(), HIGH, runs=1)
    assert [warning.code for warning in report.warnings] == ["ML605"]


def test_reinforcement_is_judged_by_its_reward() -> None:
    """Its loss does not fall; a training without updates has the reward of chance."""

    def loop(seed: int, scaler: Any) -> dict[str, float]:
        policy_network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = torch.optim.Adam(policy_network.parameters(), lr=0.05)
        rewards = []
        for _ in range(60):
            states = torch.randn(64, 4)
            actions = torch.distributions.Categorical(logits=policy_network(states))
            chosen = actions.sample()
            reward = (chosen == (states[:, 0] > 0)).float()
            rewards.append(float(reward.mean()))
            loss = -(actions.log_prob(chosen) * (reward - reward.mean())).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"reward": sum(rewards[-10:]) / 10}

    states: list[Any] = []
    report = train(loop, runs=3, tolerance=0.05, progress=states.append)
    assert all(state.done <= state.total for state in states if state.total) and states[-1].done == states[-1].total
    assert report.verdict == "pass", report.reasons
    assert all(0.4 < run.untrained < 0.6 and run.float32.metric > 0.8 for run in report.runs)


def test_labels_at_random_give_no_verdict() -> None:
    """The loss falls, because the network learns them by heart; the accuracy on other data does not rise."""

    def loop(seed: int) -> dict[str, float]:
        network = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
        x, labels, scaler = torch.randn(64, 8), torch.randint(0, 2, (64,)), torch.amp.GradScaler()
        for _ in range(40):
            loss = functional.cross_entropy(network(x), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        guesses = network(torch.randn(2000, 8)).argmax(1)
        return {"accuracy": (guesses == torch.randint(0, 2, (2000,))).float().mean()}

    report = train(loop, runs=3, tolerance=0.02)
    assert report.verdict == "inconclusive"
    assert "so it cannot show a loss" in " ".join(report.reasons)
    assert all(run.float32.loss[-1] < run.float32.loss[0] / 2 for run in report.runs)
    assert all(run.untrained is not None for run in report.runs)


def test_the_report_counts_the_calls_of_each_operator() -> None:
    lists = policy(white=["Gemm"], black=["SoftmaxCrossEntropyLoss"])
    report = train(Loop(), lists, runs=1)
    counts = {count.op_type: count for count in report.operators}
    assert counts["Gemm"].list == "white" and counts["Gemm"].low >= STEPS and counts["Gemm"].float32 == 0
    loss = counts["SoftmaxCrossEntropyLoss"]
    assert (loss.list, loss.low) == ("black", 0) and loss.float32 >= STEPS
    assert report.low_operators == sum(count.low for count in report.operators)
    assert [count.low + count.float32 for count in report.operators] == sorted(
        (count.low + count.float32 for count in report.operators), reverse=True
    )


def test_an_infinite_loss_with_finite_gradients_passes() -> None:
    """The loop reports the exponential of its loss, whose gradient it does not use."""

    class Printed(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, loss: Any) -> Any:
            return loss + torch.inf

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            return gradients[0]

    report = train(Loop(lambda step, loss: Printed.apply(loss) if step > 25 else loss), runs=3)
    assert report.verdict == "pass", report.reasons
    assert report.runs[0].mixed.loss[-1] == math.inf and not report.runs[0].mixed.diverged


def clipping_loop(unscales: bool) -> Callable[[int, Any], float]:
    def loop(seed: int, scaler: Any) -> float:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
        for step, (x, y) in enumerate(batches()):
            optimizer.zero_grad(set_to_none=False)
            for part in (0, 1):  # accumulation
                scaler.scale(functional.cross_entropy(network(x[part::2]), y[part::2]) / 2).backward()
            if step >= 2:
                if unscales:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(network.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        return 1.0

    return loop


def test_gradients_that_are_clipped_while_they_are_scaled_warn() -> None:
    (found,) = train(clipping_loop(unscales=False), runs=1).warnings
    assert found.code == "ML620"
    assert found.message == "seed 0, step 2: gradients change while they are multiplied by the loss scale"
    assert train(clipping_loop(unscales=True), runs=1).warnings == ()


def test_an_autocast_of_another_type_warns() -> None:
    def loop(seed: int, scaler: Any) -> float:
        with torch.autocast("cuda", torch.bfloat16):
            return Loop()(seed, scaler)

    report = train(loop, runs=1, better="higher")
    (found,) = report.warnings
    assert (found.code, found.message) == (
        "ML619",
        "torch.autocast has the type bfloat16 in the loop, and float16 is judged",
    )
    assert found.hint == "precision_mode_v2='mixed_bfloat16' judges it"
    assert report.notes == (
        "lists: test, gray policy ascend",
        "the lists are those of test, not those of torch.autocast; regions with enabled=False in the loop stay in"
        " float32",
    )
    assert report.low_operators


def test_a_judgment_of_bfloat16_is_the_choice_of_the_user() -> None:
    """The loop has float16 and a scaler, and the printed command judges bfloat16: no warning."""

    def loop(seed: int, scaler: Any) -> float:
        with torch.autocast("cuda", torch.float16):
            return Loop()(seed, scaler)

    lists = policy(white=["Gemm", "MatMul"], mode="mixed_bfloat16")
    assert train(loop, lists, runs=1, better="higher", loss_scaler="none").warnings == ()


@pytest.mark.parametrize(("enabled", "scaler"), [((False,), "torch"), ((True, False), "torch"), ((False,), "none")])
def test_a_loop_whose_scaler_is_disabled_warns(enabled: tuple[bool, ...], scaler: str) -> None:
    """With enabled=is_available() it is disabled only here, so its loss scale is judged."""

    def loop(seed: int) -> float:
        scalers = [torch.amp.GradScaler("cpu", enabled=is_enabled) for is_enabled in enabled]
        return Loop()(seed, scalers[0])

    found = train(loop, runs=1, better="higher", loss_scaler=scaler).warnings
    assert [(w.code, w.hint) for w in found] == [
        ("ML622", "loss_scaler='none' judges the loop without loss scaling, as it is")
    ] * ((enabled, scaler) == ((False,), "torch"))


def test_a_warning_of_python_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """And not in each of the trainings."""

    def loop(seed: int, scaler: Any) -> float:
        warnings.warn("old call", FutureWarning, stacklevel=1)
        return Loop()(seed, scaler)

    with warnings.catch_warnings(action="always"):
        warnings.showwarning = lambda message, *_: print(message)
        train(loop, runs=1)
    assert capsys.readouterr().out.count("old call") == 1


class PlainLoop(Loop):
    """The loop without a GradScaler; ``optimizers`` step after each backward pass, and the loss has two parts."""

    def __init__(self, optimizers: int = 1, parts: int = 1, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.optimizers, self.parts = optimizers, parts

    def __call__(self, seed: int, uses_scaler: bool = False) -> float:
        network = nn.Linear(4, 3)
        parameters = list(network.parameters())
        groups = [parameters] if self.optimizers == 1 else [[p] for p in parameters]
        optimizers = [torch.optim.Adam(group, lr=0.05, weight_decay=0.1) for group in groups]
        scaler = torch.amp.GradScaler("cpu") if uses_scaler else None
        for step, (x, y) in enumerate(batches()):
            network.zero_grad()
            for _ in range(self.parts):
                loss = self.change(step, functional.cross_entropy(network(x), y)) / self.parts
                (scaler.scale(loss) if scaler else loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer) if scaler else optimizer.step()
            if scaler:
                scaler.update()
        self.calls.append({"weight": network.weight.detach().clone()})
        return functional.cross_entropy(network(x), y).item()


@pytest.mark.parametrize("parts", [1, 2])
def test_without_loss_scaling_a_loop_needs_no_grad_scaler(parts: int) -> None:
    """It trains as with one: the same losses, gradients and parameters, bit for bit."""
    plain, scaled = PlainLoop(parts=parts), PlainLoop(parts=parts)
    options: dict[str, Any] = {"runs": 1, "loss_scaler": "none", "better": "lower"}
    lists = policy(white=["Gemm", "MatMul"], black=["LogSoftmax", "NegativeLogLikelihoodLoss", "Div"])
    report = train(plain, lists, **options)
    expected = train(lambda seed: scaled(seed, True), lists, **options)
    assert report.runs == expected.runs and len(report.runs[0].mixed.loss) == STEPS
    assert report.headroom == expected.headroom and report.underflow == expected.underflow
    for call, other in zip(plain.calls, scaled.calls, strict=True):
        assert torch.equal(call["weight"], other["weight"])
    two = train(PlainLoop(optimizers=2), **options).runs[0]
    assert len(two.mixed.loss) == len(two.twin.loss) == 2 * STEPS and not two.float32.diverged


@pytest.mark.parametrize("by_name", [False, True])
def test_without_loss_scaling_a_closure_runs_before_the_step(by_name: bool) -> None:
    """It is rounded as the rest of the loop, and its step trains as without it, bit for bit."""

    def loop(seed: int, uses_closure: bool = True) -> Any:
        network = nn.Linear(4, 3)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
        for x, y in batches():

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = functional.cross_entropy(network(x), y)
                loss.backward()
                return loss

            if not uses_closure:
                loss = closure()
                optimizer.step()
            else:
                loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        return loss

    options: dict[str, Any] = {"runs": 1, "loss_scaler": "none", "better": "lower"}
    report = train(loop, LOW, **options)
    assert report.runs == train(lambda seed: loop(seed, False), LOW, **options).runs
    assert report.low_operators and report.runs[0].mixed.loss != report.runs[0].float32.loss


class Sharpness(torch.optim.SGD):  # type: ignore[misc]
    """As sharpness-aware minimization does: the gradients are those at the moved parameters."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(parameter.grad, alpha=0.05)
        self.zero_grad()
        loss = closure()
        super().step()
        return loss


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [(torch.optim.LBFGS, "calls its closure again"), (Sharpness, "or after it changed parameters or gradients")],
)
def test_an_optimizer_that_needs_other_gradients_from_its_closure_is_refused(optimizer: Any, message: str) -> None:
    def loop(seed: int) -> float:
        network = nn.Linear(4, 3)

        def closure() -> Any:
            loss = network(torch.ones(2, 4)).square().sum()
            loss.backward()
            return loss

        optimizer(network.parameters(), lr=0.1).step(closure)
        return 1.0

    with pytest.raises(UsageError, match=message):
        train(loop, loss_scaler="none")


def test_without_loss_scaling_a_plain_loop_applies_bad_steps() -> None:
    """As PyTorch does. The replay finds that no loss scale prevents them."""
    large = PlainLoop(change=lambda step, loss: loss * (1e30 if step == 5 else 1))
    network = policy(white=["Gemm", "MatMul", "Mul"])
    report = train(large, network, runs=3, loss_scaler="none", better="lower")
    assert report.runs[0].mixed.exceptions[0] == 5 and report.runs[0].mixed.skipped == []
    assert report.verdict == "fail"
    assert "training in mixed precision diverges" in " ".join(report.reasons)


def test_a_plain_loop_that_learns_nothing_is_compared_with_the_untrained_network() -> None:
    """Its optimizers have no gradients there, and change nothing."""
    loop = PlainLoop(change=lambda step, loss: loss * 0)
    train(loop, HIGH, runs=1, loss_scaler="none", better="lower")
    torch.manual_seed(0)
    assert torch.equal(loop.calls[-1]["weight"], nn.Linear(4, 3).weight)


def test_a_plain_loop_that_raises_an_error_in_its_optimizer_leaves_torch_as_it_was() -> None:
    class Broken(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            raise ZeroDivisionError

    def loop(seed: int) -> float:
        network = nn.Linear(4, 3)
        network(next(batches())[0]).sum().backward()
        Broken(network.parameters(), lr=0.1).step()
        return 1.0

    backward = torch.autograd.backward
    with pytest.raises(ZeroDivisionError):
        train(loop, loss_scaler="none")
    assert torch.autograd.backward is backward
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_a_healthy_training_whose_author_keeps_a_region_in_float32_passes() -> None:
    """The region computes sums beyond float16; without it the training fails."""

    def loop(seed: int, scaler: Any, keeps: bool = True) -> dict[str, float]:
        class Energy(nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any) -> Any:
                with torch.autocast("cuda", enabled=not keeps):
                    return (100 * x.float()) @ (100 * x.float()).t()

        network, energy = nn.Linear(4, 3), Energy()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.3)
        for x, y in batches():
            scores = network(x) + 1e-6 * energy(x)[:, :3]
            loss = functional.cross_entropy(scores, y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"loss": float(loss.detach())}

    assert train(loop, runs=3).verdict == "pass"
    assert train(lambda seed, scaler: loop(seed, scaler, keeps=False), runs=3).verdict != "pass"


def test_a_scale_inside_of_vmap_is_refused() -> None:
    def loop(seed: int, scaler: Any) -> float:
        torch.vmap(lambda x: scaler.scale(x.sum()))(torch.ones(3, 2))
        return 1.0

    with pytest.raises(UsageError, match=r"scaler\.scale\(\) inside of torch\.vmap"):
        train(loop)


@pytest.mark.parametrize("catches", [True, False])
def test_ctrl_c_that_is_caught_still_ends_the_training(catches: bool) -> None:
    """A loop, or a callback of a weak reference, drops the error."""

    def loop(seed: int, scaler: Any) -> float:
        calls.append(seed)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if not catches:
                raise
        return Loop()(seed, scaler)

    calls: list[int] = []
    # A shell starts its background jobs without SIGINT, and a program inherits this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report = train(loop, runs=2)
    assert calls == [0] and not report.complete and report.reasons == ("interrupted after 0 of 2 runs",)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_loop_that_ends_by_its_metric_passes() -> None:
    """A network without updates never reaches the metric: its loop goes on longer, so its metric is no start."""

    def loop(seed: int) -> dict[str, float]:
        network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer, scaler = torch.optim.Adam(network.parameters(), lr=0.03), torch.amp.GradScaler()
        accuracy = 0.0
        for _ in range(10):
            for x, y in batches():
                loss = functional.cross_entropy(network(x), y)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            x, y = next(batches())
            accuracy = float((network(x).argmax(1) == y).float().mean())
            if accuracy > 0.8:
                break
        return {"accuracy": accuracy}

    report = train(loop, runs=3, tolerance=0.05)
    assert not any("so it cannot show a loss" in reason for reason in report.reasons), report.reasons
