"""Real search servers for the tests: Elasticsearch and OpenSearch, on loopback, as processes of
this machine.

    with Server("opensearch-3", tmp_path).start() as server:
        server.request("PUT", "index")       # or any client, on server.url
        server.kill()                        # SIGKILL
        server.restart()                     # the same data, the same port

    Cluster(tmp_path).start()                # three OpenSearch nodes: .nodes, .urls
    # Elasticsearch with TLS: .authority, .password, .api_key("photos*")
    SecureServer(tmp_path).start()

Kinds: ``elasticsearch-9``, ``elasticsearch-8``, ``opensearch-3``,
``opensearch-3-knn``, ``opensearch-2``; those not fetched yet are fetched at their first start
(``python -m tests.servers fetch`` does it beforehand). ``UnavailableError`` says why one cannot be
had.
"""

from .catalogue import KINDS
from .cluster import Cluster
from .errors import MismatchError, RequestError, StartError, UnavailableError
from .security import SecureServer
from .server import Server, ask

__all__ = [
    "KINDS",
    "Cluster",
    "MismatchError",
    "RequestError",
    "SecureServer",
    "Server",
    "StartError",
    "UnavailableError",
    "ask",
]
