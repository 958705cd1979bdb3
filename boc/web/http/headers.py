"""Security headers of all responses, and the path of a request below the mount prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: "
    "blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path of a request, without the mount prefix."""
    path = str(scope["path"])
    root = str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
