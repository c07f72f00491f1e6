#!/usr/bin/env python3
"""Export ten small transformers with random weights, each with one batch of data.

    python benchmarks/export_transformers.py FOLDER [NAME ...]

Writes ``NAME.onnx`` and ``NAME.npz`` for each network, 46 MB at most. The architectures are those of the package
``transformers``, with four layers of width 256, in evaluation mode and without a cache. The weights are those that the
package generates for training, from a fixed seed. PyTorch's older exporter, based on TorchScript, writes every other
network at opset 17, and the newer one, ``dynamo=True``, the rest at opset 18. Needs torch, transformers and onnxscript;
``compare_converters.py`` runs this file in an environment that has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

WIDTH, LAYERS, HEADS, WORDS = 256, 4, 4, 8000
SHAPE = (2, 32)  # two texts of 32 tokens
EAGER = {"attn_implementation": "eager"}  # the attention as single operators, which both exporters can write
DIMENSIONS = {
    "input_ids": {0: "batch", 1: "sequence"},
    "attention_mask": {0: "batch", 1: "sequence"},
    "decoder_input_ids": {0: "batch", 1: "decoded"},
    "pixel_values": {0: "batch"},
    "input_features": {0: "batch"},
}

Inputs = dict[str, torch.Tensor]


class _FirstOutput(torch.nn.Module):
    """The network with positional inputs, and its first output alone."""

    def __init__(self, network: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.network(**dict(zip(self.names, inputs, strict=True)), return_dict=False)[0]
        return output


def _text() -> Inputs:
    mask = torch.ones(SHAPE, dtype=torch.long)
    mask[-1, SHAPE[1] * 2 // 3 :] = 0  # padding, so that the mask has an effect
    return {"input_ids": torch.randint(1, WORDS, SHAPE), "attention_mask": mask}


def _images() -> Inputs:
    return {"pixel_values": torch.randn(2, 3, 224, 224)}


def _encoder(config: type, network: type, **options: Any) -> torch.nn.Module:
    """Return a network of BERT's family, whose options have BERT's names."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    module: torch.nn.Module = network(config(**sizes, intermediate_size=4 * WIDTH, **EAGER, **options))
    return module


def _decoder(config: type, network: type, **options: Any) -> torch.nn.Module:
    return _encoder(config, network, vocab_size=WORDS, num_key_value_heads=2, use_cache=False, **options)


def _gpt2() -> torch.nn.Module:
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": WORDS}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False, **EAGER))


def _t5() -> torch.nn.Module:
    sizes = {"d_model": WIDTH, "d_kv": 64, "d_ff": 4 * WIDTH, "num_layers": LAYERS, "num_heads": HEADS}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, vocab_size=WORDS, use_cache=False))


def _whisper() -> torch.nn.Module:
    sizes = {"d_model": WIDTH, "encoder_layers": LAYERS, "encoder_attention_heads": HEADS, "encoder_ffn_dim": 4 * WIDTH}
    sizes |= {"decoder_layers": 1, "decoder_attention_heads": HEADS}
    config = transformers.WhisperConfig(**sizes, max_source_positions=200, vocab_size=WORDS, pad_token_id=0, **EAGER)
    encoder: torch.nn.Module = transformers.WhisperModel(config).encoder
    return encoder


def _clip() -> torch.nn.Module:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    text = {**sizes, "intermediate_size": 4 * WIDTH, "vocab_size": WORDS, "eos_token_id": WORDS - 1}
    vision = {**sizes, "intermediate_size": 4 * WIDTH, "patch_size": 32}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, **EAGER))


# The network and its inputs, by name. The order decides the exporter.
NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], Inputs]]] = {
    "bert": (lambda: _encoder(transformers.BertConfig, transformers.BertModel, vocab_size=WORDS), _text),
    "llama": (lambda: _decoder(transformers.LlamaConfig, transformers.LlamaForCausalLM), _text),
    "mpnet": (lambda: _encoder(transformers.MPNetConfig, transformers.MPNetModel, vocab_size=WORDS), _text),
    "gpt2": (_gpt2, _text),
    "deberta": (
        lambda: _encoder(
            transformers.DebertaV2Config,
            transformers.DebertaV2Model,
            vocab_size=WORDS,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
        ),
        _text,
    ),
    "vit": (lambda: _encoder(transformers.ViTConfig, transformers.ViTForImageClassification), _images),
    "t5": (_t5, lambda: {**_text(), "decoder_input_ids": torch.randint(1, WORDS, (2, 8))}),
    "whisper": (_whisper, lambda: {"input_features": torch.randn(1, 80, 400)}),
    "clip": (_clip, lambda: {**_text(), **_images()}),
    "swin": (
        lambda: transformers.SwinForImageClassification(transformers.SwinConfig(embed_dim=48, depths=[1, 1, 2, 1])),
        _images,
    ),
}


def export(name: str, folder: Path) -> None:
    """Write the model and the batch of one network."""
    torch.manual_seed(0)
    make_network, make_inputs = NETWORKS[name]
    network = make_network().eval()
    inputs = make_inputs()
    wrapper, arguments, path = (
        _FirstOutput(network, list(inputs)).eval(),
        tuple(inputs.values()),
        folder / f"{name}.onnx",
    )
    dimensions = {input_name: DIMENSIONS[input_name] for input_name in inputs}
    names: dict[str, Any] = {"input_names": list(inputs), "output_names": ["output"]}
    with torch.no_grad():
        if list(NETWORKS).index(name) % 2:
            shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in dimensions.values())
            program = torch.onnx.export(
                wrapper, arguments, **names, dynamic_shapes=(shapes,), opset_version=18, dynamo=True
            )
            assert program is not None
            program.save(str(path))
        else:
            torch.onnx.export(
                wrapper, arguments, str(path), **names, dynamic_axes=dimensions, opset_version=17, dynamo=False
            )
    np.savez(path.with_suffix(".npz"), **{input_name: tensor.numpy() for input_name, tensor in inputs.items()})


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for chosen in sys.argv[2:] or NETWORKS:
        export(chosen, target)
