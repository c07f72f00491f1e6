"""A plugin of pytest that lets mixlist see Windows' ``os`` module: ``pytest -p tests.support.without_posix``.

Only the modules of mixlist are patched: they see no function that Windows lacks, and no file that is removed or renamed
while it is open. The tests themselves, pytest and the libraries keep the real module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# The names that Python documents as "Availability: Unix" or that its documentation of ``os`` lists as not on Windows.
_MISSING = """
O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_EVTONLY O_EXLOCK O_LARGEFILE O_NDELAY O_NOATIME O_NOCTTY
O_NOFOLLOW O_NOFOLLOW_ANY O_NONBLOCK O_PATH O_RSYNC O_SHLOCK O_SYNC O_TMPFILE chflags chown chroot confstr
copy_file_range ctermid eventfd fchdir fchmod fchown fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid
getgrouplist getgroups getloadavg getpgid getpgrp getpriority getresgid getresuid getsid getuid getxattr initgroups
killpg lchflags lchmod lchown listxattr lockf login_tty major makedev memfd_create minor mkfifo mknod nice openpty
pathconf pidfd_open pipe2 posix_fadvise posix_fallocate posix_openpt posix_spawn posix_spawnp pread preadv pwrite
pwritev readv register_at_fork removexattr sched_getaffinity sched_setaffinity sched_yield sendfile setegid seteuid
setgid setgroups setns setpgid setpriority setregid setresgid setresuid setreuid setsid setuid setxattr splice statvfs
sync sysconf tcgetpgrp tcsetpgrp ttyname uname unshare wait wait3 wait4 waitid WIFSIGNALED WTERMSIG writev
"""
_MODULES = ("fcntl", "grp", "posix", "pwd", "resource", "termios")


class WindowsOs(ModuleType):
    """The module ``os`` without the names that Windows lacks, where no open file is removed or renamed."""

    name = "nt"

    def __getattr__(self, name: str) -> Any:
        if name in _MISSING.split():
            raise AttributeError(f"module 'os' has no attribute {name!r} on Windows")
        return getattr(os, name)


def _identities_of_open_files() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            status = entry.stat()
        except OSError:
            continue
        yield status.st_dev, status.st_ino


def _refuse_open(path: Any, keywords: dict[str, Any]) -> None:
    """Raise what Windows raises for a file that this process has open."""
    if not isinstance(path, str | os.PathLike) or any(value is not None for value in keywords.values()):
        return
    try:
        status = Path(path).lstat()
    except OSError:
        return
    if (status.st_dev, status.st_ino) in set(_identities_of_open_files()):
        raise PermissionError(13, "The process cannot access the file because it is being used by another process")


@pytest.fixture(autouse=True)
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch the modules of mixlist, and the functions of ``os`` that pathlib calls for them."""
    import mixlist.cli.command_files
    import mixlist.files.atomic_writes
    import mixlist.lists.ops_info
    import mixlist.model.save  # noqa: F401 - the modules that write files are patched below

    see = WindowsOs("os")
    for name, module in list(sys.modules.items()):
        if name.startswith("mixlist.") and getattr(module, "os", None) is os:
            monkeypatch.setattr(module, "os", see)
    for name in ("remove", "unlink", "rename", "replace"):
        real = getattr(os, name)

        def call(path: Any, *args: Any, _real: Any = real, **keywords: Any) -> Any:
            _refuse_open(path, keywords)
            return _real(path, *args, **keywords)

        monkeypatch.setattr(os, name, call)


def pytest_configure() -> None:
    """Hide the modules that Windows lacks before mixlist is imported."""
    assert "mixlist.files.atomic_writes" not in sys.modules
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
