"""Modules that are imported when something of them is used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def lazy_module(name: str) -> ModuleType:
    """The module, loaded at the first look into it."""
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.find_spec(name)
    if found is None or found.loader is None:
        raise ImportError(f"there is no module {name}")
    found.loader = importlib.util.LazyLoader(found.loader)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module
