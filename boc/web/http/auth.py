"""Access control: check the host name, the origin and the token of requests, and add security
headers."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from contextlib import suppress
from ipaddress import ip_address
from time import time
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boc.web.http.headers import HEADERS, path_of
from boc.web.http.responses import ProblemError
from boc.web.settings import LOOPBACK, Settings

ANYWHERE = frozenset({"0.0.0.0", "::"})
SESSION = 7 * 86400  # lifetime of a session cookie in seconds
PROBES = frozenset({"/healthz", "/readyz"})
"""Paths without access control. Their responses reveal no information, and health probes may know
neither the host name nor the token."""


class Guard:
    """Reject unauthorized requests, and add security headers to every response."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = {
            name.lower().strip("[]") for name in (*LOOPBACK, settings.host, *settings.hosts)
        }
        self._anywhere = settings.host in ANYWHERE
        self._token = settings.token
        self._secret = settings.secret.encode()
        self._ended: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault(
                    "Cache-Control",
                    "no-cache",
                )  # after an upgrade, a page never mixes files of two versions
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            answer = self._check(scope, Headers(scope=scope))
        except ProblemError as error:
            answer = error.answer()
        await (answer or self._app)(scope, receive, send_with_headers)

    def _check(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None if a request is authorized. Return a redirect that sets the cookie if the URL
        contains the token, or a redirect that ends the session on logout."""
        if path_of(scope) in PROBES:
            return None
        if (
            "content-length" in headers and "transfer-encoding" in headers
        ):  # a proxy may use the other header
            raise ProblemError(
                400,
                "the request has both Content-Length and Transfer-Encoding; send only one of them",
                {"Connection": "close"},
            )
        self._check_host(headers)
        data = path_of(scope).startswith("/api/") or path_of(scope) == "/metrics"
        if data or scope["method"] not in ("GET", "HEAD"):
            _check_origin(headers)
        if self._token is None:
            return None
        if path_of(scope) == "/":
            return self._exchange_token(scope)
        if not path_of(scope).startswith("/static/"):
            self._check_token(scope, headers)
        if (scope["method"], path_of(scope)) == ("POST", "/api/logout"):
            session = Request(scope).cookies.get(cookie_name(scope), "").rpartition(".")[0]
            self._ended.add(session)
            answer = RedirectResponse("../", 303, {"Cache-Control": "no-store"})
            answer.delete_cookie(cookie_name(scope), httponly=True, samesite="strict")
            return answer
        return None

    def _check_host(self, headers: Headers) -> None:
        """Reject unknown host names, because DNS rebinding attacks access a local server through a
        host name of another site."""
        names = headers.getlist("host")
        name = _host(names[0]) if len(names) == 1 else None
        if name is None or not (name in self._hosts or (self._anywhere and is_address(name))):
            shown = ", ".join(names)[:100]
            raise ProblemError(
                400,
                f"this server does not accept the host name {shown!r}; start it with "
                "--allow-host NAME",
            )

    def _exchange_token(self, scope: Scope) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        token = dict(query).get("token")
        if token is None:
            return None
        if not _same(token, self._token or ""):
            raise _token_error()
        address = "./"
        if rest := urlencode([(name, value) for name, value in query if name != "token"]):
            address += f"?{rest}"
        answer = RedirectResponse(address, 303, {"Cache-Control": "no-store"})
        ticket = self._ticket(scope, f"{int(time()) + SESSION}.{secrets.token_hex(8)}")
        answer.set_cookie(cookie_name(scope), ticket, SESSION, httponly=True, samesite="strict")
        return answer

    def _check_token(self, scope: Scope, headers: Headers) -> None:
        token = self._token or ""
        kind, _, credentials = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(credentials.strip(), token):
            return
        ticket = Request(scope).cookies.get(cookie_name(scope), "")
        session = ticket.rpartition(".")[0]
        if (
            re.fullmatch(r"[0-9]{1,12}\.[0-9a-f]{16}", session)
            and time() < int(session.partition(".")[0])
            and _same(ticket, self._ticket(scope, session))
            and session not in self._ended
        ):
            return
        raise _token_error()

    def _ticket(self, scope: Scope, session: str) -> str:
        """Return the cookie value for a session, which has the form END.NUMBER. Because browsers
        send cookies to all ports of a host, the value is valid only for this port, and only until
        the server restarts."""
        signed = f"{session}\0{cookie_name(scope)}\0{self._token}".encode("utf-8", "surrogatepass")
        return f"{session}.{hmac.new(self._secret, signed, hashlib.sha256).hexdigest()}"


def _check_origin(headers: Headers) -> None:
    """Allow requests from the server's own page, and from programs, which do not send Origin or
    Sec-Fetch headers."""
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    ours = headers.get("host", "").lower()
    page = ours
    if origin is not None:
        page = ""
        with suppress(ValueError):  # text that cannot be parsed is not an address
            page = urlsplit(origin).netloc.lower()
    if site not in (None, "same-origin", "none") or page != ours:
        raise ProblemError(
            403,
            f"pages from {(origin or site or '')[:100]} have no access; open the page of this "
            "server",
        )


def _token_error() -> ProblemError:
    said = (
        "the token is missing or wrong; open the address with ?token=TOKEN, or send "
        "Authorization: Bearer TOKEN"
    )
    return ProblemError(401, said, {"WWW-Authenticate": "Bearer"})


def _same(one: str, other: str) -> bool:
    """Compare two strings in constant time, so that the timing does not reveal where they
    differ."""
    return hmac.compare_digest(
        one.encode("utf-8", "surrogatepass"),
        other.encode("utf-8", "surrogatepass"),
    )


def cookie_name(scope: Scope) -> str:
    """Return the name of the cookie, which is different for each port of a host."""
    return f"boc_{(scope.get('server') or ('', 0))[1]}"


def _host(header: str) -> str | None:
    """Return the host name in a Host header without port and brackets, or None if the header is
    invalid."""
    try:
        address = urlsplit(f"//{header}")
        address.port  # noqa: B018 - raises for an invalid port
    except ValueError:
        return None
    if address.netloc == header and "@" not in header and "/" not in header:
        return address.hostname
    return None


def is_address(name: str) -> bool:
    """Return whether a host name is an IPv4 or IPv6 address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
