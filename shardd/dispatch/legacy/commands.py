"""The commands of one earlier generation: the services are those of classic commands, the answers look older
(shardd.protocol.legacy)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shardd.dispatch.classic import answers
from shardd.dispatch.classic.answers import optional
from shardd.dispatch.classic.commands import Command, Commands, command_table
from shardd.engine import batch_from_sent, records_to_form
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.legacy import replies
from shardd.protocol.legacy.generations import Generation
from shardd.protocol.legacy.messages import SentMessages
from shardd.protocol.replies import PolledHead, StreamDetails, TopicDetails
from shardd.protocol.send_request import SendMessages
from shardd.service.groups import NothingPolled
from shardd.service.identity import Identity
from shardd.service.messages import PolledMessages
from shardd.service.services import Services

_LARGE_BYTES: Final = 65_536  # of records: they are read in a helper thread


def legacy_commands(services: Services, generation: Generation) -> Commands:
    """By code. What is not here is encoded as classic answers are."""
    table = command_table(services)
    if generation.one_based:
        for code in (*ExtensionCode, Code.GET_CLUSTER_METADATA):
            table.pop(code, None)  # the engine alone has some of them

    def of(encode: Callable[[Generation, Any], bytes]) -> Callable[[Any], bytes]:
        return partial(encode, generation)

    table |= _accounts(services, of)
    table |= _streams(services, of)
    table |= _consumers(services, of)
    table[Code.SEND_MESSAGES] = Command(partial(_send, services), answers.nothing)
    return table


_Of = Callable[[Callable[[Generation, Any], bytes]], Callable[[Any], bytes]]


def _accounts(services: Services, of: _Of) -> Commands:
    users, logins, system = services.users, services.logins, services.system
    return {
        Code.GET_STATS: Command(system.get_stats, of(replies.stats)),
        Code.GET_ME: Command(system.get_me, of(replies.client_details)),
        Code.GET_CLIENT: Command(system.get_client, optional(of(replies.client_details))),
        Code.GET_CLIENTS: Command(partial(system.get_clients, keep=of(replies.client)), answers.joined),
        Code.LOGIN_USER: Command(logins.login, of(replies.logged_in)),
        Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: Command(logins.login_with_token, of(replies.logged_in)),
        Code.GET_USER: Command(users.get_user, optional(of(replies.user_details)), answers.is_large),
        Code.GET_USERS: Command(partial(users.get_users, keep=of(replies.user)), answers.joined),
        Code.CREATE_USER: Command(users.create_user, of(replies.user_details), answers.is_large),
    }


def _streams(services: Services, of: _Of) -> Commands:
    streams, topics = services.streams, services.topics

    def stream(details: StreamDetails[bytes]) -> bytes:
        return of(replies.stream)(details.stream) + b"".join(details.topics)

    def topic(details: TopicDetails[bytes]) -> bytes:
        return of(replies.topic)(details.topic) + b"".join(details.partitions)

    return {
        Code.GET_STREAM: Command(partial(streams.get_stream, keep=of(replies.topic)), optional(stream)),
        Code.GET_STREAMS: Command(partial(streams.get_streams, keep=of(replies.stream)), answers.joined),
        Code.CREATE_STREAM: Command(streams.create_stream, of(replies.stream)),
        Code.GET_TOPIC: Command(
            partial(topics.get_topic, keep=of(replies.partition)), optional(topic), answers.is_long
        ),
        Code.GET_TOPICS: Command(partial(topics.get_topics, keep=of(replies.topic)), answers.joined),
        Code.CREATE_TOPIC: Command(partial(topics.create_topic, keep=of(replies.partition)), topic),
    }


def _consumers(services: Services, of: _Of) -> Commands:
    groups, messages = services.groups, services.messages
    return {
        Code.POLL_MESSAGES: Command(messages.poll_messages, of(polled)),
        Code.GET_CONSUMER_GROUP: Command(groups.get_group, optional(of(replies.group_details))),
        Code.GET_CONSUMER_GROUPS: Command(partial(groups.get_groups, keep=of(replies.group)), answers.joined),
        Code.CREATE_CONSUMER_GROUP: Command(groups.create_group, of(replies.group)),
    }


def polled(generation: Generation, value: PolledMessages | NothingPolled) -> bytes:
    """What the core has left to Python: a poll with bytes behind it."""
    if isinstance(value, NothingPolled):
        return replies.polled_head(generation, PolledHead(0, 0, 0))
    records = records_to_form(value.records, value.count, generation.record_form)
    head = PolledHead(value.partition, value.current_offset, value.count)
    return replies.polled_head(generation, head) + records


async def _send(services: Services, identity: Identity, sent: SentMessages) -> None:
    """The first form that fits; the status of the first one when none does."""
    refusal = Status.INVALID_COMMAND
    for number, form in enumerate(sent.forms):
        arguments = sent.records, form, sent.count
        if len(sent.records) > _LARGE_BYTES:
            found = await services.threads.run(batch_from_sent, *arguments)
        else:
            found = batch_from_sent(*arguments)
        if found.status == Status.OK:
            request = SendMessages(sent.stream, sent.topic, sent.partitioning, found.messages_count, found.batch)
            await services.messages.send_messages(identity, request)
            return
        refusal = refusal if number else Status(found.status)
    raise ShardError(refusal)
