"""Latencies as HdrHistogram has them, by the package hdrhistogram (extra `bench`), for its tools and for merging. The
figures of a report are exact and do not come from here."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

LONGEST_NS: Final = 3_600_000_000_000
DIGITS: Final = 3
_NS: Final = 1e6


def _histogram() -> Any | None:
    """None: the package is not installed."""
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError:
        return None
    return HdrHistogram(1, LONGEST_NS, DIGITS)


def encoded(latencies_ms: Sequence[float]) -> str | None:
    """Of nanoseconds, compressed and in base64 (V2), as lines of a .hlog have it."""
    found = _histogram()
    if found is None or not latencies_ms:
        return None
    for value, count in Counter(min(LONGEST_NS, max(1, round(each * _NS))) for each in latencies_ms).items():
        found.record_value(value, count)
    return bytes(found.encode()).decode()


def percentiles_of(text: str) -> str:
    """What its plotters read (.hgrm), in milliseconds."""
    from hdrh.histogram import HdrHistogram

    written = io.BytesIO()
    HdrHistogram.decode(text.encode()).output_percentile_distribution(written, _NS)
    return written.getvalue().decode()


def log_of(text: str, seconds: float) -> str:
    """A .hlog of one interval."""
    from hdrh.histogram import HdrHistogram

    longest_ms = HdrHistogram.decode(text.encode()).get_max_value() / _NS
    return (
        "#[Histogram log format version 1.3]\n"
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
        f"0.000,{seconds:.3f},{longest_ms:.3f},{text}\n"
    )
