"""Small modules and batches, one per kind of layer that a step must be able to hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def weighted(module: nn.Module, x: Tensor, **more: Tensor) -> Any:
    """Sines of the outputs, each with a weight: sums and squares of normalised values have no gradient."""
    out = module(x, **more)
    out = out[0] if isinstance(out, tuple) else out
    weights = torch.linspace(0.5, 2, out[0].numel(), dtype=out.dtype).view(out.shape[1:])
    return (1 + torch.sin(out * weights)).mean(), {"out": out}


def every_weighted(module: nn.Module, x: Tensor) -> Any:
    """Return the sum of such losses of the outputs that a module returns by name, and the outputs."""
    outputs = module(x)
    losses = [weighted(nn.Identity(), out)[0] for out in outputs.values()]
    return torch.stack(losses).sum(), outputs


@dataclass(frozen=True)
class Case:
    """``make`` builds the module, ``rows`` the inputs of n rows; the loss is a weighted sum of what comes out."""

    name: str
    make: Callable[[], nn.Module]
    rows: Callable[[int], dict[str, Tensor]]
    loss: Callable[..., Any] = weighted


def classify(module: nn.Module, x: Tensor, y: Tensor) -> Any:
    logits = module(x)
    return F.cross_entropy(logits, y), {"logits": logits}


class Lambda(nn.Module):
    """A parameter, then a function: for what has none of its own."""

    def __init__(self, function: Callable[[Tensor], Tensor], size: int) -> None:
        super().__init__()
        self.function, self.shift = function, nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x + self.shift)


class Attend(nn.Module):
    """Self-attention with two heads of four channels."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.project, self.options = nn.Linear(8, 24), options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2)


class TiedWords(nn.Module):
    """A language model whose embedding is its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(x)).mean(1))


class Counting(nn.Module):
    """State of its own: one buffer written in place, one replaced, one that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("largest", torch.zeros(3))
        self.register_buffer("shift", torch.tensor([1.0, -2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        self.mean.mul_(0.9).add_(0.1 * out.detach().mean(0))
        self.largest = torch.maximum(self.largest, out.detach().amax(0))
        return out * self.shift


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "elu": F.elu, "leaky": F.leaky_relu, "softplus": F.softplus, "hardswish": F.hardswish,
    "mish": F.mish, "relu6": F.relu6, "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1),
    "glu": F.glu,
}  # fmt: skip


class Activations(nn.Module):
    """All activations, each with a parameter of its own; one module, since each export takes a second."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = nn.ParameterDict({name: nn.Parameter(torch.randn(6)) for name in ACTIVATIONS})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: function(x + self.shifts[name]) for name, function in ACTIVATIONS.items()}


def images(*shape: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda rows: {"x": torch.randn(rows, *shape)}


def words(size: int, length: int) -> Callable[[int], dict[str, Tensor]]:
    return lambda rows: {"x": torch.randint(0, size, (rows, length))}


def pooled(pool: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 3), pool)


def mask() -> Tensor:
    allowed = torch.ones(5, 5, dtype=torch.bool)
    allowed[0, 1], allowed[2, 3:] = False, False
    return allowed


CASES = [
    Case("mlp", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), images(6)),
    Case("conv", lambda: nn.Conv2d(3, 4, 3), images(3, 7, 6)),
    Case("conv_no_bias", lambda: nn.Conv2d(3, 4, (3, 2), bias=False), images(3, 7, 6)),
    Case("conv_stride", lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 4, 3, stride=2)), images(2, 8, 7)),
    Case("conv_padding", lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 5, padding=(2, 1))),
         images(2, 6, 6)),
    Case("conv_all", lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 6, (3, 2), (2, 3), (2, 1), (2, 1), 2)),
         images(2, 11, 10)),
    Case("conv_same", lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 4, padding="same")), images(2, 6, 6)),
    Case("conv_dilation", lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 4, 3, dilation=2)), images(2, 8, 9)),
    Case("conv_groups", lambda: nn.Sequential(nn.Conv2d(2, 6, 1), nn.Conv2d(6, 9, 3, groups=3)), images(2, 6, 6)),
    Case("conv_depthwise", lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4)),
         images(2, 6, 6)),
    Case("conv_1d", lambda: nn.Sequential(nn.Conv1d(2, 3, 3, 2, 1), nn.Conv1d(3, 4, 3, dilation=2)), images(2, 16)),
    Case("conv_3d", lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Conv3d(2, 3, 2, 2)), images(1, 5, 6, 5)),
    Case("transposed", lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.ConvTranspose2d(3, 4, 3)), images(2, 5, 4)),
    Case("transposed_all",
         lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.ConvTranspose2d(4, 6, 3, (2, 3), (1, 0), (1, 2), 2)),
         images(2, 5, 4)),
    Case("transposed_dilation",
         lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.ConvTranspose2d(4, 2, 3, 2, 1, 1, dilation=2)), images(2, 5, 4)),
    Case("transposed_1d", lambda: nn.Sequential(nn.Conv1d(2, 3, 1), nn.ConvTranspose1d(3, 2, 4, 2)), images(2, 6)),
    Case("max_pool", pooled(nn.MaxPool2d(2)), images(2, 8, 8)),
    Case("max_pool_overlap", pooled(nn.MaxPool2d(3, 2, 1)), images(2, 9, 8)),
    Case("max_pool_ceil", pooled(nn.MaxPool2d(3, 2, ceil_mode=True)), images(2, 8, 8)),
    Case("max_pool_1d", lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.MaxPool1d(2)), images(2, 10)),
    Case("avg_pool", pooled(nn.AvgPool2d(2)), images(2, 8, 8)),
    Case("avg_pool_overlap", pooled(nn.AvgPool2d(3, 2, 1)), images(2, 9, 8)),
    Case("avg_pool_no_pad", pooled(nn.AvgPool2d(3, 2, 1, count_include_pad=False)), images(2, 9, 8)),
    Case("avg_pool_ceil", pooled(nn.AvgPool2d(3, 2, 1, ceil_mode=True)), images(2, 8, 7)),
    Case("avg_pool_divisor", pooled(nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=4)), images(2, 8, 9)),
    Case("avg_pool_1d", lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.AvgPool1d(2)), images(2, 10)),
    Case("adaptive_avg_one", pooled(nn.AdaptiveAvgPool2d(1)), images(2, 8, 8)),
    Case("adaptive_avg_even", pooled(nn.AdaptiveAvgPool2d((3, 2))), images(2, 8, 8)),
    Case("adaptive_avg_uneven", pooled(nn.AdaptiveAvgPool2d((4, 5))), images(2, 9, 8)),
    Case("adaptive_max", pooled(nn.AdaptiveMaxPool2d((3, 2))), images(2, 8, 8)),
    Case("batch_norm_1d", lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5)), images(4)),
    Case("batch_norm_2d", lambda: nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU()),
         images(2, 6, 6)),
    Case("batch_norm_plain", lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3, affine=False, track_running_stats=False)), images(2, 6, 6)),
    Case("batch_norm_eval", lambda: nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3).eval()),
         images(2, 6, 6)),
    Case("layer_norm", lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)), images(5, 4)),
    Case("layer_norm_two_axes", lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm((5, 6))), images(5, 4)),
    Case("group_norm", lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6)), images(2, 6, 6)),
    Case("instance_norm", lambda: nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.InstanceNorm2d(3, affine=True)),
         images(2, 6, 6)),
    Case("rms_norm", lambda: nn.Sequential(nn.Linear(4, 6), nn.RMSNorm(6)), images(5, 4)),
    Case("embedding", lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), words(9, 5)),
    Case("embedding_padding", lambda: nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 3)), words(9, 5)),
    Case("tied", TiedWords, words(11, 4)),
    Case("attention", Attend, images(5, 8)),
    Case("attention_causal", lambda: Attend(is_causal=True), images(5, 8)),
    Case("attention_mask", lambda: Attend(attn_mask=mask()), images(5, 8)),
    Case("attention_bias", lambda: Attend(attn_mask=torch.linspace(-1, 1, 25).view(5, 5), scale=0.3), images(5, 8)),
    Case("encoder_layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, F.gelu, batch_first=True), images(5, 8)),
    Case("decoder_layer", lambda: Decoder(), images(5, 8)),
    Case("activations", Activations, images(6), every_weighted),
    Case(
        "slices_beyond_an_end",
        lambda: Lambda(lambda x: torch.cat([x[:, -10:], x[:, -9::2], x[:, 3:99], x[:, 9:]], 1), 6),
        images(6),
    ),
    Case("slices", lambda: Lambda(lambda x: torch.cat([x[:, 1:4], x[:, ::2], x[:, -1:], x[:, 2, None]], 1), 6),
         images(6)),
    Case("boolean_index", lambda: Lambda(lambda x: x * x[x > 0].mean(), 6), images(6)),
    Case("value", lambda: Lambda(lambda x: x * x.sum().item(), 6), images(6)),
    Case("upsample", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Upsample(scale_factor=2)), images(2, 5, 5)),
    Case("lstm", lambda: nn.LSTM(4, 3, batch_first=True), images(5, 4)),
    Case("gru", lambda: nn.GRU(4, 3, batch_first=True), images(5, 4)),
    Case("state", Counting, images(4)),
]  # fmt: skip


class Decoder(nn.Module):
    """A decoder layer over its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x.flip(1), tgt_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=x.dtype))
