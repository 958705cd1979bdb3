"""Several nodes that find each other, of Elasticsearch or OpenSearch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .catalogue import KINDS
from .server import Server

FIRST = {
    "elasticsearch": "cluster.initial_master_nodes",
    "opensearch": "cluster.initial_cluster_manager_nodes",
}


class Cluster:
    """``count`` nodes of one cluster, each with its own folder, 512 MB of heap and an equal right
    to lead.

    Attributes
    ----------
    nodes : list of Server
        Any of them may be killed and restarted.
    urls : list of str
        Their addresses, in the same order.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kind: str = "opensearch-3",
        count: int = 3,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind = KINDS[kind]
        self.nodes = [Server(kind, folder / f"node-{i}", heap="512m") for i in range(count)]
        self.urls = [node.url for node in self.nodes]
        together = {
            "cluster.name": f"boc-{self.nodes[0].port}",
            "discovery.seed_hosts": [node.transport for node in self.nodes],
            FIRST[self.kind.engine]: [node.settings["node.name"] for node in self.nodes],
            **(settings or {}),
        }
        for node in self.nodes:
            del node.settings["discovery.type"]
            node.settings |= together

    def start(self) -> Cluster:
        """Start all nodes at once and wait until they are one cluster."""
        with ExitStack() as undo:
            for node in self.nodes:
                node.spawn()
                undo.callback(node.kill)
            for node in self.nodes:
                node.wait(nodes=len(self.nodes))
            undo.pop_all()
        return self

    def stop(self) -> None:
        """Stop every node."""
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
