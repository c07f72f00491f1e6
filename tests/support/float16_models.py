"""Networks authored in float16 with a planted outlier: a convolutional network and a decoder of a language model.

An outlier is planted by a factor on one weight and its inverse on another one, so that the output stays as it was and
one product in between exceeds the range of float16. ``Planted.offender`` is the first node that exceeds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

CHANNELS, WIDTH, HEADS, VOCABULARY = 8, 32, 4, 40

_STEM = """
    ["/stem/conv"] s0 = Conv<pads=[1,1,1,1]>(image, stem_w)
    ["/stem/relu"] h0 = Relu(s0)"""
_CONV_BLOCK = """
    ["/{i}/conv1"] a{i} = Conv<pads=[1,1,1,1]>(h{i}, w{i}_w1)
    ["/{i}/relu1"] r{i} = Relu(a{i})
    ["/{i}/conv2"] c{i} = Conv<pads=[1,1,1,1]>(r{i}, w{i}_w2)
    ["/{i}/add"] d{i} = Add(h{i}, c{i})
    ["/{i}/relu2"] h{j} = Relu(d{i})"""
_CONV_HEAD = """
    ["/head/pool"] pooled = GlobalAveragePool(h{i})
    ["/head/flatten"] flat = Flatten(pooled)
    ["/head/fc"] scores = MatMul(flat, head_w)"""

_NORM = """
    ["{n}/square"] {t}2 = Mul({x}, {x})
    ["{n}/mean"] {t}m = ReduceMean({t}2, last)
    ["{n}/eps"] {t}e = Add({t}m, eps)
    ["{n}/sqrt"] {t}s = Sqrt({t}e)
    ["{n}/div"] {t} = Div({x}, {t}s)"""
_ATTENTION = """
    ["/{i}/q"] q{i} = MatMul(n{i}, w{i}_q)
    ["/{i}/k"] k{i} = MatMul(n{i}, w{i}_k)
    ["/{i}/v"] v{i} = MatMul(n{i}, w{i}_v)
    ["/{i}/q/split"] qs{i} = Reshape(q{i}, heads)
    ["/{i}/k/split"] ks{i} = Reshape(k{i}, heads)
    ["/{i}/v/split"] vs{i} = Reshape(v{i}, heads)
    ["/{i}/q/move"] qt{i} = Transpose<perm=[0,2,1,3]>(qs{i})
    ["/{i}/k/move"] kt{i} = Transpose<perm=[0,2,3,1]>(ks{i})
    ["/{i}/v/move"] vt{i} = Transpose<perm=[0,2,1,3]>(vs{i})
    ["/{i}/scores"] sc{i} = MatMul(qt{i}, kt{i})
    ["/{i}/scale"] sd{i} = Div(sc{i}, w{i}_root)
    ["/{i}/softmax"] p{i} = Softmax(sd{i})
    ["/{i}/mix"] mx{i} = MatMul(p{i}, vt{i})
    ["/{i}/mix/move"] mt{i} = Transpose<perm=[0,2,1,3]>(mx{i})
    ["/{i}/mix/join"] mj{i} = Reshape(mt{i}, joined)
    ["/{i}/o"] o{i} = MatMul(mj{i}, w{i}_o)
    ["/{i}/add1"] g{i} = Add(h{i}, o{i})"""
_FEED_FORWARD = """
    ["/{i}/gate"] ga{i} = MatMul(f{i}, w{i}_gate)
    ["/{i}/sigmoid"] si{i} = Sigmoid(ga{i})
    ["/{i}/silu"] sl{i} = Mul(ga{i}, si{i})
    ["/{i}/up"] u{i} = MatMul(f{i}, w{i}_up)
    ["/{i}/times"] w{i} = Mul(sl{i}, u{i})
    ["/{i}/down"] dn{i} = MatMul(w{i}, w{i}_down)
    ["/{i}/add2"] h{j} = Add(g{i}, dn{i})"""


@dataclass(frozen=True)
class Planted:
    """A network with a planted outlier, two batches for it, and the node where the overflow starts."""

    name: str
    model: onnx.ModelProto
    feeds: list[dict[str, Any]]
    offender: str


def planted_networks(count: int) -> list[Planted]:
    """Return this many networks, half of them convolutional; each has its outlier in another place."""
    makers = (_plant_convolution, _plant_decoder)
    return [makers[seed % 2](seed) for seed in range(count)]


def convolutional_network(seed: int, blocks: int) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """Return the text and the float32 weights of a small residual network."""
    random = np.random.default_rng(seed)
    names = [f"w{block}_w{number}" for block in range(blocks) for number in (1, 2)]
    weights = {name: random.normal(size=(CHANNELS, CHANNELS, 3, 3)) / 12 for name in names}
    weights["stem_w"] = random.normal(size=(CHANNELS, 3, 3, 3)) / 4
    weights["head_w"] = random.normal(size=(CHANNELS, 5)) / 2
    body = "".join(_CONV_BLOCK.format(i=block, j=block + 1) for block in range(blocks))
    text = f"g (float16[n,3,8,8] image) => (float16[n,5] scores) {{{_STEM}{body}{_CONV_HEAD.format(i=blocks)}\n}}"
    return text, weights


def decoder(seed: int, layers: int) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """Return the text and the float32 weights of a small decoder, with its normalizations in single operators."""
    random = np.random.default_rng(seed)
    sizes = {"gate": (WIDTH, 2 * WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    sizes |= dict.fromkeys("qkvo", (WIDTH, WIDTH))
    weights = {
        f"w{layer}_{name}": random.normal(size=size) / size[0] ** 0.5
        for layer in range(layers)
        for name, size in sizes.items()
    }
    weights |= {"table": random.normal(size=(VOCABULARY, WIDTH)), "head": random.normal(size=(WIDTH, VOCABULARY)) / 6}
    weights |= {f"w{layer}_root": np.array((WIDTH / HEADS) ** 0.5) for layer in range(layers)}
    weights["eps"] = np.array(1e-3)
    body = "".join(
        _NORM.format(n=f"/{i}/norm1", t=f"n{i}", x=f"h{i}")
        + _ATTENTION.format(i=i)
        + _NORM.format(n=f"/{i}/norm2", t=f"f{i}", x=f"g{i}")
        + _FEED_FORWARD.format(i=i, j=i + 1)
        for i in range(layers)
    )
    end = _NORM.format(n="/norm", t="last_h", x=f"h{layers}") + '\n    ["/head"] logits = MatMul(last_h, head)'
    start = '\n    ["/embed"] h0 = Gather(table, ids)'
    text = f"g (int64[n,length] ids) => (float16[n,length,{VOCABULARY}] logits) {{{start}{body}{end}\n}}"
    return text, weights


def build(text: str, weights: dict[str, np.ndarray[Any, Any]], dtype: Any = np.float16) -> onnx.ModelProto:
    """Return the model with its weights rounded to ``dtype``."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}')
    for name, values in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(values.astype(dtype), name))
    shapes = {"heads": [0, 0, HEADS, WIDTH // HEADS], "joined": [0, 0, WIDTH], "last": [-1]}
    if "table" in weights:
        for name, shape in shapes.items():
            model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    return model


def image_feeds(seed: int) -> list[dict[str, Any]]:
    """Return two batches for a convolutional network."""
    random = np.random.default_rng(seed)
    return [{"image": random.normal(size=(2, 3, 8, 8)).astype(np.float16)} for _ in range(2)]


def token_feeds(seed: int) -> list[dict[str, Any]]:
    """Return two batches for a decoder."""
    random = np.random.default_rng(seed)
    return [{"ids": random.integers(0, VOCABULARY, (2, 6))} for _ in range(2)]


def _plant_convolution(seed: int) -> Planted:
    blocks = 3
    text, weights = convolutional_network(seed, blocks)
    block = seed // 2 % blocks
    weights[f"w{block}_w1"] *= 2.0**17
    weights[f"w{block}_w2"] /= 2.0**17
    return Planted(f"cnn-{seed}", build(text, weights), image_feeds(seed), f"/{block}/conv1")


# The factors on weights of one layer, by the node where the overflow starts. Each weight stays a float16 number, and
# the factors on "root" and "down" undo the others. Before the last normalization, no other factor is needed.
_DECODER_FACTORS: dict[str, dict[str, float]] = {
    "/{i}/up": {"up": 2.0**16, "down": 2.0**-16},
    "/{i}/scores": {"q": 2.0**7, "k": 2.0**7, "root": 2.0**14},
    "/{i}/v": {"v": 2.0**16, "o": 2.0**-16},
    "/{i}/times": {"gate": 2.0**3, "up": 2.0**13, "down": 2.0**-16},
    "/norm/square": {"down": 2.0**10},
}


def _plant_decoder(seed: int) -> Planted:
    layers = 3
    text, weights = decoder(seed, layers)
    offender, factors = list(_DECODER_FACTORS.items())[seed // 2 % len(_DECODER_FACTORS)]
    layer = layers - 1 if offender == "/norm/square" else seed // 4 % layers
    for name, factor in factors.items():
        weights[f"w{layer}_{name}"] *= factor
    offender = offender.format(i=layer)
    return Planted(f"decoder-{seed}{offender.replace('/', '-')}", build(text, weights), token_feeds(seed), offender)
