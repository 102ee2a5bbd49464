"""A planted fault that a state machine must find."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.models.history import Broken


def finds(machine: Any, *only: str, examples: int = 400, steps: int = 30) -> None:
    """`only`: of the rules; none: all of them. No shorter example is looked for."""
    assert issubclass(machine, RuleBasedStateMachine)
    if only:
        marker = "hypothesis_stateful_rule"
        rules = {name for name in dir(machine) if hasattr(getattr(machine, name), marker)}
        assert rules.issuperset(only), rules
        machine = type("Focused", (machine,), dict.fromkeys(rules - set(only)))
    generated = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    with pytest.raises(Broken):
        run_state_machine_as_test(machine, settings=generated)
