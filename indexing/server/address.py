"""Parse the address of a cluster, which contains hosts, connection and certificate options, and
settings for new indexes."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from boc.errors import BackendError

VECTORS = ("float", "bfloat16", "binary", "byte")
FIELDS = ("sparse_vector", "rank_features", "counted_text", "text")


@dataclass(frozen=True)
class Address:
    """Parsed address such as ``elastic+https://user@one:9200,two:9200/prefix?shards=2``.

    Secrets are read from environment variables: BOC_PASSWORD if the address contains a user,
    otherwise BOC_API_KEY; BOC_HEADERS contains lines of the form ``Name: value`` for gateways.
    Connection options have the same names as in the official clients, except ``search_timeout``,
    the number of seconds that a search waits for one of several hosts before trying the next. The
    other options apply to new indexes: ``field`` determines how codes are stored (None selects the
    best type that the server supports), ``vectors`` determines how vectors for re-ranking are
    stored (None selects the type that the server compares fastest), and ``patience`` is the number
    of seconds for which a load retries without progress.
    """

    hosts: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_certs: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    verify_certs: bool = True
    request_timeout: float = 60.0
    search_timeout: float = 2.0
    field: str | None = None
    vectors: str | None = None
    shards: int = 1
    replicas: int = 1
    replicas_while_loading: int = 0
    patience: float = 300.0

    @property
    def label(self) -> str:
        """Return the hosts without secrets, for messages."""
        return ",".join(self.hosts)

    @property
    def waits(self) -> tuple[float, ...]:
        """Return the number of seconds that a search waits for each host in the first, second and
        last round."""
        whole = self.request_timeout
        if len(self.hosts) == 1:
            return (whole,)
        short = (self.search_timeout, 4 * self.search_timeout)
        return *(wait for wait in short if wait < whole), whole

    @property
    def layout(self) -> tuple[str | int | None, ...]:
        """Return the options that cannot be changed after an index has been created."""
        return self.field, self.vectors, self.shards


def parse(url: str, environment: Mapping[str, str] = os.environ) -> Address:
    """Parse an address. Raises BackendError with the invalid part, but without secrets."""
    scheme = url.partition(":")[0].partition("+")[0]
    example = f"{scheme}+https://USER@HOST:9200?ca_certs=FILE"
    protocol, separator, authority = url.removeprefix(f"{scheme}+").partition("://")
    if protocol not in ("http", "https") or not separator:
        raise BackendError(
            f"an address of {scheme} starts with {scheme}+http:// or {scheme}+https://, like "
            f"{example}",
        )
    netloc = re.split("[/?#]", authority, maxsplit=1)[0]
    behind = authority[len(netloc) :]
    # A password can contain these characters, so the message does not show any part of the address.
    if re.search("@|#|//", behind):
        raise BackendError(
            "an @, # or // behind the hosts of an address is written %40, %23 or %2F%2F; a "
            "password belongs "
            f"into the environment variable BOC_PASSWORD instead: {example}",
        )
    names, at, hosts = netloc.rpartition("@")
    user, colon, _ = names.partition(":")
    if colon:
        raise BackendError(
            f"the address of {hosts} contains a password, which others could read; leave it out "
            "and put it into the "
            f"environment variable BOC_PASSWORD: {example}",
        )
    if not all(hosts.split(",")):
        raise BackendError(f"the address names no host; write it like {example}")
    parts = urlsplit(behind)
    prefix = parts.path.rstrip("/")
    try:
        full = dict.fromkeys(_host(protocol, host, prefix) for host in hosts.split(","))
    except ValueError as error:
        raise BackendError(
            f"{hosts!r} is not a list of HOST:PORT ({error}); write it like {example}",
        ) from None
    options = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            raise BackendError(f"no option {name!r} of an address; known: {', '.join(OPTIONS)}")
        rule, read = OPTIONS[name]
        try:
            options[name] = read(value)
        except (ValueError, KeyError):
            raise BackendError(f"{name}={value} in the address: must be {rule}") from None
    password = environment.get("BOC_PASSWORD")
    if at and password is None:
        raise BackendError(
            f"the address names the user {unquote(user)!r}; put the password into BOC_PASSWORD",
        )
    if "client_key" in options and "client_cert" not in options:
        raise BackendError(
            "client_key in the address needs client_cert, the file of its certificate",
        )
    login: dict[str, Any] = {"api_key": environment.get("BOC_API_KEY")}
    if at:
        login = {"user": unquote(user), "password": password}
    headers = _headers(environment.get("BOC_HEADERS", ""))
    return Address(tuple(full), headers=headers, **login, **options)


def _headers(lines: str) -> tuple[tuple[str, str], ...]:
    """Parse headers, one per line, into lower-case names and values."""
    headers = []
    for line in filter(str.strip, lines.splitlines()):
        name, _, value = map(str.strip, line.partition(":"))
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise BackendError(
                "BOC_HEADERS contains a line that is not a header; write Name: value, one per line",
            )
        headers.append((name.lower(), value))
    return tuple(headers)


def _host(protocol: str, host: str, prefix: str) -> str:
    parts = urlsplit(f"{protocol}://{host}")
    name = parts.hostname or ""
    # An IPv6 address can contain a zone.
    if parts.port == 0 or not re.fullmatch(
        r"[\w.-]+|[\da-f.]*:[\da-f:.]*(?:%[\w.-]+)?",
        name,
    ):
        raise ValueError(f"no host or no port in {host!r}")
    port = parts.port or (443 if protocol == "https" else 9200)
    name = f"[{name}]" if ":" in name else name
    return f"{protocol}://{name}:{port}{prefix}"


def _file(value: str) -> str:
    path = Path(value).expanduser()
    if not path.is_file():
        raise ValueError
    return str(path)


def _number(least: float, kind: type[float] = float) -> Callable[[str], float]:
    def read(value: str) -> float:
        number = kind(value)
        if not least <= number < inf:
            raise ValueError
        return number

    return read


def _choice(*names: str) -> tuple[str, Callable[[str], str]]:
    return " or ".join(names), dict(zip(names, names, strict=True)).__getitem__


OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "ca_certs": ("a file of certificates", _file),
    "client_cert": ("a file with a certificate", _file),
    "client_key": ("a file with its key", _file),
    "verify_certs": ("true or false", {"true": True, "false": False}.__getitem__),
    "request_timeout": ("a number of seconds above 0", _number(1e-3)),
    "search_timeout": ("a number of seconds above 0", _number(1e-3)),
    "field": _choice(*FIELDS),
    "vectors": _choice(*VECTORS),
    "shards": ("a number from 1", _number(1, int)),
    "replicas": ("a number from 0", _number(0, int)),
    "replicas_while_loading": ("a number from 0", _number(0, int)),
    "patience": ("a number of seconds", _number(0)),
}
