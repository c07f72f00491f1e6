"""The command line: one module per command, loaded when its command is called.

``main`` answers a bare ``--help`` and ``--version`` without click, whose import alone costs more
than twice a bare interpreter start.
"""

from __future__ import annotations

import os
import sys


def main(args: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 done; 1 findings; 2 wrong usage or unusable input; 3 a bug of mixlist; 130 interrupted; 141 the
    reader of standard output went away (what a shell reports for SIGPIPE).
    """
    _accept_any_text()
    try:
        status = _dispatch(_expanded(sys.argv[1:]) if args is None else args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at exit: give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        sys.stderr.write("\nmixlist: interrupted\n")
        return 130
    except Exception as error:
        from mixlist.cli.failures import tell

        return tell(error)
    return status


def _dispatch(args: list[str]) -> int:
    from mixlist.cli.index import help_text

    if args in (["--help"], ["-h"]):
        sys.stdout.write(help_text())
        return 0
    if args == ["--version"]:
        from mixlist.version import __version__

        sys.stdout.write(f"mixlist {__version__}\n")
        return 0
    if not args and "_MIXLIST_COMPLETE" not in os.environ:
        sys.stderr.write(help_text())
        return 2
    from mixlist.cli.root import run

    return run(args)


def _expanded(args: list[str]) -> list[str]:
    """Replace an argument with ``*`` or ``?`` by the files that it matches, because no shell of Windows does so."""
    if os.name != "nt":
        return args
    from glob import glob

    return [path for arg in args for path in sorted(glob(arg)) or [arg]]  # noqa: PTH207


def _accept_any_text() -> None:
    """Let any text be written: names that the terminal's encoding lacks, streams that the caller closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - lives as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
            if os.name == "nt" and not stream.isatty():  # files and pipes get the bytes that they get elsewhere
                stream.reconfigure(encoding="utf-8", newline="\n")
