"""`python -m tests.spark.secrets_child SERVER TOPIC DIRECTORY`: streams into tables with secrets among all options and
with an event log, and writes what Spark tells (plans, progress, errors) to DIRECTORY/logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions
from shardd.spark import session
from shardd.spark.pipelines import archive
from shardd.spark.pipelines.common import Source
from tests.support.links import root_link

USER, PASSWORD, CATALOG_TOKEN = "reader", "sesame-7", "sesame-8"


def main(server: str, topic: str, directory: Path) -> None:
    events, logs = directory / "events", directory / "logs"
    events.mkdir()
    logs.mkdir()
    with root_link(server) as connection:
        rights = Permissions(read_streams=True, read_topics=True, poll_messages=True)
        connection.request(Code.CREATE_USER, account_requests.CreateUserRequest(USER, PASSWORD, 1, rights).encode())
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{events}"}
    spark = session.session("local[2]", name="secrets", settings=settings)
    given = {"servers": server, "username": USER, "password": PASSWORD}
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}
    rows = spark.readStream.format("shardd").options(**given, subscribe=topic, startingOffsets="earliest").load()
    told = []
    for kind, place in (
        ("delta", {"path": str(directory / "table")}),
        (
            "iceberg",
            {"table": "a.b", "catalog.token": CATALOG_TOKEN, **{f"catalog.{k}": v for k, v in catalog.items()}},
        ),
    ):
        writer = rows.writeStream.format(f"shardd_{kind}").options(**place)
        query = writer.option("checkpointLocation", str(directory / "checkpoint" / kind))
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        told += [json.dumps(each, default=str) for each in running.recentProgress]
    batch = spark.read.format("shardd").options(**given, subscribe=topic).load()
    told.append(batch._jdf.queryExecution().toString())
    errors = 0
    for bad in ({"subscribe": f"{topic}-not"}, {"subscribe": topic, "startingOffsets": "no"}):
        try:
            spark.read.format("shardd").options(**{**given, **bad}).load().count()
        except Exception as error:
            errors += 1
            told.append(str(error))
    target = archive.Target.parse("iceberg:a.c", {**catalog, "token": CATALOG_TOKEN})
    told.append(json.dumps(archive.archive(spark, Source(topic, given), target)))
    (logs / "told").write_text("\n".join(told))
    count = batch.count()
    spark.stop()
    print(json.dumps({"rows": count, "errors": errors, "progress": len(told)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
