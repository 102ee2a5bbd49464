"""The short form of the demo of consumer groups: fair shares, exactly once while nothing moves, nothing lost."""

from tests.demo import groups


def test_members_of_the_released_client_come_and_go_and_nothing_is_lost() -> None:
    result = groups.run(seconds=0.5)
    assert result.broken == [], groups.report(result)
    assert [len(table) for _, table in result.tables] == [8, 6]
    assert all(count > 0 for count in result.steady)
