"""`shardd bench`: words as iggy-bench has them. [GLOBAL] KIND [OPTIONS] [TRANSPORT [OPTIONS] [output [OPTIONS]]]"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from shardd.benchmark.kinds import CONSUMER, KINDS, PRODUCER, Kind
from shardd.benchmark.options import (
    ACTORS_MAX,
    BATCH_MAX,
    DURABILITIES,
    ROUNDS,
    BenchError,
    Output,
    Tls,
    parse_bytes,
    parse_span,
    parse_us,
)
from shardd.benchmark.profiles import PROFILES, Profile
from shardd.cli import bench_words as words
from shardd.cli.bench_run import run_bench
from shardd.protocol.limits import MESSAGE_PAYLOAD_BYTES_MAX

bench_app = typer.Typer(
    help="Measure a server under load, as iggy-bench does (docs/bench.md).", rich_markup_mode=None, no_args_is_help=True
)
_EXAMPLES: Final = """\
Eight producers, a stream each, a million messages of 1000 bytes each:
  shardd bench pinned-producer tcp
Then read them:
  shardd bench pinned-consumer tcp
Four producers and a group of four at once, 12 partitions, batches of 100:
  shardd bench --messages-per-batch 100 balanced-producer-and-consumer-group -a 12 -p 4 -c 4 tcp
Latency at 50 MB/s, requests sent when they are due, whatever the server does:
  shardd bench -r 50MB --open-loop --messages-per-batch 100 pinned-producer -p 4 tcp
A server on another machine, with a report:
  shardd bench -u NAME -p PASSWORD pinned-producer tcp --server-address 192.0.2.7:8090 output -o results
Compare two of them:
  shardd bench compare results/A results/B"""


_OF_STARTED: Final = {
    "durability": "--durability",
    "directory": "--directory",
    "server_cpus": "--server-cpus",
    "server_settings": "--set",
}
"""Parameters whose options do nothing to a server that runs already."""


def _refuse(error: BenchError) -> typer.Exit:
    typer.echo(f"shardd: {error}", err=True)
    return typer.Exit(2)


@bench_app.callback()
def bench(
    context: typer.Context,
    message_size: words.MessageSize = "1000",
    messages_per_batch: words.MessagesPerBatch = "1000",
    message_batches: words.MessageBatches = None,
    total_data: words.TotalData = None,
    rate_limit: words.RateLimit = None,
    warmup_time: words.WarmupTime = "0s",
    sampling_time: words.SamplingTime = "10ms",
    moving_average_window: words.MovingAverageWindow = 20,
    username: words.Username = "iggy",
    password: words.Password = "iggy",
    reuse_streams: words.ReuseStreams = False,
    depth: words.Depth = 1,
    open_loop: words.OpenLoop = False,
    partitioning: words.Partitioning = "",
    hot_percent: words.HotPercent = 0,
    dialect: words.Dialect = "0.8",
    processes: words.Processes = 0,
    as_json: words.AsJson = False,
    against: words.Against = None,
    rounds: words.Rounds = ROUNDS,
    own_server: words.OwnServer = False,
    durability: words.Durability = "written",
    directory: words.Directory = "",
    server_cpus: words.ServerCpus = "",
    client_cpus: words.ClientCpus = "",
    server_settings: words.ServerSettings = None,
) -> None:
    """Measure a server under load, as iggy-bench does (docs/bench.md)."""
    if context.invoked_subcommand in ("compare", "examples", "e"):
        return
    try:
        if message_batches is not None and total_data is not None:
            raise BenchError("--message-batches and --total-data exclude each other")
        _check_started(context)
        if durability not in DURABILITIES:
            raise BenchError(f"--durability is {', '.join(DURABILITIES)}, not {durability!r}")
        context.obj = {
            "message_size": parse_span(message_size, 0, MESSAGE_PAYLOAD_BYTES_MAX, "--message-size"),
            "batch": parse_span(messages_per_batch, 1, BATCH_MAX, "--messages-per-batch"),
            "batches": 1000 if message_batches is None else message_batches,
            "total_data_bytes": parse_bytes(total_data, "--total-data"),
            "rate_limit_bytes": parse_bytes(rate_limit, "--rate-limit"),
            "rate_limit_text": rate_limit,
            "warmup_us": parse_us(warmup_time, "--warmup-time"),
            "sampling_us": _sampling_us(sampling_time),
            "window": moving_average_window,
            "username": username,
            "password": password,
            "reuse_streams": reuse_streams,
            "depth": depth,
            "open_loop": open_loop,
            "processes": processes,
            "given": _given(context),
            "as_json": as_json,
            "against": against or [],
            "rounds": rounds,
            "partitioning": partitioning,
            "hot_percent": hot_percent,
            "dialect": dialect,
            "own": own_server,
            "durability": durability,
            "directory": directory,
            "server_cpus": server_cpus,
            "client_cpus": client_cpus,
            "server_settings": tuple(server_settings or ()),
        }
    except BenchError as error:
        raise _refuse(error) from error


def _check_started(context: typer.Context) -> None:
    """BenchError for an option that would do nothing."""
    given = _given(context)
    unused = [word for name, word in _OF_STARTED.items() if name in given]
    if unused and not context.params["own_server"] and not context.params["against"]:
        raise BenchError(f"{unused[0]} is for servers that are started: with --own-server or --against")


def _check_address(context: typer.Context) -> None:
    if context.obj["own"] and "server_address" in _given(context):
        raise _refuse(BenchError("--server-address is for a server that runs: without --own-server"))


def _sampling_us(text: str) -> int:
    found = parse_us(text, "--sampling-time")
    if found < 100:
        raise BenchError("--sampling-time is 100us or more")
    return found


def _given(context: typer.Context) -> set[str]:
    """Options that somebody gave, by a word or by a variable."""
    found = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in found.items() if source is not None and source.name != "DEFAULT"}


@bench_app.command("examples")
@bench_app.command("e", hidden=True)
def examples() -> None:
    """Show commands to begin with."""
    typer.echo(_EXAMPLES)


@bench_app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A report.json, or the directory of a run.")],
    second: Annotated[Path, typer.Argument(metavar="B")],
) -> None:
    """Show two reports beside each other, also of iggy-bench, and what is more than noise."""
    from shardd.benchmark.compare import compare, load_report

    try:
        lines = compare(load_report(first), load_report(second))
    except BenchError as error:
        raise _refuse(error) from error
    for line in lines:
        typer.echo(line)


# ---- kinds: each has the options that it needs ----

_OPTIONS: Final[dict[str, tuple[Any, tuple[str, ...], str]]] = {
    "streams": (int | None, ("--streams", "-s"), "Bench streams."),
    "partitions": (int, ("--partitions", "-a"), "Of each topic."),
    "producers": (int, ("--producers", "-p"), ""),
    "consumers": (int, ("--consumers", "-c"), ""),
    "groups": (int, ("--consumer-groups", "-g"), ""),
    "max_topic_size": (str | None, ("--max-topic-size", "-T"), "A size like 10GB; none: unlimited."),
    "message_expiry": (str | None, ("--message-expiry", "-e"), "A duration like 1h; none: never."),
    "read_amplification": (float, ("--read-amplification", "-R"), "Consumers may be so many times as fast."),
}


def _defaults(kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = {"streams": kind.streams or None}
    if kind.partitions is not None:
        found["partitions"] = kind.partitions
    if kind.sends:
        found["producers"] = 8
    if CONSUMER in kind.actors or (kind.groups is not None and kind.polls):
        found["consumers"] = 8
    if kind.groups is not None:
        found["groups"] = kind.groups
    if kind.sends:
        found |= {"max_topic_size": None, "message_expiry": None}
    if kind.amplifies:
        found["read_amplification"] = 1.05
    return found


def _parameter(name: str, default: Any) -> inspect.Parameter:
    annotation, names, about = _OPTIONS[name]
    most = ACTORS_MAX if annotation in (int, int | None) else 1000 if annotation is float else None
    least = None if most is None else 1
    option = typer.Option(*names, help=about or None, min=least, max=most)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, option]
    )


def _family(kind: Kind, profile: Profile | None = None) -> typer.Typer:
    """`KIND [OPTIONS] [tcp|websocket|unix ...]`; without a transport it is tcp. A profile is a kind with other
    defaults."""
    app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)

    def choose(*, context: typer.Context, **values: Any) -> None:
        context.obj = {**context.obj, "kind": kind, **_chosen(kind, values)}
        if profile is not None:
            context.obj |= _of_profile(profile, context.obj)
        if context.invoked_subcommand is None:
            run_bench(context.obj, Output())

    defaults = _defaults(kind) | (profile.words if profile is not None else {})
    parameters = [_parameter(name, default) for name, default in defaults.items()]
    every = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *parameters,
    ]
    choose.__doc__ = kind.about if profile is None else profile.about
    choose.__annotations__ = {each.name: each.annotation for each in every}
    choose.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    app.callback()(choose)
    app.add_typer(_tcp, name="tcp")
    app.add_typer(_websocket, name="websocket")
    app.add_typer(_websocket, name="ws", hidden=True)
    app.add_typer(_websocket, name="web-socket", hidden=True)
    app.add_typer(_unix, name="unix")
    return app


def _of_profile(profile: Profile, chosen: dict[str, Any]) -> dict[str, Any]:
    """Its values, but for those that somebody gave."""
    given = chosen["given"]
    values = {name: value for name, value in profile.globals_.items() if _GLOBALS.get(name, name) not in given}
    if "total_data" in given:
        values.pop("batches", None)
    settings = (*profile.settings, *chosen["server_settings"])
    return {**values, "profile": profile.name, "disturbance": profile.disturbance, "server_settings": settings}


_GLOBALS: Final = {
    "batch": "messages_per_batch",
    "batches": "message_batches",
    "rate_limit_bytes": "rate_limit",
    "rate_limit_text": "rate_limit",
}
"""Fields of Options whose options have other names."""


def _chosen(kind: Kind, values: dict[str, Any]) -> dict[str, Any]:
    producers = values.get("producers", 0)
    consumers = values.get("consumers", 0)
    try:
        expiry = values.get("message_expiry")
        return {
            "producers": producers,
            "consumers": consumers,
            "streams": values["streams"] or (producers if PRODUCER in kind.actors else consumers),
            "partitions": values.get("partitions", 1),
            "groups": values.get("groups", 1),
            "read_amplification": values.get("read_amplification", 1.0),
            "max_topic_size_bytes": parse_bytes(values.get("max_topic_size"), "--max-topic-size"),
            "expiry_us": None if expiry is None else parse_us(expiry, "--message-expiry"),
        }
    except BenchError as error:
        raise _refuse(error) from error


# ---- transports, and what is written ----

_tcp = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
_websocket = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
_unix = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


def _tls(wanted: bool, domain: str, verify: bool, ca_file: str) -> Tls | None:
    return Tls(domain, ca_file, verify) if wanted else None


@_tcp.callback()
def tcp(
    context: typer.Context,
    server_address: Annotated[str, typer.Option("--server-address", help="host:port")] = "127.0.0.1:8090",
    nodelay: Annotated[bool, typer.Option("--nodelay", help="Set TCP_NODELAY.")] = False,
    tls: words.TlsOption = False,
    tls_domain: words.TlsDomain = "localhost",
    tls_validate_certificate: words.TlsVerify = False,
    tls_ca_file: words.TlsAuthorities = "",
) -> None:
    """Over TCP."""
    _check_address(context)
    way = _tls(tls, tls_domain, tls_validate_certificate, tls_ca_file)
    context.obj = {**context.obj, "server_address": server_address, "nodelay": nodelay, "tls": way}
    if context.invoked_subcommand is None:
        run_bench(context.obj, Output())


@_websocket.callback()
def websocket(
    context: typer.Context,
    server_address: Annotated[str, typer.Option("--server-address", help="host:port")] = "127.0.0.1:8092",
    tls: words.TlsOption = False,
    tls_domain: words.TlsDomain = "localhost",
    tls_validate_certificate: words.TlsVerify = False,
    tls_ca_file: words.TlsAuthorities = "",
) -> None:
    """Over WebSocket."""
    _check_address(context)
    way = _tls(tls, tls_domain, tls_validate_certificate, tls_ca_file)
    context.obj = {**context.obj, "server_address": server_address, "nodelay": True, "tls": way, "websocket": True}
    if context.invoked_subcommand is None:
        run_bench(context.obj, Output())


@_unix.callback()
def unix(
    context: typer.Context,
    path: Annotated[str, typer.Option("--path", help="The socket of the server; any with --own-server.")],
) -> None:
    """Over a Unix socket."""
    context.obj = {**context.obj, "unix_path": path}
    if context.invoked_subcommand is None:
        run_bench(context.obj, Output())


def output(
    context: typer.Context,
    output_dir: Annotated[str, typer.Option("--output-dir", "-o", help="A directory is made in it.")] = (
        "performance_results"
    ),
    identifier: Annotated[str | None, typer.Option("--identifier", help="Of this machine; its name.")] = None,
    remark: Annotated[str | None, typer.Option("--remark")] = None,
    extra_info: Annotated[str | None, typer.Option("--extra-info")] = None,
    gitref: Annotated[str | None, typer.Option("--gitref", help="What was measured; the server's version.")] = None,
    gitref_date: Annotated[str | None, typer.Option("--gitref-date")] = None,
    open_charts: Annotated[bool, typer.Option("--open-charts", "-c", help="Open the page in a browser.")] = False,
) -> None:
    """Write report.json, a page with charts, and the logs of the server."""
    chosen: dict[str, Any] = {"identifier": identifier} if identifier else {}
    told = Output(
        output_dir,
        remark=remark,
        extra_info=extra_info,
        gitref=gitref,
        gitref_date=gitref_date,
        open_charts=open_charts,
        **chosen,
    )
    run_bench(context.obj, told)


_tcp.command("output")(output)
_websocket.command("output")(output)
_unix.command("output")(output)
for _kind in KINDS:
    bench_app.add_typer(_family(_kind), name=_kind.name, help=f"{_kind.about} ({_kind.alias})")
    bench_app.add_typer(_family(_kind), name=_kind.alias, hidden=True)
for _profile in PROFILES:
    bench_app.add_typer(_family(_profile.kind, _profile), name=_profile.name, help=_profile.about)
