"""Precision modes by their new and old names (Rules S3.1 to S3.3).

The names and their equivalences come from the documents of the options ``--precision_mode`` and
``--precision_mode_v2`` of the Ascend compiler, and from its checks of these options (CANN, hicann/ge).
"""

from __future__ import annotations

from mixlist.errors import UsageError
from mixlist.lists.policy import Mode
from mixlist.lists.suggestions import closest_names

DEFAULT_MODE = "mixed_float16"

NEW_MODES = {
    "mixed_float16": Mode("mixed_float16", "lists", "float16"),
    "mixed_bfloat16": Mode("mixed_bfloat16", "lists", "bfloat16"),
    "fp16": Mode("fp16", "force", "float16"),
    "origin": Mode("origin", "origin"),
    # float16 inputs exist only inside the matrix unit of an Ascend chip. In ONNX types, this mode is float32 (S3.6).
    "cube_fp16in_fp32out": Mode("cube_fp16in_fp32out", "raise"),
}

# Several old names mean the same as a new one. Messages repeat the name that the user wrote, so each has a Mode.
OLD_MODES = {
    "allow_mix_precision": Mode("allow_mix_precision", "lists", "float16"),
    "allow_mix_precision_fp16": Mode("allow_mix_precision_fp16", "lists", "float16"),
    "allow_mix_precision_bf16": Mode("allow_mix_precision_bf16", "lists", "bfloat16"),
    "force_fp16": Mode("force_fp16", "force", "float16"),
    "must_keep_origin_dtype": Mode("must_keep_origin_dtype", "origin"),
    "force_fp32": Mode("force_fp32", "raise"),
    "cube_fp16in_fp32out": Mode("cube_fp16in_fp32out", "raise"),
    "allow_fp32_to_fp16": Mode("allow_fp32_to_fp16", "cube", "float16"),
    "allow_fp32_to_bf16": Mode("allow_fp32_to_bf16", "cube", "bfloat16"),
}

_HIFLOAT8_NAMES = ("mixed_hif8", "cube_hif8")  # need a type that ONNX does not have
_INTERNAL_NAMES = ("force_lowerprecision", "allow_fp32_to_lowprecision")  # the Ascend compiler refuses them, too


def find_mode(
    precision_mode: str | None = None, precision_mode_v2: str | None = None, *, has_mixlist: bool = False
) -> Mode:
    """Return the mode that ``--precision-mode`` or ``--precision-mode-v2`` names; ``mixed_float16`` without both.

    Raises UsageError for an unknown name, for both options at once (error E10056 of the Ascend compiler), and, with
    ``has_mixlist``, for a mode without lists that a modify_mixlist could edit (its error E10001).
    """
    if precision_mode is not None and precision_mode_v2 is not None:
        raise UsageError(
            f"--precision-mode {precision_mode} and --precision-mode-v2 {precision_mode_v2} are given together",
            hint="give one of them; --precision-mode-v2 has the newer names",
        )
    # Both options are looked up in their own names; the names of the other option are only for the hint.
    if precision_mode is not None:
        mode = _look_up(precision_mode, "--precision-mode", OLD_MODES, "--precision-mode-v2", NEW_MODES)
    else:
        name = DEFAULT_MODE if precision_mode_v2 is None else precision_mode_v2
        mode = _look_up(name, "--precision-mode-v2", NEW_MODES, "--precision-mode", OLD_MODES)
    if has_mixlist and mode.action != "lists":
        all_modes = (*NEW_MODES.values(), *OLD_MODES.values())
        modes_with_lists = [candidate.name for candidate in all_modes if candidate.action == "lists"]
        raise UsageError(
            f"--mixlist is given, but the precision mode {mode.name} has no lists that it could edit",
            hint=f"leave --mixlist out, or use one of {', '.join(modes_with_lists)}",
        )
    return mode


def _look_up(name: str, option: str, modes: dict[str, Mode], other_option: str, other_modes: dict[str, Mode]) -> Mode:
    """Return the mode with a name of ``option``.

    For any other name, raise a UsageError whose hint names a valid mode.
    """
    if name in modes:
        return modes[name]
    if name in _HIFLOAT8_NAMES:
        raise UsageError(
            f"{option} {name}: HiFloat8 is a type of Ascend 950 chips; ONNX has no such type",
            hint="use mixed_float16 or mixed_bfloat16",
        )
    if name in _INTERNAL_NAMES:
        raise UsageError(
            f"{option} {name}: this mode is internal to the Ascend compiler, whose own command line refuses it",
            hint=f"the modes of {option} are {', '.join(modes)}",
        )
    # A right name with the wrong one of the two options.
    if name in other_modes:
        hint = f"this is a mode of {other_option}: write {other_option} {name}"
        raise UsageError(f"{option} has no mode {name!r}", hint=hint)
    # A typing error: suggest the most similar names of this option, then one of the other option.
    similar = [
        *closest_names(name, modes),
        *(f"{mode_name} (of {other_option})" for mode_name in closest_names(name, other_modes, 1)),
    ][:3]
    question = f"did you mean {' or '.join(similar)}? " if similar else ""
    hint = f"{question}the modes of {option} are {', '.join(modes)}"
    raise UsageError(f"{option} has no mode {name!r}", hint=hint)
