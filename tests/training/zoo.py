"""Sixty-two small networks of many kinds of layers and losses, to be exported as training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from tests.support.training_cases import Attend, Case, Lambda, TiedWords, images, words

Loss = Callable[..., Any]


def apply_loss(function: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Return a loss function of the output and the target ``y``."""

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Any:
        out = module(x)
        return function(out, y), {"out": out}

    return loss


def with_target(rows: Callable[[int], dict[str, Tensor]], target: Callable[[int], Tensor]) -> Any:
    return lambda count: {**rows(count), "y": target(count)}


def linear(outputs: int = 3) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))


def loss_case(name: str, function: Any, target: Callable[[int], Tensor], outputs: int = 3) -> Case:
    return Case(name, linear(outputs), with_target(images(6), target), apply_loss(function))


def layers(*parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(part() for part in parts))


def function_case(name: str, function: Callable[[Tensor], Tensor]) -> Case:
    return Case(name, lambda: Lambda(function, 6), images(6))


class Bag(nn.Module):
    """Sums or means of embeddings, for bags of equal size."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(9, 4, mode=mode), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.bag(x))


class Warp(nn.Module):
    """Sample an image at learned places."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv, self.move, self.options = nn.Conv2d(2, 2, 1), nn.Linear(2, 2), options

    def forward(self, x: Tensor) -> Tensor:
        places = torch.linspace(-1.1, 1.1, 40, dtype=x.dtype).view(1, 5, 4, 2)
        grid = places * torch.ones_like(x[:, :1, :1, :1])
        return F.grid_sample(
            self.conv(x), grid + 0.1 * torch.tanh(self.move(grid)), align_corners=False, **self.options
        )


class Graph(nn.Module):
    """One round of messages over a fixed graph of four vertices."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(3, 3), nn.Linear(6, 3)
        self.register_buffer("source", torch.tensor([0, 1, 2, 3, 0]))
        self.register_buffer("target", torch.tensor([1, 2, 3, 0, 2]))

    def forward(self, x: Tensor) -> Tensor:
        messages = torch.relu(self.message(x[:, self.source]))
        return self.update(torch.cat([x, torch.zeros_like(x).index_add(1, self.target, messages)], -1))


class Residual(nn.Module):
    """A convolution with a batch normalization and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.conv(x)))


class SharedBlock(nn.Module):
    """One block under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Autoencoder(nn.Module):
    """A variational autoencoder without its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, -1)
        return self.decode(mean + torch.exp(log_variance / 2)), mean, log_variance


def variational(module: nn.Module, x: Tensor) -> Any:
    out, mean, log_variance = module(x)
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
    return F.mse_loss(out, x) + 0.1 * divergence, {"out": out}


def triplet(module: nn.Module, x: Tensor) -> Any:
    a, p, n = module(x).chunk(3, -1)
    return F.triplet_margin_loss(a, p, n, margin=2.0), {}


def contrastive(module: nn.Module, x: Tensor) -> Any:
    out = F.normalize(module(x), dim=-1)
    return F.cosine_embedding_loss(out[:, :2], out[:, 1:], torch.ones(x.shape[0], dtype=x.dtype)), {"out": out}


def ctc(module: nn.Module, x: Tensor) -> Any:
    log_probabilities = module(x).log_softmax(-1).transpose(0, 1)
    rows = x.shape[0]
    return F.ctc_loss(log_probabilities, torch.ones(rows, 2, dtype=torch.long), torch.full((rows,), 5),
                      torch.full((rows,), 2)), {}  # fmt: skip


def floats(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def shares(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.rand(count, *shape)


def classes(count: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randint(0, count, (rows,))


def signs(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(0, 2, (count, *shape)) * 2.0 - 1


def conv2d(*parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return layers(lambda: nn.Conv2d(2, 3, 3), *parts)


def log_probabilities(function: Any) -> Any:
    return lambda out, y: function(out.log_softmax(-1), y)


NETWORKS = [
    # Losses
    loss_case("bce_with_logits", F.binary_cross_entropy_with_logits, shares(3)),
    loss_case("bce", lambda out, y: F.binary_cross_entropy(out.sigmoid(), y), shares(3)),
    loss_case("bce_weighted", lambda out, y: F.binary_cross_entropy_with_logits(
        out, y, pos_weight=torch.tensor([1.0, 2.0, 3.0], dtype=out.dtype)), shares(3)),
    loss_case("focal", lambda out, y: (F.binary_cross_entropy_with_logits(out, y, reduction="none")
                                       * (1 - out.sigmoid()) ** 2).mean(), shares(3)),
    loss_case("multilabel_soft_margin", F.multilabel_soft_margin_loss, shares(3)),
    loss_case("cross_entropy", F.cross_entropy, classes(3)),
    loss_case("label_smoothing", lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1), classes(3)),
    loss_case("soft_targets", F.cross_entropy, lambda rows: torch.rand(rows, 3).softmax(-1)),
    loss_case("nll", log_probabilities(F.nll_loss), classes(3)),
    loss_case("kl", log_probabilities(lambda out, y: F.kl_div(out, y, reduction="batchmean")),
              lambda rows: torch.rand(rows, 3).softmax(-1)),
    loss_case("mse", F.mse_loss, floats(3)),
    loss_case("l1", F.l1_loss, floats(3)),
    loss_case("huber", lambda out, y: F.huber_loss(out, y, delta=0.5), floats(3)),
    loss_case("smooth_l1", F.smooth_l1_loss, floats(3)),
    loss_case("poisson", F.poisson_nll_loss, shares(3)),
    loss_case("gaussian", lambda out, y: F.gaussian_nll_loss(out, y, out.exp()), floats(3)),
    loss_case("hinge_embedding", F.hinge_embedding_loss, signs(3)),
    loss_case("soft_margin", F.soft_margin_loss, signs(3)),
    loss_case("margin_ranking", lambda out, y: F.margin_ranking_loss(out[:, 0], out[:, 1], y), signs()),
    loss_case("cosine_embedding", lambda out, y: F.cosine_embedding_loss(out, out.flip(-1) + 1, y), signs()),
    loss_case("multi_margin", F.multi_margin_loss, classes(3)),
    Case("triplet", linear(6), images(6), triplet),
    Case("contrastive", linear(3), images(6), contrastive),
    Case("variational_autoencoder", Autoencoder, images(6), variational),
    Case("ctc", lambda: nn.Linear(6, 4), images(5, 6), ctc),
    # Embeddings and sequences
    Case("embedding_bag_mean", lambda: Bag("mean"), words(9, 5)),
    Case("embedding_bag_sum", lambda: Bag("sum"), words(9, 5)),
    Case("embedding_bag_max", lambda: Bag("max"), words(9, 5)),
    Case("tied_words", TiedWords, words(11, 4)),
    Case("lstm_two_layers", lambda: nn.LSTM(4, 3, 2, batch_first=True, dropout=0.0), images(5, 4)),
    Case("gru_bidirectional", lambda: nn.GRU(4, 3, batch_first=True, bidirectional=True), images(5, 4)),
    Case("rnn", lambda: nn.RNN(4, 3, batch_first=True), images(5, 4)),
    Case("attention", Attend, images(5, 8)),
    Case("encoder", lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), 2, enable_nested_tensor=False), images(5, 8)),
    Case("graph", Graph, images(4, 3)),
    # Weights that are computed
    Case("weight_norm", layers(lambda: weight_norm(nn.Linear(6, 4))), images(6)),
    Case("weight_norm_conv", layers(lambda: weight_norm(nn.Conv1d(2, 3, 3))), images(2, 8)),
    Case("spectral_norm", layers(lambda: spectral_norm(nn.Linear(6, 4)).eval()), images(6)),
    Case("orthogonal", layers(lambda: orthogonal(nn.Linear(6, 6))), images(6)),
    Case("shared_block", SharedBlock, images(6)),
    # Images
    Case("residual_batch_norm", Residual, images(3, 5, 5)),
    Case("batch_norm_cumulative", layers(
        lambda: nn.Conv2d(2, 3, 3, bias=False), lambda: nn.BatchNorm2d(3, momentum=None)), images(2, 5, 5)),
    Case("replicate_pad_1d", layers(lambda: nn.Conv1d(2, 3, 3), lambda: nn.ReplicationPad1d(2)), images(2, 8)),
    Case("replicate_pad_2d", conv2d(lambda: nn.ReplicationPad2d((1, 2, 0, 3))), images(2, 5, 5)),
    Case("reflect_pad", conv2d(lambda: nn.ReflectionPad2d(2)), images(2, 6, 6)),
    Case("circular_pad", layers(lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")), images(2, 6, 6)),
    Case("grid_sample", Warp, images(2, 6, 5)),
    Case("grid_sample_border", lambda: Warp(padding_mode="border"), images(2, 6, 5)),
    Case("upsample_bilinear", conv2d(lambda: nn.Upsample(scale_factor=2, mode="bilinear")), images(2, 5, 5)),
    Case("pixel_shuffle", layers(lambda: nn.Conv2d(2, 4, 3), lambda: nn.PixelShuffle(2)), images(2, 5, 5)),
    Case("unfold", conv2d(lambda: nn.Unfold(2)), images(2, 5, 5)),
    Case("lp_pool", conv2d(lambda: nn.LPPool2d(2, 2)), images(2, 6, 6)),
    Case("local_response_norm", conv2d(lambda: nn.LocalResponseNorm(2)), images(2, 5, 5)),
    # Functions
    function_case("prod", lambda x: x.prod(-1, keepdim=True) * x),
    function_case("prod_of_all", lambda x: x.unflatten(-1, (2, 3)).prod(1)),
    function_case("rrelu", lambda x: F.rrelu(x, training=False)),
    function_case("prelu", lambda x: F.prelu(x, torch.full((1,), 0.2, dtype=x.dtype))),
    function_case("cumsum", lambda x: x.cumsum(-1)),
    function_case("logsumexp", lambda x: torch.logsumexp(x, -1, keepdim=True) + x),
    function_case("einsum", lambda x: torch.einsum("bi,bj->bij", x, x)),
    function_case("norm", lambda x: F.normalize(x, dim=-1) + torch.linalg.norm(x, dim=-1, keepdim=True)),
    function_case("topk", lambda x: x.topk(3, -1).values),
]  # fmt: skip
QUICK = ("bce_with_logits", "embedding_bag_mean", "weight_norm", "prod", "batch_norm_cumulative")
# The networks that ONNX cannot express, and what the error names.
REFUSED = {
    "gaussian": r"value of a tensor \(.*zoo.py",
    "ctc": r"value of a tensor \(.*zoo.py",
    "orthogonal": r"aten.linalg_matrix_exp of module",
}
