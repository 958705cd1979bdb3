"""OpenSearch 2 and 3: ``opensearch+https://user@host:9200?ca_certs=FILE``. The rest is
``indexing.server``."""

from collections.abc import Mapping

from .server.address import Address, parse
from .server.backend import ServerBackend
from .server.transport import RefusedError, Transport

STRATEGIES = ("counted_text", "text", "rank_features")
"""Best first, by bench/race/race.py --server."""


def connect(url: str) -> ServerBackend:
    """Return the cluster at ``url``, without a request. BackendError for an invalid address."""
    address = parse(url)
    return ServerBackend(OpenSearchTransport(address), address, STRATEGIES)


class OpenSearchTransport(Transport):
    """Requests to OpenSearch, which names itself where it is asked for its version, if this user
    may ask."""

    engine = "opensearch"
    advice = "no OpenSearch; for Elasticsearch write elastic+URL"
    pits = "_search/point_in_time", "pit_id"

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._known = False

    def _check_product(self) -> None:
        if self._known:
            return
        try:
            answer = self._read("GET", "/", None, {})
        except RefusedError as error:
            # A user may have rights on a few indexes only, a gateway pass some paths only: the form
            # of the error tells.
            if error.status == 404 and not error.kind:
                raise self._other_product() from None
            if error.status not in (403, 404):
                raise
        else:
            version = answer.get("version")
            named = isinstance(version, dict) and version.get("distribution") == "opensearch"
            # In its mode of compatibility it tells another version, and no distribution.
            if not named and "opensearch" not in str(answer.get("tagline")).lower():
                raise self._other_product()
        self._known = True

    def _is_product(self, headers: Mapping[str, str]) -> bool:
        return "x-elastic-product" not in headers
