"""TLS of a worker: what its engine shows to clients, and whose connection a client's certificate makes it."""

from __future__ import annotations

import logging
import time

from msgspec.structs import astuple

from shardd.config.schema import Tls
from shardd.engine import CertifiedEvent, Engine
from shardd.metadata import Metadata
from shardd.runtime.tls_material import PORTS, TlsState, read_state
from shardd.service.sessions import SessionTable

_log = logging.getLogger(__name__)
_DAY_S = 86_400


class WorkerTls:
    """`fd`: the memfd of the supervisor; -1: no TLS."""

    def __init__(self, tls: Tls, fd: int, engine: Engine) -> None:
        self._tls = tls
        self._fd = fd
        self._engine = engine
        self._state: TlsState | None = None
        if fd < 0:
            return
        for _ in range(100):  # the supervisor may be about to write it
            if self.reload():
                break
            time.sleep(0.01)
        assert self._state is not None, "what the supervisor has for TLS cannot be read"
        tickets = self._state.tickets
        engine.use_tickets(tickets.secret, tickets.period)

    def reload(self) -> bool:
        """Takes what the supervisor has now, for those who connect from now on. False: it is being written."""
        state = read_state(self._fd)
        if state is None:
            return False
        for port, material in state.ports.items():
            self._engine.use_tls(PORTS[port], *astuple(material))
        self._state = state
        return True

    def figures(self) -> dict[str, int]:
        """Gauges: days until the first certificate ends."""
        if self._state is None:
            return {}
        return {"certificate_days": max(0, int(min(self._state.not_after_s) - time.time()) // _DAY_S)}

    def certified(self, event: CertifiedEvent, metadata: Metadata, sessions: SessionTable) -> None:
        """The connection is logged in as the user of the certificate, if there is one; other ones log in themselves."""
        session = sessions.get(event.connection)
        if session is not None and not session.removed:
            names = [name for name in event.names.splitlines() if name in self._tls.client_users]
            state = metadata.state
            user_id = state.user_ids.get(self._tls.client_users[names[0]]) if names else None
            user = state.users.get(user_id) if user_id is not None else None
            if user is not None and user.active:
                session.set_user(user.id, user.incarnation)
                self._engine.set_session(session.connection, user.id, True)
            elif names:
                _log.warning("the certificate of %s is that of no active user: %s", session.address, names[0])
        self._engine.resume(event.connection)
