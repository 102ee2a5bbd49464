"""Frames of doors: whatever arrives, in whatever pieces, is a frame or ends the connection; and every command of the
services is offered to doors or refused by name."""

from __future__ import annotations

import inspect
import random
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shardd.dispatch.door.clients import parse_address
from shardd.dispatch.door.commands import REFUSED, command_table, request_type
from shardd.dispatch.door.tasks import task_table
from shardd.protocol.door_figures import ALLOWED
from shardd.protocol.door_frames import (
    PROOF_BYTES_MAX,
    REQUEST_BYTES_MAX,
    REQUESTS,
    Command,
    Frame,
    FrameError,
    Frames,
    Kind,
    Login,
    LoginWithToken,
    Prove,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from shardd.protocol.errors import ShardError
from shardd.protocol.requests import SendMessages
from shardd.service.services import Services
from tests.unit.test_layering import service_commands

COMMAND = Command(7, "ping", msgspec.Raw(msgspec.msgpack.encode({})))
OWN_KINDS = {"login", "login_with_token", "login_with_bearer", "logout"}
INSIDE = {"poll"}  # what poll_messages does for members


def take_all(frames: Frames) -> list[Frame]:
    found = []
    while (frame := frames.take()) is not None:
        found.append(frame)
    return found


def test_frames_arrive_in_any_pieces() -> None:
    whole = b"".join(encode_request(number, Kind.COMMAND, COMMAND) for number in range(20))
    for piece in (1, 3, 13, 14, 100, len(whole)):
        frames, found = Frames(1000), list[Frame]()
        for at in range(0, len(whole), piece):
            frames.feed(whole[at : at + piece])
            found += take_all(frames)
        assert [frame.request_id for frame in found] == [*range(20)]
        assert sum(frame.size for frame in found) == len(whole)
        assert all(decode_request(frame) == COMMAND for frame in found)
        assert frames.waiting_bytes == 0


@pytest.mark.parametrize("length", [0, 8, PROOF_BYTES_MAX - 3, 2**32 - 1])
def test_a_wrong_length_is_told_before_the_frame_is_there(length: int) -> None:
    frames = Frames(PROOF_BYTES_MAX)
    frames.feed(struct.pack("<I", length))
    with pytest.raises(FrameError):
        frames.take()


def test_any_payload_is_a_request_or_a_frame_error() -> None:
    randomness = random.Random(32)
    seeds = [msgspec.msgpack.encode(each) for each in (COMMAND, Prove("a", "b"), Login(1, "a", "b"), [1], {"a": 1})]
    refused = 0
    for _ in range(20_000):
        data = bytearray(randomness.choice(seeds))
        for _ in range(randomness.randrange(1, 4)):
            data[randomness.randrange(len(data))] = randomness.randrange(256)
        frame = Frame(1, randomness.choice([*REQUESTS, 0, 8, 127, 128, 255]), bytes(data))
        try:
            decode_request(frame)
        except FrameError:
            refused += 1
    assert refused > 10_000


@pytest.mark.parametrize("nested", [b"\x91" * 200_000, b"\x81\xa1a" * 200_000])
def test_deep_nesting_is_refused(nested: bytes) -> None:
    with pytest.raises(FrameError):
        decode_request(Frame(1, Kind.COMMAND, b"\x93\x01\xa1a" + nested))


def test_an_answer_is_read_as_it_was_written() -> None:
    frames = Frames(REQUEST_BYTES_MAX)
    frames.feed(encode_answer(5, 41, 1, b"\xc0"))
    (frame,) = take_all(frames)
    assert (frame.request_id, frame.kind, decode_answer(frame.payload)) == (5, Kind.ANSWER, (41, 1, b"\xc0"))
    with pytest.raises(FrameError):
        decode_answer(b"1234")


def test_only_the_doors_for_metrics_and_http_may_ask_in_nobodys_name() -> None:
    assert {"metrics": {"shard", "counts", "topics", "groups"}, "http": {"counts"}} == ALLOWED


def test_secrets_are_not_told() -> None:
    for each in (Prove("door-x.1", "hidden"), Login(1, "hidden", "hidden"), LoginWithToken(1, "hidden")):
        assert "hidden" not in repr(each)


def test_addresses_are_told_in_one_form() -> None:
    assert parse_address("192.0.2.1:80") == ("192.0.2.1", "192.0.2.1:80")
    assert parse_address("[2001:DB8:0:0::1]:080") == ("2001:db8::1", "[2001:db8::1]:80")
    with pytest.raises(ShardError):
        parse_address("[192.0.2.1")


def services_of_types() -> Any:
    """Every family of commands, with functions of the real classes: their requests are told by their types."""
    kinds = inspect.getsource(Services)
    module = inspect.getmodule(Services)
    families = {}
    for line in kinds.splitlines():
        name, _, made = line.strip().removeprefix("self.").partition(" = ")
        if line.strip().startswith("self.") and (kind := getattr(module, made.partition("(")[0], None)) is not None:
            families[name] = kind
    return SimpleNamespace(**families)


def test_every_command_of_the_services_is_offered_or_refused_by_name() -> None:
    services = services_of_types()
    table = command_table(services)
    offered = {
        f"{command.execute.func.__module__}.{command.execute.func.__name__}"
        if hasattr(command.execute, "func")
        else f"{command.execute.__module__}.{command.execute.__name__}"
        for command in table.values()
    }
    known = {f"shardd.service.{name}" for name in service_commands()}
    missing = {name.rpartition(".")[2] for name in known - offered}
    own = {"join_group", "leave_group", "sync_group", "init_producer", "lease_files", "unused_offsets"}
    own |= {"announce_heartbeat"}
    assert missing == OWN_KINDS | INSIDE | own
    assert not REFUSED & table.keys()


def test_a_request_is_refused_when_the_classic_protocol_could_not_carry_it() -> None:
    """Mutated values of every field of every command: a typed request, or 3 or 4."""
    randomness = random.Random(7)
    values: list[object] = [0, 1, -1, 2**32, 2**64 - 1, "", "x", "x" * 300, None, True, [], {}, [0], {"kind": 1}, b"x"]
    fields = ["stream", "topic", "name", "user", "partition", "consumer", "count", "settings", "permissions", "types"]
    fields += ["username", "password", "status", "partitions_count", "compression", "message_expiry_us", "topics"]
    for name, command in command_table(services_of_types()).items():
        for _ in range(100):
            said = {field: randomness.choice(values) for field in randomness.sample(fields, randomness.randrange(8))}
            try:
                request = command.decode(msgspec.Raw(msgspec.msgpack.encode(said)))
            except ShardError as error:
                assert error.status in (3, 4), (name, said)
            else:
                own = isinstance(request, SendMessages) or command.door  # no form on the classic wire
                assert own or request.encode() is not None  # type: ignore[attr-defined]


def test_requests_of_one_door_are_those_of_their_types_or_refused() -> None:
    """Mutated values of every field of its commands and tasks."""
    randomness = random.Random(7)
    values: list[object] = [0, 1, -1, 2**64 - 1, "", "x" * 300, None, True, [], {}, [0], ["x"], {"minIsr": 1}, b"x"]
    services = services_of_types()
    readers: dict[str, tuple[Callable[[msgspec.Raw], object], Callable[..., object]]]
    readers = {name: (each.decode, each.execute) for name, each in command_table(services).items() if each.door}
    readers |= {name: (each.decode, each.run) for name, each in task_table(services).items()}
    assert len(readers) >= 18
    for name, (decode, function) in readers.items():
        kind = request_type(function)
        fields = kind.__struct_fields__
        for _ in range(200):
            said = {field: randomness.choice(values) for field in fields if randomness.random() < 0.9}
            try:
                request = decode(msgspec.Raw(msgspec.msgpack.encode(said)))
            except ShardError as error:
                assert error.status == 3, (name, said)
            else:
                assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=kind) == request
