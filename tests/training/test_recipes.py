"""Recipes of PyTorch: each trains unchanged, or is refused with a sentence.

With lists that keep everything, the losses equal those of plain PyTorch bit for bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

import mixlist
from mixlist.errors import UsageError
from tests.support.builders import policy
from tests.support.extras import import_extra

torch = import_extra("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.utils import parametrizations, rnn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

Loop = Callable[[int, Any], Any]
STEPS = 6
WHITE = policy(white=["Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum"])
GRAY = policy()  # nothing is low, so everything is float32
RECIPES: dict[str, Loop] = {}


def recipe(function: Loop) -> Loop:
    """Add a loop to the recipes."""
    RECIPES[function.__name__] = function
    return function


def fit(scaler: Any, network: Any, loss_of: Callable[[], Any], lr: float = 1e-2) -> float:
    """Train with SGD; ``loss_of`` draws a batch and returns its loss. Return the last loss."""
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
    for _ in range(STEPS):
        loss = loss_of()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return float(loss.detach())


class Memory:
    """A scaler that does nothing but note the losses: plain PyTorch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def scale(self, loss: Any) -> Any:
        self.losses.append(float(loss.detach()))
        return loss

    def unscale_(self, optimizer: Any) -> None: ...

    def step(self, optimizer: Any, *args: Any) -> Any:
        return optimizer.step(*args)

    def update(self) -> None: ...

    def get_scale(self) -> float:
        return 1.0


# --- architectures ---


@recipe
def decoder_with_masks(seed: int, scaler: Any) -> float:
    layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
    network = nn.TransformerDecoder(layer, 2)
    mask = nn.Transformer.generate_square_subsequent_mask(5)

    def loss() -> Any:
        padding = torch.arange(5) >= torch.randint(2, 6, (4, 1))
        x = network(
            torch.randn(4, 5, 16), torch.randn(4, 7, 16), tgt_mask=mask, tgt_key_padding_mask=padding.float() * -1e4
        )
        return (x - 1).square().mean()

    return fit(scaler, network, loss)


@recipe
def packed_gru(seed: int, scaler: Any) -> float:
    network = nn.ModuleDict({"gru": nn.GRU(4, 8, bidirectional=True), "head": nn.Linear(16, 1)})

    def loss() -> Any:
        packed = rnn.pack_padded_sequence(torch.randn(6, 3, 4), [6, 4, 2])
        outputs, _ = rnn.pad_packed_sequence(network["gru"](packed)[0])
        return (network["head"](outputs) - 1).square().mean()

    return fit(scaler, network, loss)


@recipe
def packed_lstm(seed: int, scaler: Any) -> float:
    network = nn.LSTM(4, 8, num_layers=2, dropout=0.2)

    def loss() -> Any:
        packed = rnn.pack_sequence([torch.randn(length, 4) for length in (5, 3, 1)])
        return network(packed)[1][0].square().mean()

    return fit(scaler, network, loss)


@recipe
def distances_to_prototypes(seed: int, scaler: Any) -> float:
    network = nn.Linear(6, 4)
    prototypes = torch.randn(3, 4)
    return fit(
        scaler,
        network,
        lambda: functional.cross_entropy(-torch.cdist(network(torch.randn(8, 6)), prototypes), torch.arange(8) % 3),
    )


@recipe
def ctc(seed: int, scaler: Any) -> float:
    network = nn.LSTM(5, 7)

    def loss() -> Any:
        log_probabilities = network(torch.randn(10, 2, 5))[0].log_softmax(-1)
        targets = torch.randint(1, 7, (2, 4))
        return functional.ctc_loss(log_probabilities, targets, torch.tensor([10, 9]), torch.tensor([4, 3]))

    return fit(scaler, network, loss)


class Branch(nn.Module):
    """Take another layer if the mean of the data says so."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.left(x) if x.mean() > 0 else torch.tanh(self.right(x))


@recipe
def data_dependent_branch(seed: int, scaler: Any) -> float:
    network = Branch()
    return fit(scaler, network, lambda: (network(torch.randn(8, 4)) - 1).square().mean())


class Experts(nn.Module):
    """Send each row to the expert with the largest gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Any) -> Any:
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            y.index_add_(0, rows, expert(x[rows]) * weights[rows, None])
        return y


@recipe
def mixture_of_experts(seed: int, scaler: Any) -> float:
    network = Experts()
    return fit(scaler, network, lambda: (network(torch.randn(12, 4)) - 1).square().mean())


@recipe
def attention_with_einsum(seed: int, scaler: Any) -> float:
    network = nn.Linear(8, 24)

    def loss() -> Any:
        q, k, v = network(torch.randn(2, 5, 8)).chunk(3, -1)
        weights = torch.einsum("bqd,bkd->bqk", q, k).div(math.sqrt(8)).softmax(-1)
        return (
            torch.einsum("bqk,bkd->bqd", weights, v).square().mean()
            + functional.scaled_dot_product_attention(q, k, v, is_causal=True).abs().mean()
        )

    return fit(scaler, network, loss)


@recipe
def variational_autoencoder(seed: int, scaler: Any) -> float:
    network = nn.ModuleDict({"encode": nn.Linear(8, 6), "decode": nn.Linear(3, 8)})

    def loss() -> Any:
        x = torch.rand(16, 8)
        mean, logarithm = network["encode"](x).chunk(2, -1)
        z = torch.distributions.Normal(mean, (0.5 * logarithm).exp()).rsample()
        divergence = 0.5 * (mean**2 + logarithm.exp() - 1 - logarithm).sum(-1).mean()
        return functional.binary_cross_entropy_with_logits(network["decode"](z), x) + 0.1 * divergence

    return fit(scaler, network, loss)


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(11, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(self.embed(tokens), src_mask=mask))


@recipe
def tied_language_model(seed: int, scaler: Any) -> float:
    network = Tied()

    def loss() -> Any:
        tokens = torch.randint(11, (4, 9))
        return functional.cross_entropy(network(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return fit(scaler, network, loss)


@recipe
def upsampling_with_group_norm(seed: int, scaler: Any) -> float:
    down, up = nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2)
    network = nn.Sequential(
        down, nn.GroupNorm(2, 8), nn.SiLU(inplace=True), up, nn.InstanceNorm2d(4), nn.PixelShuffle(2)
    )
    return fit(scaler, network, lambda: (network(torch.randn(2, 2, 8, 8)) - 1).square().mean())


# --- what a loop does with gradients ---


@recipe
def gradient_penalty(seed: int, scaler: Any) -> float:
    """A critic with a penalty on the norm of its gradient: a double backward pass."""
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss() -> Any:
        x = torch.randn(8, 4, requires_grad=True)
        score = network(x)
        (gradient,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score.mean() + (gradient.norm(dim=1) - 1).square().mean()

    return fit(scaler, network, loss)


@recipe
def generator_and_critic(seed: int, scaler: Any) -> float:
    """Two optimizers, and a loss of each in every step."""
    generator, critic = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(network.parameters(), 1e-3) for network in (generator, critic)]
    for _ in range(STEPS):
        real, fake = torch.randn(8, 4), generator(torch.randn(8, 3))
        losses = (-critic(fake).mean(), critic(fake.detach()).mean() - critic(real).mean())
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss).backward(retain_graph=True)
            scaler.step(optimizer)
        scaler.update()
    return float(losses[0].detach())


@recipe
def accumulation_and_clipping(seed: int, scaler: Any) -> float:
    network = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            loss = network(torch.randn(8, 4)).square().mean() / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return float(loss.detach())


@recipe
def groups_and_schedule(seed: int, scaler: Any) -> float:
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    groups = [{"params": network[0].parameters(), "lr": 1e-3}, {"params": network[1:].parameters(), "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
    for _ in range(STEPS):
        loss = (network(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return float(loss.detach())


@recipe
def sparse_embedding(seed: int, scaler: Any) -> float:
    bag, head = nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 1)
    optimizers = [torch.optim.SparseAdam(bag.parameters(), 1e-2), torch.optim.Adam(head.parameters(), 1e-2)]
    for _ in range(STEPS):
        loss = (head(bag(torch.randint(20, (8, 5)))) - 1).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    return float(loss.detach())


@recipe
def average_of_weights(seed: int, scaler: Any) -> float:
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    average = torch.optim.swa_utils.AveragedModel(network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def loss() -> Any:
        average.update_parameters(network)
        return (network(torch.randn(8, 4)) - 1).square().mean()

    return fit(scaler, network, loss)


class Straight(torch.autograd.Function):
    """Round forward, and pass the gradient through."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        (x,) = context.saved_tensors
        return gradients[0] * (x.abs() < 2)


@recipe
def custom_function(seed: int, scaler: Any) -> float:
    network = nn.Linear(4, 4)
    return fit(
        scaler, network, lambda: (Straight.apply(network(torch.randn(8, 4))) - network(torch.ones(4))).square().mean()
    )


def _checkpointed(scaler: Any, reentrant: bool) -> float:
    first, second = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.GELU()), nn.Linear(8, 1)

    def loss() -> Any:
        x = torch.randn(8, 4, requires_grad=True)
        return (second(checkpoint(first, x, use_reentrant=reentrant)) - 1).square().mean()

    return fit(scaler, nn.ModuleList([first, second]), loss)


@recipe
def checkpoint_in_a_graph(seed: int, scaler: Any) -> float:
    return _checkpointed(scaler, reentrant=False)


@recipe
def checkpoint_in_a_function(seed: int, scaler: Any) -> float:
    return _checkpointed(scaler, reentrant=True)


@recipe
def weight_and_spectral_norm(seed: int, scaler: Any) -> float:
    first, second = parametrizations.weight_norm(nn.Linear(4, 8)), parametrizations.spectral_norm(nn.Linear(8, 1))
    network = nn.Sequential(first, nn.ReLU(), second)
    return fit(scaler, network, lambda: (network(torch.randn(8, 4)) - 1).square().mean())


@recipe
def functional_calls(seed: int, scaler: Any) -> float:
    """A step inside of a step, as in meta-learning: ``torch.func`` gives the gradient of the inner one."""
    network = nn.Linear(4, 1)

    def loss() -> Any:
        x, y = torch.randn(2, 8, 4), torch.ones(8, 1)

        def inner(parameters: Any) -> Any:
            return functional.mse_loss(torch.func.functional_call(network, parameters, (x[0],)), y)

        parameters = dict(network.named_parameters())
        gradients = torch.func.grad(inner)(parameters)
        changed = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
        return functional.mse_loss(torch.func.functional_call(network, changed, (x[1],)), y)

    return fit(scaler, network, loss)


@recipe
def gradients_of_each_sample(seed: int, scaler: Any) -> float:
    """``vmap`` over ``grad``, as in private training."""
    network = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)

    def loss_of(parameters: Any, x: Any) -> Any:
        return (torch.func.functional_call(network, parameters, (x[None],)) - 1).square().mean()

    for _ in range(STEPS):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        loss = (network(x) - 1).square().mean()
        scaler.scale(loss).backward()
        parameters = {name: value.detach() for name, value in network.named_parameters()}
        norms = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(parameters, x)["weight"].flatten(1).norm(dim=1)
        assert norms.shape == (8,)
        scaler.step(optimizer)
        scaler.update()
    return float(loss.detach())


@recipe
def teacher_and_student(seed: int, scaler: Any) -> float:
    teacher, student = nn.Linear(6, 3), nn.Linear(6, 3)
    copied = copy.deepcopy(teacher).eval().requires_grad_(False)

    def loss() -> Any:
        x = torch.randn(8, 6)
        with torch.no_grad():
            target = copied(x).softmax(-1)
        return functional.kl_div(student(x).log_softmax(-1), target, reduction="batchmean")

    return fit(scaler, student, loss)


@recipe
def own_autocast(seed: int, scaler: Any) -> float:
    """Its ``torch.autocast`` has no lists."""
    network = nn.Linear(4, 1)

    def loss() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = network(torch.randn(8, 4))
        assert y.dtype is torch.float32 or not isinstance(scaler, Memory)
        return (y.float() - 1).square().mean()

    return fit(scaler, network, loss)


@recipe
def compiled_network(seed: int, scaler: Any) -> float:
    """``torch.compile`` runs eagerly."""
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    compiled = torch.compile(network, backend="eager")
    return fit(scaler, network, lambda: (compiled(torch.randn(8, 4)) - 1).square().mean())


# --- the tests ---


# As with torch's own GradScaler: a schedule warns if the first step is skipped.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_unchanged(name: str) -> None:
    report = mixlist.train(RECIPES[name], WHITE, runs=1)
    assert report.low_operators > 0
    run = report.runs[0]
    assert len(run.mixed.loss) == len(run.float32.loss) == STEPS
    assert all(map(math.isfinite, (*run.mixed.loss, *run.float32.loss)))
    assert run.mixed.loss != run.float32.loss
    assert not run.mixed.diverged and not run.float32.diverged


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - {"own_autocast"}))
def test_without_low_operators_a_recipe_is_plain_pytorch(name: str) -> None:
    """Attention takes the kernel of single operators in both."""
    report = mixlist.train(RECIPES[name], GRAY, runs=1, loss_scaler="none")
    assert report.low_operators == 0
    torch.manual_seed(0)
    plain = Memory()
    with sdpa_kernel(SDPBackend.MATH):
        RECIPES[name](0, plain)
    if len(plain.losses) > STEPS:  # the report has the mean of the losses of a step
        plain.losses = [(a + b) / 2 for a, b in zip(plain.losses[::2], plain.losses[1::2], strict=True)]
    for losses in (report.runs[0].mixed.loss, report.runs[0].float32.loss):
        assert losses == plain.losses


def half_precision(seed: int, scaler: Any) -> float:
    network = nn.Linear(4, 1).half()
    return fit(scaler, network, lambda: network(torch.randn(8, 4).half()).square().mean())


def closures(seed: int, scaler: Any) -> float:
    network = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(network.parameters())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = network(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        return loss

    for _ in range(STEPS):
        scaler.step(optimizer, closure)
        scaler.update()
    return 0.0


@pytest.mark.parametrize(
    ("loop", "message"), [(half_precision, "reads a float16 tensor"), (closures, "closure")], ids=["half", "closure"]
)
def test_a_recipe_that_cannot_be_judged_is_refused(loop: Loop, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mixlist.train(loop, WHITE, runs=1)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_a_sharded_network_trains_as_the_whole_one(tmp_path: Any) -> None:
    """FSDP2: the parameters and gradients are the parts of one process."""
    from torch.distributed.fsdp import fully_shard

    def train(shards: bool) -> Any:
        def loop(seed: int) -> float:
            network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            if shards:
                fully_shard(network, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
            return fit(torch.amp.GradScaler("cpu"), network, lambda: (network(torch.randn(8, 4)) - 1).square().mean())

        return mixlist.train(loop, WHITE, runs=1)

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        sharded, whole = train(shards=True), train(shards=False)
    finally:
        torch.distributed.destroy_process_group()
    assert sharded.runs[0].mixed.loss == whole.runs[0].mixed.loss
    assert sharded.runs[0].float32.loss == whole.runs[0].float32.loss
    assert sharded.underflow == whole.underflow and sharded.warnings == whole.warnings
