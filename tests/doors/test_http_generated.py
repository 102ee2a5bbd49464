"""Requests that are generated from the description of the API: the short form of `make test-http-generated`."""

from __future__ import annotations

import re

from tests.doors.http_generated import generated

EXAMPLES = 3  # of each endpoint
CASES_MIN = 500


def test_generated_requests_find_no_fault_of_the_server_and_none_of_its_description() -> None:
    status, said = generated(EXAMPLES)
    assert status == 0, said[-8000:]
    cases = re.search(r"([0-9,]+) generated", said)
    assert cases is not None and int(cases[1].replace(",", "")) >= CASES_MIN, said[-2000:]
