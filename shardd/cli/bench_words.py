"""Options of `shardd bench` before its kind, and of its transports."""

from __future__ import annotations

from typing import Annotated

import typer

from shardd.benchmark.options import DEPTH_MAX, ROUNDS_MAX

MessageSize = Annotated[
    str, typer.Option("--message-size", "-m", help="Bytes of a payload: a number, or a range like 100..1000.")
]
MessagesPerBatch = Annotated[str, typer.Option("--messages-per-batch", "-P", help="A number, or a range.")]
MessageBatches = Annotated[
    int | None, typer.Option("--message-batches", "-b", min=1, help="Of each actor; 1000 without --total-data.")
]
TotalData = Annotated[str | None, typer.Option("--total-data", "-T", help="Of all actors together, instead: 10GB.")]
RateLimit = Annotated[
    str | None, typer.Option("--rate-limit", "-r", help="Payload bytes each second, all actors: 100MB.")
]
WarmupTime = Annotated[str, typer.Option("--warmup-time", "-w", help="Before the measurement: 5s.")]
SamplingTime = Annotated[str, typer.Option("--sampling-time", "-t", help="Width of a point in series.")]
MovingAverageWindow = Annotated[
    int, typer.Option("--moving-average-window", "-W", min=1, max=100_000, help="Points that throughput averages.")
]
Username = Annotated[str, typer.Option("--username", "-u", envvar="SHARDD_USERNAME")]
Password = Annotated[str, typer.Option("--password", "-p", envvar="SHARDD_PASSWORD", help="Better in the variable.")]
ReuseStreams = Annotated[
    bool, typer.Option("--reuse-streams", help="Keep bench streams of earlier runs, and write behind them.")
]
Depth = Annotated[int, typer.Option("--depth", min=1, max=DEPTH_MAX, help="Requests in flight of each producer.")]
OpenLoop = Annotated[
    bool,
    typer.Option("--open-loop", help="Requests are due by --rate-limit, and latencies begin when they are due."),
]
Partitioning = Annotated[
    str, typer.Option("--partitioning", help="Of producers: balanced, key, random, partition (0).")
]
HotPercent = Annotated[
    int, typer.Option("--hot-percent", min=0, max=100, help="With random: so many requests go to partition 0.")
]
Dialect = Annotated[str, typer.Option("--dialect", help="Framing of Apache Iggy: 0.8, or 0.9.")]
Processes = Annotated[int, typer.Option("--processes", min=0, max=1024, help="Of the client; 0: as many as CPUs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print report.json instead of a table.")]
Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against", help="Measure this beside it, in turns: shardd, floor, redis, nats, an address, a report."
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, max=ROUNDS_MAX, help="With --against.")]
OwnServer = Annotated[
    bool,
    typer.Option("--own-server", help="Start a shardd for each measurement, and end it after it."),
]
Durability = Annotated[
    str, typer.Option("--durability", help="Of servers that are started: memory, written or durable.")
]
Directory = Annotated[
    str, typer.Option("--directory", help="Where servers that are started keep their data; a temporary one.")
]
ServerCpus = Annotated[str, typer.Option("--server-cpus", help="Of servers that are started: 0,2-3.")]
ClientCpus = Annotated[str, typer.Option("--client-cpus", help="Of the client.")]
ServerSettings = Annotated[
    list[str] | None, typer.Option("--set", help="SHARDD_NAME=VALUE for a shardd that is started.")
]
TlsOption = Annotated[bool, typer.Option("--tls", help="With TLS.")]
TlsDomain = Annotated[str, typer.Option("--tls-domain", help="What the certificate has to be for.")]
TlsVerify = Annotated[bool, typer.Option("--tls-validate-certificate", help="Whether it is looked at at all.")]
TlsAuthorities = Annotated[str, typer.Option("--tls-ca-file", help="Who is trusted; the authorities of this machine.")]
