"""Loads the native module from SHARDD_TEST_NATIVE_MODULE instead of the one beside the package."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

_MODULE = os.environ["SHARDD_TEST_NATIVE_MODULE"]  # now: a worker takes such variables out before it loads its engine


class _OtherNativeModule:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "shardd.engine._native":
            return None
        return spec_from_file_location(name, _MODULE)


sys.meta_path.insert(0, _OtherNativeModule)
