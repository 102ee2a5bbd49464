"""Every use of a wall clock has its reason here (docs/adr/0127-one-believed-clock.md): what forgets, expires or stamps
goes by the clocks of the engine. A use that is not listed fails, one that is gone as well."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
READS: Final = {
    "time.time", "time.time_ns", "time.gmtime", "time.localtime", "datetime.now", "datetime.utcnow", "datetime.today"
}  # fmt: skip
IN_C: Final = re.compile(r"\b(clock_wall_us|CLOCK_REALTIME|gettimeofday|timespec_get|time\(NULL\))")
_SHOWN: Final = "an age or a moment that is only shown"
_NAME: Final = "part of a name that is used once"
_JUDGED: Final = "judged as others judge it, deletes nothing"
# file below shardd, function: how often, why
PYTHON: Final = {
    ("backup/backups_directory.py", "now"): (1, _NAME),
    ("benchmark/measure.py", "measure"): (1, _SHOWN),
    ("benchmark/servers/wire.py", "Wire.__init__"): (1, _NAME),
    ("cli/doctor/host.py", "_clock"): (2, _SHOWN),
    ("cli/doctor/retention.py", "_ahead"): (1, _SHOWN),
    ("cli/doctor/retention.py", "_held"): (1, _SHOWN),
    ("cli/doctor/retention.py", "_kept"): (1, _SHOWN),
    ("cli/doctor/retention.py", "_spool"): (3, _SHOWN),
    ("cli/doctor/tls.py", "tls_findings"): (1, _SHOWN),
    ("cli/groups.py", "lag"): (1, _SHOWN),
    ("cli/reading.py", "time_us"): (1, "a moment that the user names by its age"),
    ("cli/retention.py", "_expired"): (1, _SHOWN),
    ("cli/tls.py", "reload"): (1, _SHOWN),
    ("cli/upgrade.py", "_about_settings"): (1, _SHOWN),
    ("doors/http/system_routes.py", "get_snapshot"): (1, _NAME),
    ("doors/liftbridge/acks.py", "ack_of"): (1, "when an ack is sent, only told"),
    ("doors/liftbridge/cursors.py", "Cursors._now_us"): (
        1,
        "orders uses and never falls; removes nothing by itself",
    ),
    ("doors/liftbridge/ingest.py", "Ingest._hear"): (1, "when an ack is sent, only told"),
    ("doors/liftbridge/ingest.py", "_negative_ack"): (1, "when an ack is sent, only told"),
    ("log/trash.py", "move_to_trash"): (1, _NAME),
    ("maintenance/archiver.py", "Archiver._run"): (2, _SHOWN),
    ("maintenance/retention.py", "Retention._work"): (1, _NAME),
    ("metadata/offline.py", "OfflineMetadata.submit"): (1, "no server runs, so no clock is shared"),
    ("runtime/clock.py", "SystemClock.now_us"): (1, "outside of a server, and the seam of simulators"),
    ("runtime/tls_material.py", "new_tickets"): (1, "keys of tickets: a jump ends resumptions, nothing else"),
    ("server/data_directory.py", "prepare_directory"): (1, _SHOWN),
    ("server/supervisor.py", "Supervisor._check_deadlines"): (
        2,
        "ends of certificates: judged as others judge it, deletes nothing",
    ),
    ("server/tls_files.py", "TlsKeeper.reload"): (
        1,
        "ends of certificates: judged as others judge it, deletes nothing",
    ),
    ("server/worker_inheritances.py", "WorkerInheritances.__init__"): (1, _SHOWN),
    ("service/access_tokens.py", "AccessTokenService._signed"): (1, _JUDGED),
    ("service/access_tokens.py", "AccessTokenService.holds"): (3, _JUDGED),
    ("service/access_tokens.py", "AccessTokenService.owner"): (1, _JUDGED),
    ("service/clocks.py", "forgotten_us"): (1, "deletes what both clocks say has ended"),
    ("service/connections.py", "ConnectionService.accepted"): (1, _SHOWN),
    ("service/extensions.py", "ExtensionService._merged"): (1, _SHOWN),
    ("service/figures.py", "FiguresService.groups"): (1, _SHOWN),
    ("service/logins.py", "LoginService.login_with_token"): (1, _JUDGED),
    ("service/partition_calls.py", "PartitionCalls._destination"): (1, _NAME),
    ("service/snapshot_members.py", "resource_usage"): (1, _SHOWN),
    ("service/system.py", "SystemService.get_stats"): (1, _SHOWN),
    ("service/tokens.py", "TokenService.create_token"): (1, "the end of a new token, which is judged by this clock"),
    ("spark/archive_listing.py", "_Cache.get"): (1, "when a listing was made, beside the monotonic clock"),
    ("spark/pipelines/lag.py", "_Looks.__init__"): (1, _SHOWN),
    ("spark/pipelines/vacuum.py", "_file_system_s"): (1, "of a dry run that may not write; removes nothing"),
    ("spark/sinks/delta.py", "_add_action"): (1, "a stamp of a commit of Delta"),
    ("spark/stream.py", "ShardStreamReader._by_time"): (1, _SHOWN),
    ("dispatch/door/clients.py", "DoorClients.open"): (1, _SHOWN),
    ("worker/background.py", "_told"): (1, _SHOWN),
    ("worker/tls.py", "WorkerTls.figures"): (1, _SHOWN),
}
# file below native: how often, why
C: Final = {
    "load/actor.c": (2, "the origin timestamp of a client"),
    "src/base/clock.h": (2, "the clock itself"),
    "src/log/expiry_clock.c": (1, "what the believed clock looks at"),
    "src/net/tls_tickets.c": (1, "keys of tickets: a jump ends resumptions, nothing else"),
}


def uses(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The function of each."""
    for child in ast.iter_child_nodes(node):
        place = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            place = (*inside, child.name)
        if isinstance(child, ast.Attribute) and ast.unparse(child) in READS:
            yield ".".join(place)
        if isinstance(child, ast.ImportFrom) and child.module == "time":
            read = {alias.name for alias in child.names} & {"time", "time_ns", "gmtime", "localtime"}
            assert not read, f"{read} of the module time by its bare name: nothing finds its uses"
        yield from uses(child, place)


def test_a_use_of_a_wall_clock_in_python_is_listed_with_its_reason() -> None:
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted((ROOT / "shardd").rglob("*.py")):
        found.update((str(path.relative_to(ROOT / "shardd")), place) for place in uses(ast.parse(path.read_text())))
    assert dict(found) == {place: count for place, (count, _) in PYTHON.items()}


def test_a_use_of_a_wall_clock_in_c_is_listed_with_its_reason() -> None:
    found = {}
    for part in ("src", "binding", "load"):
        for path in sorted((ROOT / "native" / part).rglob("*.[ch]")):
            if count := len(IN_C.findall(path.read_text())):
                found[str(path.relative_to(ROOT / "native"))] = count
    assert found == {path: count for path, (count, _) in C.items()}
