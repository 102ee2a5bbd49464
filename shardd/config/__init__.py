"""Typed, frozen settings: defaults < file < environment < command line (docs/configuration.md)."""

from shardd.config.cpus import CpuAllocationError, allocate_cpus
from shardd.config.loader import ConfigError, Loaded, load_settings
from shardd.config.root_user import RootUser, resolve_root_user
from shardd.config.schema import Logging, Settings, Sharding, Socket, System, Tcp

__all__ = [
    "ConfigError",
    "CpuAllocationError",
    "Loaded",
    "Logging",
    "RootUser",
    "Settings",
    "Sharding",
    "Socket",
    "System",
    "Tcp",
    "allocate_cpus",
    "load_settings",
    "resolve_root_user",
]
