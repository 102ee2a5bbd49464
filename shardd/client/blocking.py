"""One connection on a blocking socket, for a thread that needs no event loop, no reconnects and no copy of answers."""

from __future__ import annotations

from typing import Final, TypeVar

from shardd.client import commands, wire
from shardd.client.closing import Closing
from shardd.client.errors import ClientError, ConnectionLostError, TlsError, of_status
from shardd.client.exchange import Exchange
from shardd.client.settings import Settings
from shardd.client.transport import connect, is_refused, tls_failure

T = TypeVar("T")
_PIECE_BYTES: Final = 1 << 20  # first room for an answer


class BlockingLink(Closing):
    """Connects at once, and logs in when the settings have a user or a token. `timeout_s` bounds every call on the
    socket. A lost connection is closed, also for an answer that is late: later calls fail, too. ConnectionLostError,
    TlsError, ServerError."""

    def __init__(self, settings: Settings, *, timeout_s: float = 30.0) -> None:
        self._settings = settings
        self._exchange: Exchange[int] = Exchange()  # of the codes of requests
        try:
            self._socket = connect(settings, timeout_s)
        except TlsError:
            raise
        except (OSError, ValueError) as error:
            lost = ConnectionLostError(f"cannot connect to {settings.address}: {error}")
            lost.refused = isinstance(error, OSError) and is_refused(error)
            raise lost from error
        try:
            if settings.token:
                self.call(commands.login_with_token(settings.token))
            elif settings.username:
                self.call(commands.login(settings.username, settings.password))
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Of the server, as in `Settings`."""
        return self._settings.address

    def close(self) -> None:
        self._socket.close()

    def wait_at_most(self, timeout_s: float) -> None:
        """Bounds every call on the socket from now on."""
        if self._socket.fileno() >= 0:  # else the next call says that the connection is lost
            self._socket.settimeout(timeout_s)

    def send(self, code: int, payload: bytes = b"") -> None:
        """Sends one request. Answers are received in the order of their requests."""
        self._write(self._exchange.ask(code, code, payload))

    def send_frame(self, code: int, frame: bytes) -> None:
        """Sends one request whose frame is already whole; `code` is the one in the frame."""
        self._exchange.asked.append(code)
        self._write(frame)

    def receive(self, into: bytearray | None = None) -> memoryview:
        """The payload of the next answer: a view of `into` (which grows when it is too small) or of fresh memory."""
        assert self._exchange.asked, "no request is without an answer"
        head = bytearray(wire.FRAME_HEAD.size)
        self._fill(memoryview(head))
        status, length = wire.FRAME_HEAD.unpack(head)
        target = bytearray() if into is None else into
        filled = 0
        while filled < length:  # memory grows with what arrives, not with what the other side claims
            end = min(length, max(len(target), 2 * filled + _PIECE_BYTES))
            target.extend(bytes(max(end - len(target), 0)))
            with memoryview(target) as whole, whole[filled:end] as piece:
                self._fill(piece)
            filled = end
        code = self._exchange.answered(status)
        if status:
            raise of_status(status, code or 0)
        return memoryview(target)[:length]

    def request(self, code: int, payload: bytes = b"") -> bytes:
        """Sends one request and receives its answer."""
        self.send(code, payload)
        return bytes(self.receive())

    def call(self, command: commands.Command[T]) -> T:
        """The answer of a command, read. ProtocolError."""
        return command.read(self.request(command.code, command.payload))

    def _write(self, frame: bytes) -> None:
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._lost(error) from error
        except BaseException:
            self.close()
            raise

    def _fill(self, view: memoryview) -> None:
        done = 0
        try:
            while done < len(view):
                got = self._socket.recv_into(view[done:])
                if got == 0:
                    raise ConnectionResetError("the server closed the connection")
                done += got
        except OSError as error:
            raise self._lost(error) from error
        except BaseException:  # an answer is cut: the bytes that come next mean nothing
            self.close()
            raise

    def _lost(self, error: OSError) -> ClientError:
        self.close()
        return tls_failure(self._settings, error) or self._exchange.lost(f"{self._settings.address}: {error}")
