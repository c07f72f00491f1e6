"""Find the known names that are most similar to a misspelled one, for hints such as "did you mean MatMul?"."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

# In characters. No op type or key is longer, and the comparison of very long names takes very long.
_MAX_LENGTH = 200
# A shorter name differs from another one by one letter too often: Sin and Min.
_MIN_LETTERS = 5
_DIGITS = re.compile(r"\d+")
_SEPARATORS = re.compile(r"[-_ ]")


def closest_names(name: str, known_names: Iterable[str], count: int = 3) -> list[str]:
    """Return up to ``count`` known names that are similar to ``name``, but not equal; the most similar first.

    The comparison ignores case, so a name that differs only in case comes first.
    """
    if len(name) > _MAX_LENGTH:
        return []
    import difflib

    # Names can differ in case only, so each lowercase name can mean several.
    names_by_lowercase: dict[str, list[str]] = {}
    for known_name in known_names:
        names_by_lowercase.setdefault(known_name.lower(), []).append(known_name)
    # difflib's default of 0.6 would suggest Mul for MatMul.
    matches = difflib.get_close_matches(name.lower(), names_by_lowercase, count, cutoff=0.7)
    similar = [known_name for match in matches for known_name in sorted(names_by_lowercase[match])]
    return [known_name for known_name in similar if known_name != name][:count]


def choices_hint(name: str, allowed: Collection[str], lead: str, count: int = 3) -> str:
    """Return the hint for an unknown name: the most similar allowed names, then ``lead`` and all allowed names."""
    similar = closest_names(name, allowed, count)
    question = f"did you mean {' or '.join(similar)}? " if similar else ""
    return f"{question}{lead} {', '.join(allowed)}"


def did_you_mean(name: str, known_names: Iterable[str]) -> str | None:
    """Return a hint with the known names that are most similar to an unknown name; None if no name is similar."""
    similar = closest_names(name, known_names)
    # If only the case is wrong, the other names are no candidates.
    similar = [known_name for known_name in similar if known_name.lower() == name.lower()] or similar
    return f"did you mean {' or '.join(similar)}?" if similar else None


def sure_correction(name: str, known_names: Iterable[str]) -> str | None:
    """Return the known name that a misspelled name certainly means; None if there is none, or more than one.

    The two differ only in case and separators, or in one letter of at least five. Digits never differ: BatchMatMulV2 is
    not a misspelled BatchMatMulV3.
    """
    known_names = list(known_names)
    same = [known_name for known_name in known_names if _fold(known_name) == _fold(name)]
    if not same and _MIN_LETTERS <= len(name) <= _MAX_LENGTH:
        digits = _DIGITS.findall(name)
        lowercase = name.lower()
        same = [
            known_name
            for known_name in known_names
            if _differ_by_one_letter(lowercase, known_name.lower()) and _DIGITS.findall(known_name) == digits
        ]
    return same[0] if len(same) == 1 else None


def _fold(name: str) -> str:
    """Return a name without case and separators."""
    return _SEPARATORS.sub("", name).lower()


def _differ_by_one_letter(first: str, second: str) -> bool:
    """Return True if one letter is missing, added, replaced, or has changed places with its neighbor."""
    if abs(len(first) - len(second)) > 1:
        return False
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    rest, other_rest = first[start:], second[start:]
    return (
        rest[1:] == other_rest
        or rest == other_rest[1:]
        or rest[1:] == other_rest[1:]
        or (rest[:2] == other_rest[1::-1] and rest[2:] == other_rest[2:])
    )
