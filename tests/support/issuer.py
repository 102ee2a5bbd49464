"""An issuer of tokens, with keys of its own and a real HTTP server that hands out the public ones."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

HOST: Final = "127.0.0.1"
NAME: Final = "https://issuer.example"
AUDIENCE: Final = "shardd"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def public(key: PrivateKey, name: str | None = "first", **changes: object) -> dict[str, Any]:
    """As it stands in a set of keys."""
    if isinstance(key, rsa.RSAPrivateKey):
        said = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        said = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        said = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    said.pop("key_ops", None)
    return said | ({} if name is None else {"kid": name}) | changes


def key_set(*keys: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"keys": keys})


def token(key: Any, algorithm: str = "RS256", kid: str | None = "first", header: object = None, **claims: Any) -> str:
    """A good one, but for what is changed; a claim that is None is left out."""
    now = int(time.time())
    said = {"iss": NAME, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600} | claims
    head = ({} if kid is None else {"kid": kid}) | (header if isinstance(header, dict) else {})
    return jwt.encode({name: value for name, value in said.items() if value is not None}, key, algorithm, head)


Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class IssuerServer:
    """`keys`: what it answers with; `answer`: another way to. `asked`: how often it was."""

    def __init__(self, keys: bytes = b"", answer: Answer | None = None) -> None:
        self.keys = keys
        self.answer = answer
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if outer.answer is not None and self.path == "/keys":
                    outer.answer(self)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(outer.keys)))
                self.end_headers()
                self.wfile.write(outer.keys)

            def log_message(self, *args: object) -> None:
                """Nobody reads it."""

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_address[1]}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
