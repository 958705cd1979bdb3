"""Connect to OpenSearch 2 and 3: ``opensearch+https://user@host:9200?ca_certs=FILE``. Everything
else is in ``indexing.server``."""

from .server.address import parse
from .server.backend import ServerBackend
from .server.transport import Transport

STRATEGIES = ("counted_text", "text", "rank_features")
"""Strategies, fastest first, as measured by bench/race/race.py --server."""


def connect(url: str) -> ServerBackend:
    """Return the back end for the cluster at ``url``; no request is sent. Raises BackendError for
    an invalid address."""
    address = parse(url)
    return ServerBackend(OpenSearchTransport(address), address, STRATEGIES)


class OpenSearchTransport(Transport):
    """Send requests to OpenSearch, which, unlike Elasticsearch, names itself in no response."""

    engine = "opensearch"
    advice = "no OpenSearch; for Elasticsearch write elastic+URL"
    pits = "_search/point_in_time", "pit_id"
