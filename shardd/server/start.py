"""From settings to a running supervisor: everything that can refuse a start, in the order that does no harm."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardd.config.cpus import CpuAllocationError, allocate_cpus, memory_nodes
from shardd.config.root_user import RootUser
from shardd.config.schema import Settings, Tls
from shardd.log.file_modes import correct_modes, group_id, umask_for
from shardd.server.access_keys import read_access_keys
from shardd.server.address_lock import lock_address
from shardd.server.data_directory import STATE_NAME, lock_directory, prepare_directory, remove_runtime_config
from shardd.server.door_listeners import DoorListeners
from shardd.server.doors import DoorSpecification
from shardd.server.errors import StartupError
from shardd.server.first_user import FirstUser
from shardd.server.listeners import open_listeners, server_answers
from shardd.server.own_stall import told_when_stuck
from shardd.server.shared_resources import (
    descriptors_wanted,
    make_resources,
    pool_share_bytes,
    raise_descriptor_limit,
)
from shardd.server.supervisor import Supervisor
from shardd.server.tls_files import CertificateError, TlsKeeper
from shardd.server.unix_listener import open_unix_listener
from shardd.server.websocket_listeners import open_websocket_listeners
from shardd.server.worker_template import WorkerTemplate

if TYPE_CHECKING:
    from shardd.engine.io_choice import IoEngine

_NEWBORN_BYTES_MAX: Final = 128  # more than a log without records has
_log = logging.getLogger(__name__)


def root_exists(directory: Path) -> bool:
    """True when the metadata log holds something: its first record is the first user
    (docs/protocol/accounts.md#first-user)."""
    try:
        size = (directory / STATE_NAME).stat().st_size
    except OSError:
        return False
    if not 0 < size < _NEWBORN_BYTES_MAX:
        return size > 0
    from shardd.metadata.births import is_newborn  # a directory with a first user needs none of the metadata

    return not is_newborn(directory)


def run_supervisor(
    settings: Settings,
    root: RootUser,
    *,
    fresh: bool,
    version: str,
    read_settings: Callable[[], Settings],
    doors: Sequence[DoorSpecification] = (),
    template: WorkerTemplate | None = None,
) -> int:
    """Runs until a signal; exit status. `read_settings`: as they are then; ConfigError. Raises StartupError when the
    server cannot start."""
    is_first = fresh or not root_exists(settings.system.data_directory)
    first_user = FirstUser(root, settings.server.password_hash, beside=is_first)
    with told_when_stuck():
        return _run(settings, first_user, fresh, version, read_settings, doors, template)


def _run(
    settings: Settings,
    first_user: FirstUser,
    fresh: bool,
    version: str,
    read_settings: Callable[[], Settings],
    doors: Sequence[DoorSpecification],
    template: WorkerTemplate | None,
) -> int:
    cpus, nodes = _cpus(settings.system.sharding.cpu_allocation)
    pool_bytes = pool_share_bytes(settings.system.memory_pool_size_bytes, len(cpus))
    engine = _choose_engine(settings)
    tls, tls_of_doors = _tls(settings.tls_of_ports), _tls(settings.tls_of_doors)
    _check_descriptor_limit(settings)

    group = _group(settings.system.group)
    os.umask(umask_for(group))  # the workers have it from here
    directory = settings.system.data_directory
    directory_lock_fd = lock_directory(directory)
    address_lock = lock_address(settings.tcp.address) if settings.tcp.port else None
    if settings.tcp.port and server_answers(settings.tcp.host, settings.tcp.port):
        raise StartupError(f"a server answers at {settings.tcp.address} already")
    prepare_directory(directory, fresh)
    _correct_modes(directory, group, settings.system.group)
    access_keys = read_access_keys(settings.http, directory)
    remove_runtime_config(settings.system.runtime_directory)
    listeners, address = open_listeners(settings.tcp, len(cpus))
    websocket = open_websocket_listeners(settings, len(cpus))
    door_listeners = DoorListeners({door.name: door.addresses for door in doors})
    unix_listener = open_unix_listener(settings.unix)
    try:
        resources = make_resources(
            shards=len(cpus),
            pool_bytes=pool_bytes,
            directory_lock_fd=directory_lock_fd,
            address=address,
            address_lock=address_lock if address_lock is not None else lock_address(address),
            listeners=listeners,
            data_directory=directory,
            doors=[door.name for door in doors],
            unix_listener=unix_listener,
            websocket=websocket,
            clock_jump_max_us=settings.system.retention.clock_jump_max_ms * 1000,
        )
    except OSError as error:  # limits of open files, of the size of a file, of memory
        if unix_listener is not None:
            unix_listener.close()
        raise StartupError(f"what the workers share cannot be made: {error.strerror}") from error
    try:
        supervisor = Supervisor(
            settings,
            cpus,
            resources,
            first_user,
            version,
            engine,
            first_start=not root_exists(directory),
            memory_nodes=nodes,
            doors=doors,
            door_listeners=door_listeners,
            access_keys=access_keys,
            tls=tls,
            tls_of_doors=tls_of_doors,
            read_settings=read_settings,
            template=template,
        )
        return supervisor.run()
    finally:
        door_listeners.close()
        resources.close()


def _cpus(allocation: str) -> tuple[list[int], list[int]]:
    """One for each worker, and the nodes of their memory (`memory_nodes`)."""
    try:
        cpus = allocate_cpus(allocation)
        return cpus, memory_nodes(allocation, cpus)
    except CpuAllocationError as error:
        raise StartupError(f"system.sharding.cpu_allocation: {error}") from error


def _group(name: str) -> int | None:
    try:
        return group_id(name)
    except ValueError as error:
        raise StartupError(f"system.group: {error}") from error


def _correct_modes(directory: Path, group: int | None, name: str) -> None:
    try:
        corrected = correct_modes(directory, group)
    except ValueError as error:
        raise StartupError(f"system.group: {name}: {error}") from error
    except OSError as error:
        raise StartupError(f"data directory {directory}: {error}") from error
    if corrected.changed:
        readers = "its user" if group is None else f"its user and messages by group {name}"
        _log.info("%d files and directories of %s are now read by %s only", corrected.changed, directory, readers)
    if corrected.failed:
        _log.warning(
            "the modes of %d files and directories of %s cannot be corrected: %s",
            corrected.failed, directory, corrected.reason,
        )  # fmt: skip


def _choose_engine(settings: Settings) -> IoEngine:
    try:
        from shardd.engine.io_choice import IoEngineError, choose_io_engine
    except ImportError as error:
        raise StartupError(f"the native engine is not built ({error}); run `make native`") from error
    try:
        return choose_io_engine(settings.system.io_engine)
    except IoEngineError as error:
        raise StartupError(str(error)) from error


def _tls(ports: dict[str, Tls]) -> TlsKeeper:
    try:
        return TlsKeeper(ports)
    except CertificateError as error:
        raise StartupError(str(error)) from error


def _check_descriptor_limit(settings: Settings) -> None:
    limit = raise_descriptor_limit()
    connections_max = settings.server.connections_max
    wanted = descriptors_wanted(connections_max, settings.proxies)
    if limit < wanted:
        _log.warning(
            "the limit of %d open files is below server.connections_max (%d) and %d for files and proxies",
            limit,
            connections_max,
            wanted - connections_max,
        )
