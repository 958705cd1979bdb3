"""Checks of a cluster: whether it answers, is the engine that the address names, and scores exactly.

Each host is first contacted without credentials: its answer distinguishes a wrong port, protocol and engine, which a
refused request does not. Only then is the back end used.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from boc import plugins
from boc.errors import BocError

from ._finding import Finding

ENGINES = {"elastic": "elasticsearch", "opensearch": "opensearch"}
NAMES = {"elasticsearch": "Elasticsearch", "opensearch": "OpenSearch"}
KNOWN = {"elasticsearch": (8, 9), "opensearch": (2, 3)}
"""Major versions that the tests run against."""
LOOK = 5.0  # timeout in seconds of the first contact
ASK = 20  # timeout in seconds of a request of the back end
UP = (400, 401, 403)
"""Statuses of a server that answers but requires https or a password."""


@dataclass(frozen=True)
class Seen:
    """The answer to ``GET /``: ``engine`` and ``version`` if given, ``kind`` the server or content type."""

    status: int
    engine: str = ""
    version: str = ""
    kind: str = ""


def server(at: str) -> Iterator[Finding]:
    """Findings on the cluster at an address that its back end accepts."""
    found = [(host, list(_host(at, host))) for host in hosts(at)]
    dead = [host for host, findings in found if any(each.state == "problem" for each in findings)]
    for host, findings in found:
        for each in findings:
            if each.state == "problem" and host in dead and len(dead) < len(found):
                yield Finding("note", each.about, f"{each.what}; the other hosts are asked", each.todo)
            else:
                yield each
    if len(dead) < len(found):
        yield from _cluster(at)


def hosts(at: str) -> list[str]:
    """The hosts of an address, as ``https://HOST:PORT/PREFIX``, without user and options."""
    protocol, _, authority = at.partition("+")[2].partition("://")
    netloc = re.split("[/?#]", authority, maxsplit=1)[0]
    prefix = urlsplit(authority[len(netloc) :]).path.rstrip("/")
    return [f"{protocol}://{host}{prefix}" for host in netloc.rpartition("@")[2].split(",")]


def look(url: str) -> Seen:
    """Contact a host; OSError or HTTPException without an answer. No secret is sent, so certificates are not
    checked."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, parts.port or 443, timeout=LOOK, context=context)
    else:
        connection = http.client.HTTPConnection(host, parts.port or 9200, timeout=LOOK)
    try:
        connection.request("GET", f"{parts.path}/", headers={"accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read(1 << 16)
    finally:
        connection.close()
    kind = answer.getheader("server") or (answer.getheader("content-type") or "").partition(";")[0]
    engine = "elasticsearch" if answer.getheader("x-elastic-product") else ""
    return _recognised(Seen(answer.status, engine, "", kind), body)


def _recognised(seen: Seen, body: bytes) -> Seen:
    try:
        answer = json.loads(body)
    except ValueError:
        return seen
    version: Any = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(version, dict) or not isinstance(version.get("number"), str):
        return seen
    if version.get("distribution") == "opensearch":
        return Seen(seen.status, "opensearch", version["number"], seen.kind)
    if "cluster_name" in answer or "lucene_version" in version:
        return Seen(seen.status, "elasticsearch", version["number"], seen.kind)
    return seen


def _host(at: str, host: str) -> Iterator[Finding]:
    """Findings on one host; none if all is well."""
    parts = urlsplit(host)
    protocol, other = parts.scheme, "http" if parts.scheme == "https" else "https"
    try:
        seen = look(host)
    except (TimeoutError, ConnectionRefusedError, socket.gaierror) as error:
        yield Finding("problem", host, f"nothing answers ({_reason(error)})", _wake(error))
        return
    except (OSError, http.client.HTTPException) as error:
        if _answers(_with(host, other)):
            yield _protocol(at, host, other)
        else:
            todo = "see whether a search server runs at that port"
            yield Finding("problem", host, f"answers nothing that can be read ({_reason(error)})", todo)
        return
    scheme = at.partition("+")[0]
    if seen.engine and seen.engine != ENGINES[scheme]:
        right = next(name for name, engine in ENGINES.items() if engine == seen.engine)
        product = f"{NAMES[seen.engine]} {seen.version}".strip()
        yield Finding("problem", host, f"is {product}, asked for as {scheme}", f"write {right}{at[len(scheme) :]}")
    elif not seen.engine and seen.status not in UP:
        kind = f" ({seen.kind})" if seen.kind else ""
        if seen.status in (429, 502, 503, 504):
            todo = "wait until the server is up, or see what stands before it"
            yield Finding("problem", host, f"is not ready: status {seen.status}{kind}", todo)
        else:
            todo = "mind the port and the path; search servers mostly listen at 9200"
            yield Finding("problem", host, f"answers, but is no search server{kind}", todo)
    elif not seen.engine and seen.status == 400 and protocol == "http" and _answers(_with(host, other)):
        yield _protocol(at, host, other)
    else:
        yield from _version(host, seen.engine, seen.version)
        yield from _guarded(host, seen)


def _guarded(host: str, seen: Seen) -> Iterator[Finding]:
    """Findings on encryption and authentication."""
    parts = urlsplit(host)
    if _own(parts.hostname or ""):
        return
    if parts.scheme == "http":
        todo = "have it speak https, and write https in the address"
        yield Finding("note", host, "is spoken to without encryption: others can read along, passwords too", todo)
    if seen.status == 200:
        todo = "switch its security on, unless the network keeps others out"
        yield Finding("note", host, "asks for no password: who reaches it can read and delete indexes", todo)


def _version(host: str, engine: str, version: str) -> Iterator[Finding]:
    match = re.match(r"(\d+)\.", version)
    if not engine or match is None:
        return
    known = KNOWN[engine]
    versions = " and ".join(map(str, known))
    if int(match[1]) < known[0]:
        yield Finding(
            "problem",
            host,
            f"is {NAMES[engine]} {version}, too old",
            f"update it: boc works on {NAMES[engine]} {versions}",
        )
    elif int(match[1]) > known[-1]:
        todo = f"boc is tested on {versions}; boc verify NAME tells whether scores are exact"
        yield Finding("note", host, f"is {NAMES[engine]} {version}, newer than what boc is tested on", todo)


def _cluster(at: str) -> Iterator[Finding]:
    """Findings by the back end: trust, rights, version, and whether scores are exact."""
    shown = ",".join(hosts(at))
    try:
        backend = plugins.backend(_hurried(at))
        about = backend.about()
        names = backend.names()
    except BocError as error:
        what, _, todo = str(error).partition("; ")
        yield Finding("problem", shown, what, todo)
        return
    engine, version = about["engine"], about["version"]
    problems = list(_version(shown, engine, version))
    yield from problems
    tried = {name: said for name, said in about.items() if name not in ("engine", "address", "version", "vectors")}
    exact = [name for name, said in tried.items() if said.startswith("exact")]
    unknown = [said for said in tried.values() if said.startswith("not known")]
    contents = f"indexes: {', '.join(names) or 'none yet'}"
    product = f"{NAMES[engine]} {version}" if version[:1].isdigit() else NAMES[engine]
    if exact:
        yield Finding("ok", shown, f"{product} scores exactly, by {', '.join(exact)}; {contents}")
    elif unknown:
        todo = "searching is possible; to make indexes, ask for the rights in docs/servers.md"
        yield Finding(
            "note", shown, f"{product} lets this user make no trial index, so scores are not tried; {contents}", todo
        )
    else:
        reasons = "; ".join(f"{name}: {said}" for name, said in tried.items())
        todo = "allow scripted similarities or install the module mapper-extras; see docs/servers.md"
        yield Finding("problem", shown, f"{product} has no way to score exactly ({reasons})", todo)


def _hurried(at: str) -> str:
    """The address with a shorter timeout, unless it sets one."""
    if "request_timeout=" in at:
        return at
    return f"{at}{'&' if '?' in at else '?'}request_timeout={ASK}"


def _protocol(at: str, host: str, other: str) -> Finding:
    protocol = urlsplit(host).scheme
    todo = f"write {at.replace(f'+{protocol}://', f'+{other}://', 1)}"
    return Finding("problem", host, f"speaks {other}, not {protocol}", todo)


def _answers(url: str) -> bool:
    try:
        look(url)
    except (OSError, http.client.HTTPException):
        return False
    return True


def _with(host: str, protocol: str) -> str:
    """The same host and port with another protocol."""
    parts = urlsplit(host)
    port = parts.port or (443 if parts.scheme == "https" else 9200)
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{protocol}://{name}:{port}{parts.path}"


def _own(name: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _wake(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "correct the name of the host"
    if isinstance(error, ConnectionRefusedError):
        return "start the server, or correct the port; servers often listen on localhost only"
    return "see whether a firewall is in between, and whether the machine runs"
