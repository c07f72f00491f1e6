"""A report as data: a verdict, sections of text, facts, tables and charts, and next steps.

``check_document.py``, ``tune_document.py`` and so on build the Document of a result. ``terminal.py`` writes any
Document as text, and ``html_page.py`` as a page. Names in a Document are as the model has them: the renderers escape
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from mixlist.diagnostics import Diagnostic

Level = Literal["passing", "failing", "warning", "note"]  # the class of a color in page.css
Medium = Literal["both", "page", "terminal"]
VERDICT_LEVELS: dict[str, Level] = {"pass": "passing", "fail": "failing", "inconclusive": "warning"}

# The numbers of rows that a table shows: on a terminal; on a page, before the rows are folded; and in the fold.
MAX_ROWS = 20
MAX_OPEN_ROWS = 20
MAX_FOLDED_ROWS = 500
REST_IN_JSON = "--format json has all"  # the place of the rows that a table leaves out


class Mark(NamedTuple):
    """A word in a color, such as a verdict or a kind of finding."""

    text: str
    level: Level


class Shape(NamedTuple):
    """A shape of a picture: an SVG path. ``style``: its classes in page.css. ``title``: shown under the pointer."""

    style: str
    path: str
    title: str = ""


def rectangle(style: str, x: float, y: float, width: float, height: float) -> Shape:
    """Return a filled rectangle."""
    return Shape(style, f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z")


class Picture(NamedTuple):
    """A small picture in a cell of a table, ``width`` by ``height`` units. It stretches, and is for pages only."""

    shapes: tuple[Shape, ...]
    width: float = 100
    height: float = 10


def bar(percent: float, style: str = "low") -> Picture:
    """Return a horizontal bar; ``percent`` of 100 is as wide as the cell."""
    return Picture((rectangle(style, 0, 0, percent, 10),))


Cell: TypeAlias = str | Mark | Picture


def cell_text(cell: Cell) -> str:
    """Return the text of a cell; "" of a picture."""
    return cell if isinstance(cell, str) else cell.text if isinstance(cell, Mark) else ""


class Verdict(NamedTuple):
    """The result of a command in one or two words, with a sentence that names the model.

    ``subject``: the model or the lists. ``lines``: the reasons and the conditions, one sentence each.
    """

    word: str
    level: Level
    subject: str
    headline: str
    lines: tuple[str, ...] = ()


class Text(NamedTuple):
    """Sentences, one on a line. ``is_file``: the lines are those of a file, and are shown as they are."""

    lines: tuple[str, ...]
    is_file: bool = False
    on: Medium = "both"
    title: str = ""


class Record(NamedTuple):
    """Names with their texts; a fact without a text is not shown. ``heading``: the object that the facts are about."""

    facts: Mapping[str, str]
    heading: tuple[Cell, ...] = ()


class Facts(NamedTuple):
    """One or several records.

    ``bars``: for each fact of the only record, the length of its bar in percent. ``rest``: where all records are, if a
    terminal leaves some of them out.
    """

    records: tuple[Record, ...]
    bars: tuple[float, ...] = ()
    rest: str = ""
    on: Medium = "both"
    title: str = ""


def bar_facts(amounts: Mapping[str, float], texts: Iterable[str], **block: Medium | str) -> Facts:
    """Return a fact with a bar for each amount; the longest bar is 100 %. ``block``: ``on`` and ``title``."""
    # If all amounts are 0, divide by 1: all bars have the length 0.
    longest = max(amounts.values(), default=0) or 1
    bars = tuple(round(100 * amount / longest, 1) for amount in amounts.values())
    return Facts((Record(dict(zip(amounts, texts, strict=True))),), bars=bars, **block)  # type: ignore[arg-type]


def times(seconds: Mapping[str, float]) -> Facts:
    """Return the duration of each phase."""
    return bar_facts(seconds, [f"{duration:.2f} s" for duration in seconds.values()])


class Column(NamedTuple):
    """A column of a table.

    ``style``: ``name`` (of a node or tensor), ``number`` (aligned right), ``verdict`` (first in a record), ``picture``
    or ``note`` (a line below the first cell of a page's row). ``wide``: True for a column that a terminal leaves out if
    the table does not fit. ``guides``: vertical lines through all pictures of the column, each with a place in percent
    and a text in the head of the table.
    """

    title: str
    style: Literal["text", "name", "number", "verdict", "picture", "note"] = "text"
    on: Medium = "both"
    wide: bool = False
    guides: tuple[tuple[float, str], ...] = ()


class ListRow(NamedTuple):
    """Properties of a row of a searchable table, besides its cells.

    ``group``: the group that has the row. ``filters``: the filters that let it pass. ``size``: what the order by size
    compares. ``words``: words that a search also finds.
    """

    group: str = ""
    filters: tuple[str, ...] = ()
    size: float | None = None
    words: str = ""


class Search(NamedTuple):
    """Make a table of a page a list with a search, of which a script draws some rows at a time.

    ``id``: the beginning of the ids of its elements. ``noun``: what the rows are, in the plural. ``hint``: what can be
    searched for. ``rows``: a ListRow for each row of the table. ``groups``: the name, level and meaning of each group,
    folded at first. ``filters``: the choices beside all rows.
    """

    id: str
    noun: str
    hint: str
    rows: Sequence[ListRow] = ()
    groups: Mapping[str, tuple[Level, str]] = MappingProxyType({})
    filters: Mapping[str, str] = MappingProxyType({})


class Table(NamedTuple):
    """Rows under titles of columns. The first column names the row.

    ``max_rows``: the number of rows on a terminal, None for all. ``rest``: where all rows are, if some are left out.
    ``legend``: the styles of its pictures with their meanings.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    max_rows: int | None = None
    rest: str = ""
    search: Search | None = None
    legend: tuple[tuple[str, str], ...] = ()
    on: Medium = "both"
    title: str = ""


def columns_of(
    *titles: str, numbers: Iterable[int] = (), names: Iterable[int] = (), wide: Collection[int] = ()
) -> tuple[Column, ...]:
    """Return columns of text; ``numbers`` and ``names`` are the positions of columns of these styles."""
    styles = dict.fromkeys(numbers, "number") | dict.fromkeys(names, "name")
    return tuple(
        Column(title, styles.get(at, "text"), wide=at in wide)  # type: ignore[arg-type]
        for at, title in enumerate(titles)
    )


class Label(NamedTuple):
    """A label beside a chart, at ``y``: a limit with its meaning (``detail``), or a zone without one."""

    y: float
    text: str
    detail: str = ""


class Chart(NamedTuple):
    """A picture of ``width`` by ``height`` units, with labels around it. It is for pages only.

    ``description``: what a reader who does not see the picture needs. ``y_labels`` and ``x_labels``: positions and
    texts. ``chooses_from``: the id of a searchable table whose rows have equal parts of the width: the page names the
    row under the pointer, and a click shows it in the table.
    """

    description: str
    width: float
    height: float
    shapes: tuple[Shape, ...]
    y_labels: tuple[tuple[float, str], ...] = ()
    x_labels: tuple[tuple[float, str], ...] = ()
    side_labels: tuple[Label, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    id: str = ""
    chooses_from: str = ""
    on: Medium = "both"
    title: str = ""


class Frame(NamedTuple):
    """Another page, shown inside this one. ``code``: its script. ``description``: what a screen reader says."""

    page: str
    code: str
    description: str
    on: Medium = "page"
    title: str = ""


class Step(NamedTuple):
    """A next step for the reader: a sentence, and a command line or "".

    The command repeats the options and files of the run, so it can be pasted: ``cli/result_output.py`` makes it.
    ``details``: what the step is about, for a terminal; a page has it in the section ``section``.
    """

    text: str
    command: str = ""
    details: Facts | None = None
    section: str = ""


def next_step(text: str, command: str = "") -> Step:
    """Return a step; ``text`` ends with a colon before a command, and with a period without one (from Python)."""
    return Step(f"{text}:" if command else f"{text}.", command)


INTERRUPTED = "The search was interrupted. Run it again with a state file, which keeps what it learns"


# A part of a section. ``on``: where it is shown; ``title``: its own heading, or "".
Block: TypeAlias = Text | Facts | Table | Chart | Frame


class Section(NamedTuple):
    """Blocks under a title; without a title, an empty line separates the section from the one before.

    ``id``: the name of the section in links of a page. ``explanation``: how to read the blocks, for pages.
    """

    id: str
    title: str
    blocks: tuple[Block, ...]
    explanation: str = ""


class Document(NamedTuple):
    """A report. ``command``: the command that made it. ``warnings`` are for pages: a terminal has them on stderr."""

    command: str
    sections: tuple[Section, ...]
    verdict: Verdict | None = None
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
