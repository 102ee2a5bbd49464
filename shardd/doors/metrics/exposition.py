"""The two texts that Prometheus reads: its own format 0.0.4, and OpenMetrics 1.0.0. Sans-IO."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]
_NO_NAME: Final = re.compile(r"[^a-z0-9_]")
_ESCAPED: Final = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
_TO_ESCAPE: Final = re.compile(r'[\\"\n]')


class _Family(msgspec.Struct):
    """`name` without `_total`."""

    name: str
    kind: Kind
    about: str
    lines: list[str]


class Exposition:
    """Families in the order in which they came first; each of them stands together."""

    def __init__(self, *, open_metrics: bool) -> None:
        self._open_metrics = open_metrics
        self._families: dict[str, _Family] = {}

    def add(self, name: str, kind: Kind, about: str, value: float, labels: Labels = (), suffix: str = "") -> None:
        """One sample. A counter is named without `_total`."""
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(name, kind, about, [])
        suffix = suffix or ("_total" if family.kind == "counter" else "")
        family.lines.append(f"{name}{suffix}{_labels(labels)} {_number(value)}\n")

    def add_histogram(self, name: str, about: str, buckets: list[tuple[float, int]], labels: Labels) -> None:
        """`buckets`: upper bounds with the counts of each alone, the last one without a bound. There is no sum."""
        so_far = 0
        for bound, count in buckets[:-1]:
            so_far += count
            self.add(name, "histogram", about, so_far, (*labels, ("le", repr(bound))), "_bucket")
        so_far += buckets[-1][1]
        self.add(name, "histogram", about, so_far, (*labels, ("le", "+Inf")), "_bucket")

    def text(self) -> bytes:
        parts = []
        for family in self._families.values():
            bare = family.kind != "counter" or self._open_metrics
            name = family.name if bare else f"{family.name}_total"
            about = family.about.replace("\\", r"\\").replace("\n", r"\n")
            parts += [f"# HELP {name} {about}\n", f"# TYPE {name} {family.kind}\n", *family.lines]
        if self._open_metrics:
            parts.append("# EOF\n")
        return "".join(parts).encode()


def name_of(text: str) -> str:
    """A name that both formats allow."""
    return _NO_NAME.sub("_", text.lower())


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}"


def _escape(value: str) -> str:
    return _TO_ESCAPE.sub(lambda found: _ESCAPED[found[0]], value)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)
