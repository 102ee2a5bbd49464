"""Subjects that the door sends to at a NATS server."""

from __future__ import annotations

import pytest

from shardd.config.liftbridge import (
    SUBJECT_TOKENS_MAX,
    LiftbridgeNats,
    parse_ack_inbox_prefix,
    parse_outward_subjects,
)
from shardd.doors.liftbridge.nats.outward import Outward
from shardd.protocol.liftbridge.creation import WILDCARD_TOKENS_MAX


def outward(subjects: tuple[str, ...] = (), prefix: str = "") -> Outward:
    return Outward(LiftbridgeNats((), "", subjects, prefix, *[""] * 8))


@pytest.mark.parametrize(
    ("subject", "is_taken"),
    [
        ("events.a", True),
        ("events.a.b", True),
        ("events", False),
        ("eventsa.b", False),
        ("one.x.two", True),
        ("one.x.y.two", False),
        ("$SYS.REQ", False),
        ("_INBOX.x", False),
    ],
)
def test_unstored_message_is_sent_to_the_subjects_of_the_settings(subject: str, is_taken: bool) -> None:
    assert outward(("events.>", "one.*.two")).takes_unstored(subject) is is_taken
    assert not outward().takes_unstored(subject)


def test_subjects_of_nats_itself_are_not_sent_to_whatever_the_settings_say() -> None:
    everything = outward((">",))
    assert everything.takes_unstored("any.subject")
    assert not everything.takes_unstored("$JS.API.STREAM.DELETE.orders") and not everything.takes_stored("$SYS.x")
    assert not everything.takes_unstored("_INBOX.x") and not everything.takes_stored("_INBOX.x")


def test_acks_go_below_prefixes() -> None:
    assert outward().takes_ack("_INBOX.x.y") and outward(prefix="acks.mine").takes_ack("_INBOX.x")
    assert outward(prefix="acks.mine").takes_ack("acks.mine.7")
    for inbox in ("", "_INBOX", "_INBOX.", "_INBOX.*", "_INBOX.a b", "acks.mine", "acks.mines.7", "payments.do"):
        assert not outward(prefix="acks.mine").takes_ack(inbox), inbox
    assert not outward().takes_ack("acks.mine.7")


def test_settings_refuse_what_is_not_a_subject() -> None:
    assert SUBJECT_TOKENS_MAX == WILDCARD_TOKENS_MAX
    assert parse_outward_subjects("a.b, c.>") == ["a.b", "c.>"] and parse_outward_subjects([">", "*"]) == [">", "*"]
    for bad in ("a..b", "a.>.b", "a b", "a*", ".", ".a", "a.", ".".join("x" * 17)):
        with pytest.raises(ValueError, match="is not a subject"):
            parse_outward_subjects([bad])
    with pytest.raises(ValueError, match="at most 256"):
        parse_outward_subjects(["a"] * 257)
    assert parse_ack_inbox_prefix("a.b") == "a.b" and parse_ack_inbox_prefix("") == ""
    prefixes: tuple[object, ...] = ("a.*", ">", "a.", 7, "x" * 257)
    for prefix in prefixes:
        with pytest.raises(ValueError, match="without wildcards"):
            parse_ack_inbox_prefix(prefix)
