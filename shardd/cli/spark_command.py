"""`shardd spark doctor`: what Spark finds on this machine, and the way out when something is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from typing import Final

import typer

spark_app = typer.Typer(no_args_is_help=True, help="The Spark side of shardd.", rich_markup_mode=None)
PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "deltalake", "pyiceberg", "matplotlib")
WAY_OUT: Final = "pip install 'shardd[spark]'"


@spark_app.callback()
def spark() -> None:
    """The Spark side of shardd."""


@spark_app.command()
def doctor() -> None:
    """Java, PySpark and its libraries: what was found. Exit status 1 when pipelines cannot run."""
    good = True
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            good = False
            typer.echo(f"missing  {name}: {WAY_OUT}")
            continue
        problem = _problem(name, version)
        good = good and not problem
        typer.echo(f"{'problem' if problem else 'ok     '}  {name} {version}{': ' + problem if problem else ''}")
    decoder = importlib.util.find_spec("shardd.spark._decode") is not None
    typer.echo("ok       native decoder" if decoder else "missing  native decoder: `make native` builds it")
    typer.echo(f"ok       Python of the workers: {os.environ.get('PYSPARK_PYTHON', sys.executable)}")
    raise typer.Exit(0 if _java() and good and decoder else 1)


def _problem(name: str, version: str) -> str:
    major, minor = (int(part) for part in version.split(".")[:2])
    if name == "pyspark" and not ((4, 2) <= (major, minor) < (5, 0)):
        return f"needs 4.2 or newer, below 5: {WAY_OUT}"
    if name == "pandas" and not ((2, 2) <= (major, minor) < (3, 0)):
        return f"needs 2.2 or newer, below 3: {WAY_OUT}"
    return ""


def _java() -> bool:
    from shardd.spark.java import JAVA_MINIMUM, NoJavaError, find_java

    try:
        java = find_java()
    except NoJavaError as error:
        typer.echo(f"missing  Java: {error}")
        return False
    for each in java.passed_over:
        typer.echo(f"problem  {each} is no Java {JAVA_MINIMUM} or newer; another one is taken. Unset or correct it")
    typer.echo(f"ok       Java {java.version} from {java.origin}: {java.home}")
    return True
