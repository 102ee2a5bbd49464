"""Who asks a service."""

from __future__ import annotations

import msgspec

from shardd.metadata.commands import Ref
from shardd.protocol.errors import ShardError, Status
from shardd.security import ROOT_USER_ID
from shardd.service.sessions import Session


class Identity(msgspec.Struct, frozen=True):
    """`user_id` is None without a login; `incarnation`: which user with that id, as ids are reused. `session`: the
    connection that asks, for what needs one (logins, memberships in groups); None for callers without."""

    user_id: int | None
    incarnation: int = 0
    session: Session | None = None

    @property
    def user(self) -> int:
        """The user behind a request that has passed the login check."""
        if self.user_id is None:
            raise ShardError(Status.UNAUTHENTICATED)
        return self.user_id

    @property
    def owner(self) -> int:
        """The user for whom what is stored on behalf of this request counts (docs/adr/0112): an incarnation. 0: it
        counts for no user, as what root stores does."""
        return 0 if self.user == ROOT_USER_ID else self.incarnation

    @property
    def ref(self) -> Ref:
        return Ref(self.user, self.incarnation)

    @property
    def address(self) -> str:
        """Where the request comes from: "ip:port", "" when nobody knows."""
        return "" if self.session is None else self.session.address
