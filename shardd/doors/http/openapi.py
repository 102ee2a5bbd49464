"""The description of the API as OpenAPI 3.1, made of the types that requests and answers have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from shardd import __version__
from shardd.doors.http.endpoint import BATCH, Endpoint
from shardd.doors.http.errors import JSON, ErrorBody

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_NUMBERS: Final = frozenset({"partition", "client"})  # parts of a path that are no names
_BINARY: Final = {"type": "string", "format": "binary"}
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
_WITHOUT_A_WORD: Final = 401
_REFUSALS: Final = {
    400: "A request that cannot be read, or that the server refuses",
    401: "No token that holds",
    403: "The rights of the user are too few",
    404: "There is no such thing",
    408: "The body did not come in time",
    413: "The body is too large",
    415: "The body is no JSON",
    422: "The JSON has other fields than it must",
    503: "No room, or a worker was lost: nobody knows whether it was done",
}


def describe(endpoints: Sequence[Endpoint], public: frozenset[str]) -> dict[str, Any]:
    """The whole document."""
    types = [kind for each in endpoints for kind in (each.body, each.reply) if kind is not None]
    queries = {each: msgspec.json.schema_components([each.query])[1] for each in endpoints if each.query is not None}
    schemas, components = msgspec.json.schema_components(
        [*types, ErrorBody], ref_template="#/components/schemas/{name}"
    )
    error = schemas[-1]
    of_type = dict(zip(map(repr, types), schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        operation: dict[str, Any] = {
            "summary": each.summary,
            "operationId": each.handler.__name__.strip("_"),
            "parameters": [*_path_parameters(each), *_query_parameters(queries.get(each))],
            "responses": {
                str(each.status): _success(each, of_type),
                **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _REFUSALS},
            },
            "security": [] if each.path in public else [{"bearer": []}],
        }
        if each.body is not None:
            content = {JSON: {"schema": of_type[repr(each.body)]}}
            if each.binary:
                content[BATCH] = {"schema": _BINARY}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(each.path, {})[each.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "shardd", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                str(status): {"description": text} if status == _WITHOUT_A_WORD else _refusal(text, error)
                for status, text in _REFUSALS.items()
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    number = {"type": "integer", "minimum": 0, "maximum": 0xFFFF_FFFF}
    name = {"type": "string", "minLength": 1, "maxLength": 255}
    return [
        {"name": each, "in": "path", "required": True, "schema": number if each in _NUMBERS else name}
        for each in _PARAMETER.findall(endpoint.path)
    ]


def _query_parameters(components: dict[str, Any] | None) -> list[dict[str, Any]]:
    if components is None:
        return []
    [schema] = components.values()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": kind}
        for name, kind in schema["properties"].items()
    ]


def _success(endpoint: Endpoint, of_type: dict[str, Any]) -> dict[str, Any]:
    if endpoint.reply is not None:
        content: dict[str, Any] = {JSON: {"schema": of_type[repr(endpoint.reply)]}}
        if endpoint.binary and endpoint.method == "GET":
            content[BATCH] = {"schema": _BINARY}
        return {"description": "Done", "content": content}
    if endpoint.media == JSON or not endpoint.media:
        return {"description": "Done"}
    return {"description": "Done", "content": {endpoint.media: {"schema": _BINARY}}}


def _refusal(text: str, error: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": error}, **_TEXT}}
