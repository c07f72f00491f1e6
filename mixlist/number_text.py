"""Format numbers with few digits and a unit that suits their size."""

from __future__ import annotations

from collections.abc import Sequence


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number rounded to ``digits`` significant digits; ``-`` for None.

    A number from 1 to a million keeps all digits of its integer part, and has no exponent.
    """
    if value is None:
        return "-"
    size = abs(value)
    # 57050 is easier to compare with 65504 than 5.705e+04. From 999999.5 on, rounding would give seven digits.
    if 1 <= size < 999_999.5:
        text = f"{value:.{max(0, digits - len(str(int(size))))}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{digits}g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def format_share(value: float | None, digits: int = 3) -> str:
    """Return a share from 0 to 1 in percent. Only the shares 0 and 1 become ``0 %`` and ``100 %``."""
    if value is None:
        return "-"
    text = f"{100 * value:.{digits}g}"
    # Three digits would round 99.97 to 100.
    if text == "100" and value < 1:
        text = "> 99.9"
    return f"{text} %"


def format_cosine(value: float | None) -> str:
    """Return a cosine similarity with enough digits to distinguish it from 1; ``-`` for None."""
    # 0.99999871 -> 1 - 1.3e-6
    if value is None or not 0.999 < value < 1:
        return format_number(value, 6)
    return f"1 - {format_number(1 - value, 2)}"


def format_power(exponent: int) -> str:
    """Return a power of two with a superscript: ``2⁻¹⁴``."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def pluralize(number: int, noun: str) -> str:
    """Return ``1 batch``, ``2 batches``."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number} {noun}{ending}"


def format_bytes(number: int) -> str:
    """Return a number of bytes, for example ``1.2 MB``."""
    return _scaled(number, ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))) or f"{number} bytes"


def format_amount(number: int) -> str:
    """Return a large number with a prefix, for example ``3.4 G``."""
    return _scaled(number, ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))) or str(number)


def format_duration(seconds: float) -> str:
    """Return a time, for example ``12.3 ms``."""
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"))) or f"{seconds * 1e6:.3g} us"


def _scaled(number: float, units: Sequence[tuple[float, str]]) -> str:
    """Return the number with three digits, in the first unit that does not exceed the number; "" if all exceed it."""
    return next((f"{number / scale:.3g} {unit}" for scale, unit in units if number >= scale), "")
