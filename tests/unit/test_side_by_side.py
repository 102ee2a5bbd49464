"""How the tests are divided among processes, when one of them ends."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from tests.support.side_by_side import FilesTogether


def test_process_that_ended_gives_back_what_has_not_run_and_not_the_test_that_ended_it() -> None:
    made: Any = FilesTogether.__new__(FilesTogether)
    node, made.workqueue = object(), OrderedDict()
    made.assigned_work = {
        node: {
            "done.py": {"done.py::a": True, "done.py::b": True},
            "hung.py": {"hung.py::a": True, "hung.py::b": False, "hung.py::c": False},
            "last.py": {"last.py::a": False},
        }
    }
    assert made.remove_node(node) == "hung.py::b"
    assert made.workqueue == {
        "hung.py": {"hung.py::a": True, "hung.py::b": True, "hung.py::c": False},
        "last.py": {"last.py::a": False},
    }


def test_process_that_ends_in_order_has_ended_no_test() -> None:
    made: Any = FilesTogether.__new__(FilesTogether)
    node, made.workqueue = object(), OrderedDict()
    made.assigned_work = {node: {"done.py": {"done.py::a": True}}}
    assert made.remove_node(node) is None and not made.workqueue
