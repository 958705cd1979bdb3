"""Connect to Elasticsearch 8 and 9: ``elastic+https://user@host:9200?ca_certs=FILE``. Everything
else is in ``indexing.server``."""

from .server.address import parse
from .server.backend import ServerBackend
from .server.transport import Transport

STRATEGIES = ("text", "sparse_vector", "rank_features")
"""Strategies in order of speed, fastest first, as measured by bench/race/race.py --server."""


def connect(url: str) -> ServerBackend:
    """Create the back end for the cluster at ``url`` without sending a request. Raises BackendError
    if the address is invalid."""
    address = parse(url)
    return ServerBackend(ElasticTransport(address), address, STRATEGIES)


class ElasticTransport(Transport):
    """Send requests to Elasticsearch, which identifies itself in every response."""

    engine = "elasticsearch"
    advice = "no Elasticsearch; for OpenSearch write opensearch+URL"
    pits = "_pit", "id"
