"""The command line: one module per command, imported when its command is called.

``main`` answers ``--help`` and ``--version`` without click, because importing click takes more than twice the time that
the interpreter needs to start.
"""

from __future__ import annotations

import os
import sys


def main(args: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done. 1: findings. 2: wrong usage or unusable input. 3: a bug of mixlist. 130: interrupted. 141: the reader of
    standard output closed it (a shell reports SIGPIPE by this number).
    """
    _make_streams_accept_any_text()
    try:
        status = _dispatch(_expand_wildcards(sys.argv[1:]) if args is None else args)
        # Flush here, so that a closed pipe raises its error inside this ``try``.
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        sys.stderr.write("\nmixlist: interrupted\n")
        return 130
    except Exception as error:
        if _is_interruption(error):
            sys.stderr.write("\nmixlist: interrupted\n")
            return 130
        from mixlist.cli.error_output import report_error

        return report_error(error)
    return status


def _is_interruption(error: BaseException | None) -> bool:
    """Return True if Ctrl-C caused an error: a module in C that is being imported raises ImportError from it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error is not None


def _dispatch(args: list[str]) -> int:
    from mixlist.cli.command_index import help_text

    if args in (["--help"], ["-h"]):
        sys.stdout.write(help_text())
        return 0
    if args == ["--version"]:
        from mixlist.version import __version__

        sys.stdout.write(f"mixlist {__version__}\n")
        return 0
    # A completion script calls mixlist without arguments, and click answers it.
    if not args and "_MIXLIST_COMPLETE" not in os.environ:
        sys.stderr.write(help_text())
        return 2
    from mixlist.cli.command_group import run

    return run(args)


def _expand_wildcards(args: list[str]) -> list[str]:
    """On Windows, replace each argument with ``*`` or ``?`` by the files that match it.

    On other systems the shell does this.
    """
    if os.name != "nt":
        return args
    from glob import glob

    # An argument that no file matches stays, as in a shell: it can be a pattern of an option, such as --dim s*=32.
    return [path for arg in args for path in sorted(glob(arg)) or [arg]]  # noqa: PTH207


def _make_streams_accept_any_text() -> None:
    """Escape characters that the encoding of standard output or error cannot represent, and replace closed streams.

    On Windows, files and pipes get UTF-8 and ``\\n`` line ends, as on other systems.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Python sets a stream to None if the parent process has closed it.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - lives as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
            if os.name == "nt" and not stream.isatty():
                stream.reconfigure(encoding="utf-8", newline="\n")
