"""OpenSearch 2 and 3: ``opensearch+https://user@host:9200?ca_certs=FILE``. The rest is
``indexing.server``."""

from collections.abc import Mapping

from .server.address import parse
from .server.backend import ServerBackend
from .server.transport import Transport

STRATEGIES = ("counted_text", "text", "rank_features")
"""Best first, by bench/race/race.py --server."""


def connect(url: str) -> ServerBackend:
    """Return the cluster at ``url``, without a request. BackendError for an invalid address."""
    address = parse(url)
    return ServerBackend(OpenSearchTransport(address), address, STRATEGIES)


class OpenSearchTransport(Transport):
    """Requests to OpenSearch, which names itself nowhere, as Elasticsearch does in every answer."""

    engine = "opensearch"
    advice = "no OpenSearch; for Elasticsearch write elastic+URL"
    pits = "_search/point_in_time", "pit_id"

    def _is_product(self, headers: Mapping[str, str]) -> bool:
        return "x-elastic-product" not in headers
