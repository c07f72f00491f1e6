"""Precision modes, old names and new (Rules S3.1 to S3.3).

Source of the names and their equivalences: the documents of the Ascend compiler's options
``--precision_mode`` and ``--precision_mode_v2`` and its option checks (CANN, hicann/ge).
"""

from __future__ import annotations

from mixlist.errors import UsageError
from mixlist.lists.policy import Mode
from mixlist.lists.suggestions import closest

DEFAULT = "mixed_float16"

V2 = {
    "mixed_float16": Mode("mixed_float16", "lists", "float16"),
    "mixed_bfloat16": Mode("mixed_bfloat16", "lists", "bfloat16"),
    "fp16": Mode("fp16", "force", "float16"),
    "origin": Mode("origin", "origin"),
    "cube_fp16in_fp32out": Mode("cube_fp16in_fp32out", "raise"),
}

OLD = {
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

# Names that the reference engine knows and an ONNX graph cannot have, or that its own command line refuses.
_HIF8 = ("mixed_hif8", "cube_hif8")
_INTERNAL = ("force_lowerprecision", "allow_fp32_to_lowprecision")


def find_mode(
    precision_mode: str | None = None, precision_mode_v2: str | None = None, *, has_mixlist: bool = False
) -> Mode:
    """The mode that ``--precision-mode`` or ``--precision-mode-v2`` names; ``mixed_float16`` if neither is given.

    Raises UsageError for a name that is not one, for both options at once (the Ascend compiler's
    E10056), and, with ``has_mixlist``, for a mode that has no lists to modify (its E10001).
    """
    if precision_mode is not None and precision_mode_v2 is not None:
        raise UsageError(
            f"--precision-mode {precision_mode} and --precision-mode-v2 {precision_mode_v2} are given together",
            hint="give one of them; --precision-mode-v2 has the newer names",
        )
    if precision_mode is not None:
        mode = _look_up(precision_mode, "--precision-mode", OLD, "--precision-mode-v2", V2)
    else:
        name = DEFAULT if precision_mode_v2 is None else precision_mode_v2
        mode = _look_up(name, "--precision-mode-v2", V2, "--precision-mode", OLD)
    if has_mixlist and mode.action != "lists":
        with_lists = [each.name for each in (*V2.values(), *OLD.values()) if each.action == "lists"]
        raise UsageError(
            f"--mixlist is given, but the precision mode {mode.name} has no lists that it could modify",
            hint=f"leave --mixlist out, or use one of {', '.join(with_lists)}",
        )
    return mode


def _look_up(name: str, option: str, modes: dict[str, Mode], other: str, others: dict[str, Mode]) -> Mode:
    if name in modes:
        return modes[name]
    if name in _HIF8:
        raise UsageError(
            f"{option} {name}: HiFloat8 is a type of Ascend 950 chips; ONNX has no such type",
            hint="use mixed_float16 or mixed_bfloat16",
        )
    if name in _INTERNAL:
        raise UsageError(
            f"{option} {name}: this mode is internal to the Ascend compiler, whose own command line refuses it",
            hint=f"{option} takes " + ", ".join(modes),
        )
    if name in others:
        raise UsageError(f"{option} has no mode {name!r}", hint=f"it is a value of {other}: write {other} {name}")
    near = [*closest(name, modes), *(f"{near} (of {other})" for near in closest(name, others, 1))][:3]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"{option} has no mode {name!r}", hint=f"{hint}{option} takes " + ", ".join(modes))
