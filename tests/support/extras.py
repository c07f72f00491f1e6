"""Skip the tests that need more than the extra ``dev`` of this package: another extra, or a browser.

``.ci/run`` first runs the suite without the extras and the browser. Then it installs them, and runs the tests that
skipped for one of these reasons.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import browser

REASONS = {
    "torch": "needs the extra torch",
    "tensorboard": "needs the package tensorboard",
    "distributed": "needs the extra dask",
    "chromium": "needs Chromium (Debian: apt-get install chromium)",
}
needs_browser = pytest.mark.skipif(browser.find() is None, reason=REASONS["chromium"])


def import_extra(package: str) -> Any:
    """Return a package of an extra. Without the package, skip the test, or the module that calls this at its top."""
    # This makes the caller the place of the skip. pytest-xdist reports only one of the modules that skip at one place.
    __tracebackhide__ = True
    return pytest.importorskip(package, reason=REASONS[package])
