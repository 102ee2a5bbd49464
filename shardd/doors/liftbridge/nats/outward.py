"""The subjects to which the door may send at a NATS server. The door sends there with its own login, so a client that
could choose any subject would speak for the door: to services behind the NATS server, and to inboxes of other users.

| what is sent | where to |
|---|---|
| a message that a stream has stored | its subject: the caller had the right to send to the stream |
| a message that no stream takes (PublishToSubject) | subjects of `liftbridge.nats.outward_subjects` |
| an ack | inboxes below `_INBOX.` and below `liftbridge.nats.ack_inbox_prefix` |

Never, beside acks, below `_INBOX.` or a token that begins with `$`: those are subjects of NATS itself.
"""

from __future__ import annotations

from typing import Final

from shardd.config.liftbridge import LiftbridgeNats
from shardd.doors.liftbridge.ingest import is_inbox
from shardd.doors.liftbridge.subject_table import SubjectTable

INBOXES: Final = "_INBOX."
_SYSTEM: Final = "$"


class Outward:
    """What the settings allow. Loop thread only."""

    def __init__(self, settings: LiftbridgeNats) -> None:
        self._subjects: SubjectTable[str, bool] = SubjectTable()
        for subject in settings.outward_subjects:
            self._subjects.add(subject, subject, True)
        prefix = settings.ack_inbox_prefix
        self._inboxes = (INBOXES, f"{prefix}.") if prefix else (INBOXES,)

    def takes_stored(self, subject: str) -> bool:
        """Whether a message that a stream has stored is told there."""
        return not subject.startswith((_SYSTEM, INBOXES))

    def takes_unstored(self, subject: str) -> bool:
        """Whether a message that no stream takes is sent there."""
        return self.takes_stored(subject) and self._subjects.has_match(subject)

    def takes_ack(self, inbox: str) -> bool:
        """Whether an ack may go to an inbox that a publisher has chosen."""
        return inbox.startswith(self._inboxes) and is_inbox(inbox)
