"""The nearest known names, for every "did you mean"."""

from __future__ import annotations

from collections.abc import Collection, Iterable

LONGEST = 200  # no op type or key is longer; comparing endless names would take endless time


def closest(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """Up to ``n`` of the ``known`` names, nearest first.

    A name that differs only in case comes first; then by difflib's similarity, taken without case.
    """
    if len(name) > LONGEST:
        return []
    import difflib

    folded: dict[str, list[str]] = {}
    for candidate in known:
        folded.setdefault(candidate.lower(), []).append(candidate)
    wanted = name.lower()
    near = difflib.get_close_matches(wanted, folded, n, cutoff=0.7)
    return [candidate for low in near for candidate in sorted(folded[low]) if candidate != name][:n]


def choices(name: str, known: Collection[str], lead: str, n: int = 3) -> str:
    """Return the hint for a name that is not known: the nearest known names, then all of them after ``lead``."""
    near = closest(name, known, n)
    question = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{question}{lead} {', '.join(known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The hint for a name that nothing knows, None where nothing is near."""
    near = closest(name, known)
    near = [n for n in near if n.lower() == name.lower()] or near  # only the case is wrong: then it is that one
    return f"did you mean {' or '.join(near)}?" if near else None
