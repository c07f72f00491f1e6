"""Print a pip constraints file with the lowest versions that pyproject.toml allows: lowest_versions.py

It has the dependencies of mixlist and its extra ``cpu``, so that ``make test-lowest`` tests what the bounds promise.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["cpu"]]:
        match = re.match(r"([a-z0-9-]+)>=([0-9.]+)", requirement)
        if match is None:
            raise SystemExit(f"{requirement}: the requirement has no lower bound")
        print(f"{match[1]}=={match[2]}")


if __name__ == "__main__":
    main()
