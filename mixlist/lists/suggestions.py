"""Find the known names that are most similar to a misspelled one, for hints such as "did you mean MatMul?"."""

from __future__ import annotations

from collections.abc import Collection, Iterable

# In characters. No op type or key is longer, and the comparison of very long names takes very long.
_MAX_LENGTH = 200


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
