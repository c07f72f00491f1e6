#!/usr/bin/env python3
"""Export nine networks with random weights: decoders with caches, detectors, diffusion, audio and OCR.

    python benchmarks/export_networks.py FOLDER [NAME ...]

Writes ``NAME.onnx`` and ``NAME.npz`` for each network, 50 MB at most. The architectures are those of the packages
``transformers`` and ``diffusers``, small, in evaluation mode. The weights are those that the packages generate for
training, from a fixed seed. ``EXPORTERS`` says which exporter of PyTorch writes a network. ``llama_genai`` is written
by the model builder of onnxruntime-genai, which puts fused operators of ONNX Runtime into the graph. Needs torch,
transformers, diffusers, onnxscript and onnxruntime-genai; ``compare_converters.py`` runs this file in an environment
that has them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

WIDTH, LAYERS, HEADS, KEY_HEADS, WORDS = 256, 4, 8, 2, 8000
HEAD_WIDTH = WIDTH // HEADS
PAST, NEW = 24, 1  # tokens in the cache, and new ones
EAGER = {"attn_implementation": "eager"}  # the attention as single operators, which both exporters can write

Inputs = dict[str, torch.Tensor]


class _Network(torch.nn.Module):
    """A network with positional inputs; ``call`` calls it and returns the outputs that are exported."""

    def __init__(self, network: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.network, self.call = network, call

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.call(self.network, *inputs)


def _set_batch_norms(network: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
    """Give each batch normalization the mean and variance of the batch, as if the network were trained.

    With the means and variances of a new network, values shrink from layer to layer until float16 has only zeros.
    """

    def measure(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        module.running_mean.copy_(inputs[0].mean((0, 2, 3)))  # type: ignore[operator]
        module.running_var.copy_(inputs[0].var((0, 2, 3)))  # type: ignore[operator]

    hooks = [m.register_forward_pre_hook(measure) for m in network.modules() if hasattr(m, "running_var")]
    network(*arguments)
    for hook in hooks:
        hook.remove()


# --- decoders with caches ---


def _cache(heads: int, length: int, name: str = "past") -> Inputs:
    """Return keys and values for each layer, of about the size that normalized activations have."""
    shape = (1, heads, length, HEAD_WIDTH)
    return {f"{name}.{k}.{part}": torch.randn(shape) for k in range(LAYERS) for part in ("key", "value")}


def _pairs(tensors: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _flat(cache: transformers.DynamicCache) -> list[torch.Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def _llama_cache() -> torch.nn.Module:
    """Return a decoder with RMS norms written out as Pow, ReduceMean, Sqrt and Mul."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=704,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        **EAGER,
    )

    def call(network: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor) -> Any:
        cache = transformers.DynamicCache.from_legacy_cache(tuple(_pairs(past)))
        # The mask of one new token, which sees all others: the older exporter cannot trace the code of the package.
        hidden = (1 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        logits = network(
            input_ids=ids, attention_mask=hidden, position_ids=positions, past_key_values=cache, use_cache=True
        ).logits
        return (logits, *_flat(cache))

    return _Network(transformers.LlamaForCausalLM(config), call)


def _llama_inputs() -> Inputs:
    tokens = {"input_ids": torch.randint(1, WORDS, (1, NEW)), "attention_mask": torch.ones(1, PAST + NEW).long()}
    return {**tokens, "position_ids": torch.arange(PAST, PAST + NEW)[None], **_cache(KEY_HEADS, PAST)}


def _whisper_decoder() -> torch.nn.Module:
    """Return a decoder with a cache of its own tokens, and a constant one of the encoder's states."""
    sizes = {"d_model": WIDTH, "decoder_layers": LAYERS, "decoder_attention_heads": HEADS}
    sizes |= {"decoder_ffn_dim": 4 * WIDTH, "encoder_layers": 1, "encoder_attention_heads": HEADS}
    config = transformers.WhisperConfig(**sizes, vocab_size=WORDS, pad_token_id=0, **EAGER)

    def call(network: Any, ids: torch.Tensor, *past: torch.Tensor) -> Any:
        own, cross = (
            transformers.DynamicCache.from_legacy_cache(tuple(_pairs(part)))
            for part in (past[: 2 * LAYERS], past[2 * LAYERS :])
        )
        cache = transformers.EncoderDecoderCache(own, cross)
        states = network.model.decoder(
            input_ids=ids,
            encoder_hidden_states=past[2 * LAYERS].transpose(1, 2).flatten(2),  # the cache has their keys already
            past_key_values=cache,
            use_cache=True,
            cache_position=torch.arange(PAST, PAST + NEW),
        ).last_hidden_state
        return (network.proj_out(states), *_flat(cache.self_attention_cache))

    return _Network(transformers.WhisperForConditionalGeneration(config), call)


def _trocr() -> torch.nn.Module:
    """Return the decoder of an OCR network, which reads the states of an image."""
    sizes = {"d_model": WIDTH, "decoder_layers": LAYERS, "decoder_attention_heads": HEADS}
    config = transformers.TrOCRConfig(
        **sizes, decoder_ffn_dim=4 * WIDTH, vocab_size=WORDS, cross_attention_hidden_size=WIDTH, **EAGER
    )

    def call(network: Any, ids: torch.Tensor, states: torch.Tensor) -> Any:
        return network(input_ids=ids, encoder_hidden_states=states, use_cache=False).logits

    return _Network(transformers.TrOCRForCausalLM(config), call)


# --- detectors ---


def _detr() -> torch.nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=32, hidden_sizes=[64, 128, 192, 256], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    sizes = {"d_model": WIDTH, "encoder_layers": 3, "decoder_layers": 3, "num_queries": 50}
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        num_labels=80,
        **sizes,
        **EAGER,
    )

    def call(network: Any, pixels: torch.Tensor) -> Any:
        outputs = network(pixel_values=pixels)
        return outputs.logits, outputs.pred_boxes

    return _Network(transformers.DetrForObjectDetection(config), call)


def _rt_detr() -> torch.nn.Module:
    """Return a detector with deformable attention (GridSample) and a TopK of its queries."""
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=32,
        hidden_sizes=[32, 64, 128, 256],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=128,
        encoder_in_channels=[64, 128, 256],
        encoder_ffn_dim=256,
        d_model=128,
        decoder_in_channels=[128, 128, 128],
        decoder_ffn_dim=256,
        decoder_layers=3,
        num_queries=60,
        num_labels=80,
        num_denoising=0,
    )

    def call(network: Any, pixels: torch.Tensor) -> Any:
        outputs = network(pixel_values=pixels)
        return outputs.logits, outputs.pred_boxes

    return _Network(transformers.RTDetrForObjectDetection(config), call)


# --- diffusion ---


def _unet() -> torch.nn.Module:
    """Return a UNet with GroupNorm, self-attention and attention to a text."""
    from diffusers import UNet2DConditionModel

    network = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        attention_head_dim=4,
        cross_attention_dim=128,
        norm_num_groups=16,
    )
    network.set_default_attn_processor()

    def call(unet: Any, sample: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> Any:
        return unet(sample, step, encoder_hidden_states=text, return_dict=False)[0]

    return _Network(network, call)


def _vae_decoder() -> torch.nn.Module:
    from diffusers import AutoencoderKL

    network = AutoencoderKL(
        block_out_channels=(32, 64, 128),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        norm_num_groups=16,
        latent_channels=4,
    )
    network.set_default_attn_processor()

    def call(vae: Any, latent: torch.Tensor) -> Any:
        return vae.decode(latent, return_dict=False)[0]

    return _Network(network, call)


# --- audio ---


def _wav2vec2() -> torch.nn.Module:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = transformers.Wav2Vec2Config(
        **sizes, intermediate_size=4 * WIDTH, conv_dim=(128,) * 7, vocab_size=32, num_conv_pos_embeddings=32, **EAGER
    )

    def call(network: Any, sound: torch.Tensor) -> Any:
        return network(input_values=sound).logits

    return _Network(transformers.Wav2Vec2ForCTC(config), call)


def _sound() -> torch.Tensor:
    """Return one second of a gliding tone with noise, normalized as the network expects."""
    t = torch.arange(16000) / 16000
    sound = torch.sin(2 * torch.pi * (200 + 150 * t) * t) * (1 + torch.sin(2 * torch.pi * 3 * t)) / 2
    sound = sound + 0.02 * torch.randn(16000)
    return ((sound - sound.mean()) / sound.std())[None]


def _whisper_inputs() -> Inputs:
    return {
        "input_ids": torch.randint(1, WORDS, (1, NEW)),
        **_cache(HEADS, PAST),
        **_cache(HEADS, 100, "encoder"),
    }


def _image(size: int) -> torch.Tensor:
    return torch.randn(1, 3, size, size)


# The network, its inputs, and the axes that can have other sizes, by name.
NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], Inputs], Mapping[str, dict[int, str]]]] = {
    "llama_cache": (
        _llama_cache,
        _llama_inputs,
        {
            "input_ids": {1: "new"},
            "attention_mask": {1: "all"},
            "position_ids": {1: "new"},
            **{f"past.{k}.{part}": {2: "past"} for k in range(LAYERS) for part in ("key", "value")},
        },
    ),
    "whisper_decoder": (
        _whisper_decoder,
        _whisper_inputs,
        {f"past.{k}.{part}": {2: "past"} for k in range(LAYERS) for part in ("key", "value")},
    ),
    "trocr_decoder": (
        _trocr,
        lambda: {"input_ids": torch.randint(1, WORDS, (1, 16)), "encoder_hidden_states": torch.randn(1, 50, WIDTH)},
        {"input_ids": {0: "batch", 1: "sequence"}, "encoder_hidden_states": {0: "batch", 1: "patches"}},
    ),
    "detr": (_detr, lambda: {"pixel_values": _image(224)}, {}),
    "rt_detr": (_rt_detr, lambda: {"pixel_values": _image(256)}, {}),
    "unet": (
        _unet,
        lambda: {"sample": torch.randn(1, 4, 32, 32), "timestep": torch.tensor([500]), "text": torch.randn(1, 16, 128)},
        {"sample": {0: "batch"}, "text": {0: "batch", 1: "words"}},
    ),
    "vae_decoder": (_vae_decoder, lambda: {"latent": torch.randn(1, 4, 24, 24)}, {"latent": {0: "batch"}}),
    "wav2vec2": (_wav2vec2, lambda: {"sound": _sound()}, {"sound": {1: "samples"}}),
}
# PyTorch's newer exporter; the others are written by the older one, which is based on TorchScript, at opset 17.
WITH_DYNAMO = ("trocr_decoder", "vae_decoder", "detr")


def export(name: str, folder: Path) -> None:
    """Write the model and the batch of one network."""
    torch.manual_seed(0)
    make_network, make_inputs, dimensions = NETWORKS[name]
    network, inputs, path = make_network().eval(), make_inputs(), folder / f"{name}.onnx"
    arguments = tuple(inputs.values())
    with torch.no_grad():
        _set_batch_norms(network, arguments)
        outputs = network(*arguments)
        count = 1 if isinstance(outputs, torch.Tensor) else len(outputs)
        names: dict[str, Any] = {"input_names": list(inputs), "output_names": [f"output.{k}" for k in range(count)]}
        if name in WITH_DYNAMO:
            axes = (dict.fromkeys(dimensions.get(i, {}), torch.export.Dim.DYNAMIC) for i in inputs)
            program = torch.onnx.export(
                network, arguments, **names, dynamic_shapes=(tuple(axes),), opset_version=18, dynamo=True
            )
            assert program is not None
            program.save(str(path))
        else:
            torch.onnx.export(
                network, arguments, str(path), **names, dynamic_axes=dimensions, opset_version=17, dynamo=False
            )
    np.savez(path.with_suffix(".npz"), **{input_name: tensor.numpy() for input_name, tensor in inputs.items()})


def build_llama(folder: Path) -> None:
    """Write a small decoder as the model builder of onnxruntime-genai does, in one file, and a batch."""
    import onnx
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2000,
        hidden_size=WIDTH,
        intermediate_size=704,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=512,
    )
    with tempfile.TemporaryDirectory() as scratch:
        source, built = Path(scratch, "source"), Path(scratch, "built")
        transformers.LlamaForCausalLM(config).eval().save_pretrained(source)
        # The builder reads a tokenizer, although the graph has none.
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(2000)}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2"
        )
        tokenizer.save_pretrained(source)
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", "x", "-i", str(source)]
        options = ["-o", str(built), "-p", "fp32", "-e", "cpu", "-c", str(Path(scratch, "cache"))]
        subprocess.run([*builder, *options], check=True)
        onnx.save(onnx.load(built / "model.onnx"), folder / "llama_genai.onnx")
    inputs = {"input_ids": torch.randint(1, 2000, (1, NEW)), "attention_mask": torch.ones(1, PAST + NEW).long()}
    for k in range(LAYERS):
        for part in ("key", "value"):
            inputs[f"past_key_values.{k}.{part}"] = torch.randn(1, KEY_HEADS, PAST, HEAD_WIDTH)
    np.savez(folder / "llama_genai.npz", **{name: tensor.numpy() for name, tensor in inputs.items()})


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for chosen in sys.argv[2:] or (*NETWORKS, "llama_genai"):
        if chosen == "llama_genai":
            build_llama(target)
        else:
            export(chosen, target)
