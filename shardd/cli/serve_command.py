"""`shardd serve` as it is declared. What workers need is being imported while the rest of this starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

from shardd.cli.declared import Family, Option

serve_family = Family()
CONFIG_VARIABLE: Final = "SHARDD_CONFIG_PATH"


@serve_family.command("serve")
def serve(
    config: Annotated[
        Path | None, Option("--config", "-c", about=f"Settings, a TOML file; without it that of {CONFIG_VARIABLE}.")
    ] = None,
    data: Annotated[Path | None, Option("--data", about="Data directory, instead of system.path.")] = None,
    dev: Annotated[
        bool, Option("--dev", about="User iggy with password iggy, and a temporary data directory.")
    ] = False,
    fresh: Annotated[bool, Option("--fresh", about="Remove all data before the start.")] = False,
    with_default_root_credentials: Annotated[
        bool, Option("--with-default-root-credentials", about="First user iggy with password iggy.")
    ] = False,
    follower: Annotated[
        bool, Option("--follower", about="Tell clients that this node of the cluster is not the leader.")
    ] = False,
) -> None:
    """Run the server in the foreground."""
    from shardd.server.worker_template import WorkerTemplate

    template = WorkerTemplate()
    from shardd.cli.serve import ServeOptions, serve_until_stopped

    if config is None and os.environ.get(CONFIG_VARIABLE):
        config = Path(os.environ[CONFIG_VARIABLE])
    options = ServeOptions(config, data, dev, fresh, with_default_root_credentials, follower)
    try:
        status = serve_until_stopped(options, template=template)
    finally:
        template.close()
    sys.exit(status)
