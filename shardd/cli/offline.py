"""What commands need that change a data directory without a server: its lock, its metadata, its first user."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shardd.config.root_user import RootUser, resolve_root_user
from shardd.log.directory_info import read_being_imported
from shardd.log.file_modes import made_like
from shardd.metadata.commands import CreateUser
from shardd.metadata.offline import OfflineMetadata
from shardd.runtime.password_hash import hash_password
from shardd.security.root import ROOT_PERMISSIONS
from shardd.server.data_directory import lock_directory, prepare_directory


@contextmanager
def locked(data: Path, wait_s: float = 0.0) -> Iterator[None]:
    """The data directory, made when it is missing, for this process alone; one in which an import was interrupted is
    left as it is. `wait_s`: for a server that ends. StartupError: a server runs on it, or it is none. OSError."""
    with made_like(data):
        descriptor = lock_directory(data, wait_s)
        try:
            if read_being_imported(data) is None:
                prepare_directory(data, fresh=False)
            yield
        finally:
            os.close(descriptor)


def ensure_root(
    metadata: OfflineMetadata, environment: Mapping[str, str], *, default_credentials: bool = False
) -> RootUser | None:
    """Makes the first user as the first start of a server would; None: there is one. A password that was generated is
    printed, once. ValueError for variables that do not fit, OfflineError."""
    if metadata.state.users:
        return None
    root = resolve_root_user(environment, default_credentials)
    metadata.submit(CreateUser(root.name, hash_password(root.password), True, ROOT_PERMISSIONS))
    if root.generated:
        # for whoever types the command, and known nowhere else
        sys.stderr.write(f"Generated root user password: {root.password}\n")
    return root
