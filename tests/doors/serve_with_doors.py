"""`shardd serve` with doors, for tests: no door belongs to the product yet, so no setting names one.

serve_with_doors.py DOORS ... --data DIRECTORY      DOORS: JSON, [[name, [argument of the interpreter, ...]], ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from shardd.cli.serve import ServeOptions, serve_until_stopped
from shardd.server.doors import DoorSpecification

if __name__ == "__main__":
    doors = msgspec.json.decode(sys.argv[1], type=list[DoorSpecification])
    data = Path(sys.argv[sys.argv.index("--data") + 1])
    sys.exit(serve_until_stopped(ServeOptions(data=data, default_credentials=True), doors))
