"""Connect to OpenSearch 2 and 3: ``opensearch+https://user@host:9200?ca_certs=FILE``. Everything
else is in ``indexing.server``."""

from .server.address import parse
from .server.backend import ServerBackend
from .server.transport import Transport

STRATEGIES = ("counted_text", "text", "rank_features")
"""Strategies in order of speed, fastest first, as measured by bench/race/race.py --server."""


def connect(url: str) -> ServerBackend:
    """Create the back end for the cluster at ``url`` without sending a request. Raises BackendError
    if the address is invalid."""
    address = parse(url)
    return ServerBackend(OpenSearchTransport(address), address, STRATEGIES)


class OpenSearchTransport(Transport):
    """Send requests to OpenSearch, which, unlike Elasticsearch, does not identify itself in
    responses."""

    engine = "opensearch"
    advice = "no OpenSearch; for Elasticsearch write elastic+URL"
    pits = "_search/point_in_time", "pit_id"
