"""`shardd stats`, `snapshot` and `debug bundle`: a running server as a whole."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from shardd.cli.declared import Argument, Family
from shardd.cli.remote import CommandError, Remote, remote

server_family = Family()
debug_family = Family("What a report of a fault needs.")
Target = Annotated[Path, Argument("FILE", about="A ZIP archive; it must not be there yet.")]


@remote(server_family, "stats")
async def stats(remote: Remote) -> None:
    """Sizes, counts, memory and CPU of the server."""
    remote.show_one(await remote.client.stats())


@remote(server_family, "snapshot")
async def snapshot(remote: Remote, file: Target) -> None:
    """Have the server write down its state, for a report of a fault."""
    _write(file, await remote.client.snapshot())
    remote.done(f"{file} is written", file=str(file))


def _write(path: Path, data: bytes) -> None:
    """For its owner alone, and nothing is overwritten."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from None


@remote(debug_family, "bundle")
async def bundle(remote: Remote, file: Target) -> None:
    """Collect what a report of a fault needs in one archive: figures, topics, the server's snapshot; no secrets and
    no messages."""
    import platform
    import zipfile

    from shardd import __version__
    from shardd.cli.output import dumps, plain
    from shardd.client.errors import ServerError

    client, content = remote.client, io.BytesIO()
    facts: dict[str, Any] = {"client": __version__, "python": sys.version, "system": platform.platform()}
    facts["server"] = repr(client.settings)
    asked = {
        "stats": client.stats,
        "cluster": client.cluster,
        "extensions": client.extensions,
        "metrics": client.metrics,
        "streams": client.streams,
        "clients": client.all_connected,
    }
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, ask in asked.items():
            try:
                found: Any = await ask()
                data = [plain(each) for each in found] if isinstance(found, list) else plain(found)
                archive.writestr(f"{name}.json", dumps(_listed(data)))
            except ServerError as error:
                facts[name] = str(error)  # an older server, or a user who may not see it
        for stream in await client.streams():
            topics = [plain(each) for each in await client.topics(stream.id)]
            archive.writestr(f"topics/{stream.id}.json", dumps(topics))
        try:
            archive.writestr("snapshot.zip", await client.snapshot())
        except ServerError as error:
            facts["snapshot"] = str(error)
        archive.writestr("contexts.json", dumps(_masked_contexts()))
        archive.writestr("facts.json", dumps(facts))
    _write(file, content.getvalue())
    remote.done(f"{file} is written", file=str(file))


def _listed(value: Any) -> Any:
    """Sets have no form in JSON."""
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value


def _masked_contexts() -> dict[str, Any]:
    """Saved servers without what lets anybody in."""
    from shardd.cli.contexts import load, without_login

    found = {}
    for name, values in load()["contexts"].items():
        open_values = {key: values[key] for key in ("username", "token_file") if key in values}
        found[name] = open_values | {"url": without_login(str(values.get("url", "")))}
        found[name] |= {key: "***" for key in ("password", "token") if key in values}
    return found
