"""shardd: a persistent message streaming server that Apache Iggy clients talk to unchanged."""

from typing import Final

__version__: Final = "0.1.0"
