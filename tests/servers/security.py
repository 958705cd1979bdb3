"""Elasticsearch as it is outside a test: TLS with an authority of its own, users, API keys."""

import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import launch
from .server import Server, ask


class SecureServer(Server):
    """An Elasticsearch with security and TLS.

    Attributes
    ----------
    url : str
        ``https://127.0.0.1:PORT``; the certificate is for ``127.0.0.1`` and ``localhost``.
    authority : Path
        Certificate of the authority that signed it (PEM).
    password : str
        Password of the user ``elastic``, who may do everything.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kind: str = "elasticsearch-9",
        settings: Mapping[str, Any] | None = None,
        heap: str = "1g",
    ) -> None:
        super().__init__(kind, folder, heap=heap)
        self.url = f"https://127.0.0.1:{self.port}"
        self.password = "only-a-test"
        self.authority = self.folder / "config" / "authority.pem"
        self.settings |= {
            "xpack.security.enabled": True,
            "xpack.security.http.ssl.enabled": True,
            "xpack.security.http.ssl.certificate": "server.pem",
            "xpack.security.http.ssl.key": "server.key",
            **(settings or {}),
        }
        self._certify()

    def _certify(self) -> None:
        import trustme

        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1", "localhost")
        self.authority.parent.mkdir(parents=True, exist_ok=True)
        authority.cert_pem.write_to_path(self.authority)
        certificate.private_key_pem.write_to_path(self.authority.with_name("server.key"))
        certificate.cert_chain_pems[0].write_to_path(self.authority.with_name("server.pem"))

    def spawn(self) -> None:
        """Start the process, with the password in the keystore."""
        launch.configure(self.kind, self.home, self.folder, self.settings, self.java)
        if not (self.folder / "config" / "elasticsearch.keystore").exists():
            self._set_password()
        super().spawn()

    def wait(self, nodes: int = 1) -> None:
        """Wait until it answers and its users are stored: while that happens it lets nobody in."""
        super().wait(nodes)
        self.request("PUT", "_security/user/elastic/_password", {"password": self.password})
        super().wait(nodes)

    def _set_password(self) -> None:
        keystore = launch.tool(self.kind, self.home, self.folder, "keystore")
        subprocess.run(
            [*launch.unprivileged(), *keystore, "add", "--force", "--stdin", "bootstrap.password"],
            env=launch.environment(self.kind, self.home, self.folder),
            cwd=self.home,
            input=self.password,
            text=True,
            capture_output=True,
            check=True,
        )

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the parsed JSON answer of one request by the user ``elastic``."""
        url = self.url.replace("://", f"://elastic:{self.password}@")
        context = ssl.create_default_context(cafile=self.authority)
        return ask(url, method, path, body, tls=context)

    def api_key(self, *patterns: str, rights: Sequence[str] = ("all",)) -> str:
        """An API key, as clients take it, with these rights on indices of these name patterns and
        on nothing else."""
        role = {"indices": [{"names": list(patterns), "privileges": list(rights)}]}
        body = {"name": ",".join(patterns), "role_descriptors": {"boc": role}}
        return str(self.request("POST", "_security/api_key", body)["encoded"])
