"""Pages of the site that are generated: what `shardd.client` offers, and what a server tells Prometheus."""

from __future__ import annotations

import inspect
import re
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from shardd import client, testing
from shardd.client import admin, commands, errors, unused_offsets

_READY_S: Final = 60.0
_CLASSES: Final = ("Client", "SyncClient", "Producer", "SyncProducer", "Consumer", "SyncConsumer", "Settings")
_BUILDERS: Final = vars(unused_offsets) | vars(commands)  # of the requests
_COMMAND: Final = re.compile(r"Command\[(.*)\]$")


def cell(text: str | None) -> str:
    """In one line, as it was written."""
    words = re.sub(r"([\\*_<>|])", r"\\\1", " ".join((text or "").split()))
    return words.replace("[", "\\[")


def client_reference() -> str:
    """Of the classes that programs make, the administration and the errors."""
    head = (
        "# The client\n\nWhat `shardd.client` offers. `Sync...` is the same for threads. How to use it: "
        "[send](../tutorial/produce.md), [read](../tutorial/consume.md), [groups](../tutorial/groups.md).\n"
    )
    pieces = [head, *(_class(name, getattr(client, name)) for name in _CLASSES)]
    pieces.append("## Administration\n\nMethods of `Client` and `SyncClient`, for every command of the server.\n")
    names = sorted(name for name, value in vars(admin.Administration).items() if callable(value) and name != "call")
    pieces.append(_table(_administration(names)))
    pieces.append("## Errors\n\nOf `shardd.client.errors`. Each has `status`, `retryable` and `fate`.\n")
    kinds = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, errors.ClientError)]
    pieces.append(_table((f"{each.__name__}({each.__bases__[0].__name__})", each.__doc__) for each in kinds))
    return "\n".join(pieces)


def _class(name: str, kind: Any) -> str:
    about = "\n\n".join(cell(part) for part in (inspect.getdoc(kind) or "").split("\n\n"))
    methods = {
        each: value
        for each, value in inspect.getmembers(kind, callable)
        if not each.startswith("_") and (each == "call" or not hasattr(admin.Administration, each))
    }
    rows = [(f"{each}{_signature(value)}", inspect.getdoc(value)) for each, value in methods.items()]
    if name.startswith("Sync") and name != "SyncClient":  # options are those of the other shape
        return f"## {name}\n\n{about}\n\n{_table(rows)}"
    return f"## {name}\n\n    {name}{_signature(kind)}\n\n{about}\n\n{_table(rows)}"


def _administration(names: list[str]) -> Iterator[tuple[str, str | None]]:
    for name in names:
        build = _BUILDERS[name]
        found = inspect.signature(build)
        answer = _COMMAND.match(str(found.return_annotation))
        words = _text(found.replace(return_annotation=inspect.Signature.empty))
        yield f"{name}{words} -> {answer[1] if answer else 'None'}", inspect.getdoc(build)


def _signature(value: Any) -> str:
    found = inspect.signature(value)
    return _text(found.replace(parameters=[each for each in found.parameters.values() if each.name != "self"]))


class _Bare(str):
    """Shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _text(found: inspect.Signature) -> str:
    """Annotations are strings; types without their modules."""
    parameters = [
        each.replace(
            annotation=_Bare(each.annotation) if isinstance(each.annotation, str) else each.annotation,
            default=_Bare(each.default.__name__) if inspect.isfunction(each.default) else each.default,
        )
        for each in found.parameters.values()
    ]
    answer = found.return_annotation
    text = str(
        found.replace(parameters=parameters, return_annotation=_Bare(answer) if isinstance(answer, str) else answer)
    )
    return re.sub(r"\b(?:asyncio|concurrent\.futures|values|wire|collections\.abc|shardd\.client\.\w+)\.", "", text)


def _table(rows: Any) -> str:
    shown = [f"| `{name.replace('|', chr(92) + '|')}` | {cell(about)} |" for name, about in rows]
    return "\n".join(["| | |", "|---|---|", *shown]) + "\n" if shown else ""


def metric_reference() -> str:
    """Of a server that was just started, with a group that reads."""
    head = (
        "# Metrics\n\nWhat `/metrics` says, from a server that has just started. What the figures mean: "
        "[operating](../operating.md), [GET_METRICS](../extensions.md#get-metrics).\n"
    )
    abouts: dict[str, str] = {}
    rows = []
    for line in _scraped().splitlines():
        word, _, rest = line.partition(" HELP ") if line.startswith("# HELP") else line.partition(" TYPE ")
        name, _, what = rest.partition(" ")
        if line.startswith("# HELP"):
            abouts[name] = what
        elif word == "#" and name:
            rows.append((name, what, abouts.get(name, "")))
    shown = [f"| `{name}` | {kind} | {cell(about)} |" for name, kind, about in sorted(rows)]
    return head + "\n" + "\n".join(["| metric | type | |", "|---|---|---|", *shown]) + "\n"


def _scraped() -> str:
    settings = {"SHARDD_METRICS_ENABLED": "true", "SHARDD_METRICS_ADDRESS": "127.0.0.1:0"}
    with testing.server(settings) as running, client.SyncClient(running.url) as asking:
        asking.create_stream("s")
        asking.create_topic("s", "t")
        asking.create_group("s", "t", "g")
        runtime = Path(running.data, "runtime", "current_config.toml")
        address = tomllib.loads(runtime.read_text())["metrics"]["address"]
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=_READY_S) as answer:
                    text = str(answer.read(), "utf-8")
                if "shardd_group_lag_messages" in text:
                    return text
            except urllib.error.URLError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError("the server tells no metrics of a group")
            time.sleep(0.1)
