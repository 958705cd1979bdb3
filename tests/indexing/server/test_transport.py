"""Errors of servers become one line that names the cause and the next step. The bodies are what
servers sent."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from boc.errors import BackendError
from indexing.server.transport import RefusedError, UnreachableError, refusal, unreachable

AT = "https://one:9200,https://two:9200"
NEW_CLAUSES = (
    "failed to create query: Query contains too many nested clauses; maxClauseCount is set to 16384"
)
OLD_CLAUSES = "failed to create query: maxClauseCount is set to 1024"
COMPILE = {
    "type": "script_exception",
    "reason": "compile error",
    "script_stack": ["retur doc", "      ^---- HERE"],
    "caused_by": {
        "type": "illegal_argument_exception",
        "reason": "invalid declaration: cannot resolve type [retur]",
    },
}
WINDOW = (
    "Result window is too large, from + size must be less than or equal to: [10000] but was "
    "[20000]."
)
UNKNOWN = "No handler for type [nope] declared on field [a]"
FULL = (
    "index [photos] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, "
    "index has read-only-allow-delete block];"
)
NOT_ALLOWED = (
    "action [indices:admin/create] is unauthorized for API key id [k1] of user [elastic] on "
    "indices [photos-boc-1], "
    "this action is granted by the index privileges [create_index,manage,all]"
)
OPEN_NOT_ALLOWED = (
    "no permissions for [indices:admin/create] and User [name=photos, backend_roles=[]]"
)


def error(kind: str, reason: str, **more: Any) -> dict[str, Any]:
    return {
        "root_cause": [{"type": kind, "reason": reason}],
        "type": kind,
        "reason": reason,
        **more,
    }


def shards(kind: str, reason: str, inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    """How a search fails: on every shard for a reason of its own."""
    failed = [{"shard": 0, "index": "photos", "node": "n", "reason": inner}]
    body = {
        "root_cause": [{"type": kind, "reason": reason}],
        "type": "search_phase_execution_exception",
    }
    return {
        **body,
        "reason": "all shards failed",
        "phase": "query",
        "grouped": True,
        "failed_shards": failed,
        **more,
    }


def clauses(kind: str, reason: str) -> dict[str, Any]:
    cause = {"type": kind, "reason": reason.removeprefix("failed to create query: ")}
    return {"type": "query_shard_exception", "reason": reason, "caused_by": cause}


BODIES = {
    "no index": (
        404,
        error("index_not_found_exception", "no such index [photos]"),
        "index_not_found_exception",
        "no such index [photos]",
    ),
    "no query of that name": (
        400,
        error(
            "parsing_exception",
            "unknown query [sparse_vector]",
            caused_by={
                "type": "named_object_not_found_exception",
                "reason": "[1:27] unknown field [sparse_vector]",
            },
        ),
        "parsing_exception",
        "unknown query [sparse_vector]: [1:27] unknown field [sparse_vector]",
    ),
    "no field of that type": (
        400,
        {
            **error("mapper_parsing_exception", UNKNOWN),
            "reason": f"Failed to parse mapping [_doc]: {UNKNOWN}",
            "caused_by": {"type": "mapper_parsing_exception", "reason": UNKNOWN},
        },
        "mapper_parsing_exception",
        UNKNOWN,
    ),
    "clauses, Elasticsearch": (
        400,
        shards(
            "query_shard_exception",
            NEW_CLAUSES,
            clauses("too_many_nested_clauses", NEW_CLAUSES),
        ),
        "query_shard_exception",
        NEW_CLAUSES,
    ),
    "clauses, OpenSearch": (
        400,
        shards(
            "query_shard_exception",
            OLD_CLAUSES,
            clauses("too_many_clauses", OLD_CLAUSES),
            caused_by=clauses("too_many_clauses", OLD_CLAUSES),
        ),
        "query_shard_exception",
        OLD_CLAUSES,
    ),
    "script, compiled": (
        400,
        shards(
            "script_exception",
            "compile error",
            {
                "type": "query_shard_exception",
                "reason": "failed to create query: compile error",
                "caused_by": COMPILE,
            },
            caused_by=COMPILE,
        ),
        "script_exception",
        "compile error: invalid declaration: cannot resolve type [retur]",
    ),
    "script, run": (
        400,
        shards(
            "script_exception",
            "runtime error",
            {
                "type": "script_exception",
                "reason": "runtime error",
                "script": "return doc['zz'].value",
                "caused_by": {
                    "type": "illegal_argument_exception",
                    "reason": "No field found for [zz] in mapping",
                },
            },
        ),
        "script_exception",
        "runtime error: No field found for [zz] in mapping",
    ),
    "window": (
        400,
        shards(
            "illegal_argument_exception",
            WINDOW,
            {"type": "illegal_argument_exception", "reason": WINDOW},
            caused_by={
                "type": "illegal_argument_exception",
                "reason": WINDOW,
                "caused_by": {"type": "illegal_argument_exception", "reason": WINDOW},
            },
        ),
        "illegal_argument_exception",
        WINDOW,
    ),
    "a node gone between the phases": (
        500,
        {
            "root_cause": [],
            "type": "search_phase_execution_exception",
            "reason": "",
            "phase": "fetch",
            "grouped": True,
            "failed_shards": [],
            "caused_by": {
                "type": "node_not_connected_exception",
                "reason": "[b] Node not connected",
            },
        },
        "node_not_connected_exception",
        "[b] Node not connected",
    ),
    "disk full": (429, error("cluster_block_exception", FULL), "cluster_block_exception", FULL),
}


@pytest.mark.parametrize("name", BODIES)
def test_refusal_message(name: str):
    status, body, kind, reason = BODIES[name]
    found = refusal(AT, status, {"error": body, "status": status})
    assert (found.status, found.kind, found.reason) == (status, kind, reason)
    assert str(found).startswith(f"{AT} refused ({status}): {kind}: {reason}")
    assert isinstance(found, BackendError)


def test_401_names_the_variables():
    bodies = (
        {
            "error": error(
                "security_exception",
                "missing authentication credentials for REST request [/photos]",
            ),
        },
        "Unauthorized",  # OpenSearch's security answers in plain text
        None,
    )
    for body in bodies:
        message = str(refusal(AT, 401, body))
        assert "BOC_PASSWORD" in message
        assert "BOC_API_KEY" in message


@pytest.mark.parametrize("reason", [NOT_ALLOWED, OPEN_NOT_ALLOWED])
def test_403_names_the_action(reason: str):
    found = refusal(AT, 403, {"error": error("security_exception", reason), "status": 403})
    assert (
        str(found)
        == f"{AT} does not allow that to this user: {reason}; ask for rights on the index's names"
    )


@pytest.mark.parametrize("kind", ["cluster_block_exception", "index_create_block_exception"])
def test_403_of_what_is_blocked(kind: str):
    message = str(
        refusal(
            AT,
            403,
            {"error": error(kind, "index [photos] blocked by: [FORBIDDEN/8/index write (api)];")},
        ),
    )
    assert "rights" not in message
    assert message.endswith("remove this block, then run the command again")


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)
ERRORS = st.dictionaries(st.sampled_from(["code", "message", "status", "type", "reason"]), ANYTHING)
JSON = ANYTHING | ERRORS | (ANYTHING | ERRORS).map(lambda inner: {"error": inner})


@given(status=st.integers(400, 599), body=JSON)
def test_any_answer_becomes_an_error(status: int, body: Any):
    found = refusal(AT, status, body)
    assert found.status == status
    assert str(found).startswith(AT)


def test_long_reasons_are_cut():
    assert len(str(refusal(AT, 400, {"error": error("parsing_exception", "x" * 100_000)}))) < 1000
    assert len(str(refusal(AT, 502, {"error": "<html>" * 10_000}))) < 1000


@pytest.mark.parametrize(
    ("tls", "late", "advice"),
    [
        (True, False, "?ca_certs=FILE"),
        (False, True, "?request_timeout=SECONDS"),
        (False, False, "whether the server runs there"),
    ],
)
def test_unreachable_message(tls: bool, late: bool, advice: str):
    found = unreachable(AT, "connection refused", tls=tls, late=late)
    assert isinstance(found, UnreachableError)
    assert not isinstance(found, RefusedError)
    assert str(found).startswith(f"no answer from {AT}: ")
    assert advice in str(found)
    assert "connection refused" in str(found)
