"""The short form of the demo: what goes in through the released client comes out, with a kill in the middle."""

from tests.demo import flights


def test_flights_come_out_as_they_went_in_after_a_kill() -> None:
    result = flights.run(20_000)
    assert result.differences == []
    assert result.rows == 20_000
    assert result.repeats <= result.sent_again
    assert result.recovery_s < 10
    print(flights.table(result))
