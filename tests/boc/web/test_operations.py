"""Health, measurements and logs."""

import logging
import shutil
import threading
import time
from io import StringIO
from pathlib import Path

import pytest

from boc.errors import BackendError
from boc.search.searcher import Searcher

pytest.importorskip("fastapi", reason="the page needs the extra web")
pytest.importorskip("prometheus_client", reason="the page needs the extra web")

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from boc.web.app import create_app
from boc.web.http.responses import ProblemError
from boc.web.http.server import configure_logging, cut_address
from boc.web.settings import Settings
from tests.boc.web.test_api import client_of
from tests.boc.web.test_attacks import assert_refused

SECRET = "open-sesame"


def values(client: TestClient) -> dict[tuple[str, ...], float]:
    """Each value by its name and the values of its labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return {
        (
            sample.name,
            *(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics(client: TestClient):
    for options in ({}, {"k": 3}, {"z": 4, "find": "text"}):
        assert (
            client.get(
                "/api/search",
                params={"q": "a red box", **options},
            ).status_code
            == 200
        )
        assert client.get("/api/thumb/000.png").status_code == 200
    client.get("/api/item/none")
    client.get("/nowhere")
    found = values(client)
    assert found["boc_requests_total", "GET", "/api/search", "200"] == 3
    assert found["boc_requests_total", "GET", "/api/item/{id}", "404"] == 1
    assert found["boc_requests_total", "GET", "none", "404"] == 1
    assert found["boc_request_seconds_count", "/api/search"] == 3


def test_strange_addresses_make_no_new_series(client: TestClient):
    client.get("/nowhere")
    before = {name for name in values(client) if name[0] == "boc_requests_total"}
    for i in range(20):
        client.get(f"/api/item/{i}")
        client.get(f"/{i}")
    after = {name for name in values(client) if name[0] == "boc_requests_total"}
    assert len(after - before) <= 3  # of /metrics, of /api/item/{id}, of /api/info


def test_access_to_probes_and_metrics(searcher: Searcher, tmp_path: Path):
    client = client_of(searcher, tmp_path, token=SECRET)
    strange = {"host": "10.0.0.7:8000"}
    for path in ("/healthz", "/readyz"):
        assert client.get(path, headers=strange).status_code == 200
        assert client.head(path, headers=strange).status_code == 200
    assert client.get("/metrics").status_code == 401
    bearer = {"authorization": f"Bearer {SECRET}"}
    assert client.get("/metrics", headers=bearer).status_code == 200
    assert (
        client.get(
            "/metrics",
            headers=bearer | strange,
        ).status_code
        == 400
    )
    assert (
        client.get(
            "/metrics",
            headers=bearer | {"sec-fetch-site": "cross-site"},
        ).status_code
        == 403
    )


@pytest.mark.slow
def test_readiness(library: Path, tmp_path: Path):
    shutil.copytree(library / "index", tmp_path / "index")
    searcher = Searcher.open("photos", f"file:{tmp_path / 'index'}", device="cpu")
    client = client_of(searcher, tmp_path / "cache", look_every=0.0)
    assert client.get("/readyz").text == "ready\n"
    (tmp_path / "index" / "photos").rename(tmp_path / "away")
    while (answer := client.get("/readyz")).status_code == 200:
        pass
    assert (answer.status_code, answer.text) == (503, "the index cannot be reached\n")
    assert client.get("/healthz").status_code == 200
    (tmp_path / "away").rename(tmp_path / "index" / "photos")
    while client.get("/readyz").status_code == 503:
        pass


@pytest.mark.slow
def test_lost_index_is_reopened_once(client: TestClient, monkeypatch):
    library_of = client.app.state.service.library  # type: ignore[attr-defined]
    everybody = threading.Barrier(8)
    tries = []
    caught = []

    def renew(*_, **__):
        tries.append(1)
        time.sleep(0.5)  # the others arrive
        raise BackendError("gone")

    def work(_):
        everybody.wait(60)
        raise BackendError("gone")

    def ask():
        with pytest.raises(ProblemError, match="gone"):
            library_of.do(work)
        caught.append(1)

    monkeypatch.setattr(Searcher, "renew", renew)
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caught) == 8
    assert len(tries) < 8


@pytest.mark.parametrize(
    ("path", "route"),
    [
        (f"/api/search?q=a%20red%20box&token={SECRET}", "/api/search"),
        ("/api/item/a%0A%1B.png?side=240", "/api/item"),
        (f"/?token={SECRET}", "/"),
        ("/static/app.js", "/static"),
    ],
)
def test_log_of_requests_holds_routes_alone(path: str, route: str):
    logger = logging.getLogger("uvicorn.access")
    handler = logging.StreamHandler(StringIO())
    configure_logging()
    logger.addHandler(handler)
    try:
        logger.info('%s - "%s %s HTTP/%s" %d', "10.0.0.7:50", "GET", path, "1.1", 200)
    finally:
        logger.removeHandler(handler)
        logger.removeFilter(cut_address)
    assert handler.stream.getvalue() == f'10.0.0.7:50 - "GET {route} HTTP/1.1" 200\n'


def test_fault_is_counted_and_told_without_its_text(searcher: Searcher, tmp_path: Path):
    app = create_app(
        searcher,
        Settings("photos", "file:nowhere", cache=tmp_path),
    )

    @app.get("/api/broken")
    def broken() -> None:
        raise ZeroDivisionError("a secret")

    client = TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    assert_refused(client.get("/api/broken"), 500, "internal error")
    assert values(client)["boc_requests_total", "GET", "/api/broken", "500"] == 1
