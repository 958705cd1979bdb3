"""Elasticsearch 8 and 9: ``elastic+https://user@host:9200?ca_certs=FILE``. The rest is
``indexing.server``."""

from collections.abc import Mapping

from .server.address import parse
from .server.backend import ServerBackend
from .server.transport import Transport

STRATEGIES = ("text", "sparse_vector", "rank_features")
"""Best first, by bench/race/race.py --server."""


def connect(url: str) -> ServerBackend:
    """Return the cluster at ``url``, without a request. BackendError for an invalid address."""
    address = parse(url)
    return ServerBackend(ElasticTransport(address), address, STRATEGIES)


class ElasticTransport(Transport):
    """Requests to Elasticsearch, which names itself in every answer."""

    engine = "elasticsearch"
    advice = "no Elasticsearch; for OpenSearch write opensearch+URL"
    pits = "_pit", "id"

    def _is_product(self, headers: Mapping[str, str]) -> bool:
        return "x-elastic-product" in headers
