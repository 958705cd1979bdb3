"""Addresses of clusters: taken apart as written; what is wrong is named, and no secret ever is."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from boc.errors import BackendError
from indexing.server.address import FIELDS, OPTIONS, VECTORS, Address, parse

SCHEMES = st.sampled_from(["elastic", "opensearch"])
NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z]{2,5})?", fullmatch=True)
PORTS = st.none() | st.integers(1, 65535)
HOSTS = st.lists(
    st.tuples(
        NAMES | st.just("[::1]") | st.just("10.0.0.1"),
        PORTS,
    ),
    min_size=1,
    max_size=3,
)
PATHS = st.lists(
    st.from_regex(r"[a-z0-9_-]{1,6}", fullmatch=True),
    max_size=2,
).map(
    lambda p: "".join(f"/{x}" for x in p),
)
SECRETS = st.text(
    st.characters(min_codepoint=33, max_codepoint=126),
    min_size=4,
    max_size=20,
).map(
    lambda s: f"Qz{s}9x",
)
NUMBERS = {
    "request_timeout": st.floats(0.01, 1e6),
    "patience": st.floats(0, 1e6),
    "shards": st.integers(1, 10**6),
    "replicas": st.integers(0, 10**6),
}
CHOICES = {
    "field": st.sampled_from(FIELDS),
    "vectors": st.sampled_from(VECTORS),
}


def shown(
    protocol: str,
    host: tuple[str, int | None],
    path: str,
) -> str:
    name, port = host
    return f"{protocol}://{name}:{port or {'http': 9200, 'https': 443}[protocol]}{path}"


@pytest.mark.slow
@given(
    scheme=SCHEMES,
    protocol=st.sampled_from(["http", "https"]),
    hosts=HOSTS,
    path=PATHS,
    user=st.none()
    | st.from_regex(
        r"[a-z@.]{0,8}[a-z]",
        fullmatch=True,
    ),
    options=st.fixed_dictionaries(
        {},
        optional={**NUMBERS, **CHOICES},
    ),
)
def test_address_round_trip(
    scheme: str,
    protocol: str,
    hosts: list[tuple[str, int | None]],
    path: str,
    user: str | None,
    options: dict[str, object],
):
    names = ",".join(name if port is None else f"{name}:{port}" for name, port in hosts)
    query = "&".join(f"{name}={value}" for name, value in options.items())
    login = "" if user is None else f"{user}@"
    url = f"{scheme}+{protocol}://{login}{names}{path}/{f'?{query}' if query else ''}"
    found = parse(url, {"BOC_PASSWORD": "pw", "BOC_API_KEY": "key"})
    assert found == Address(
        tuple(
            dict.fromkeys(
                shown(
                    protocol,
                    host,
                    path,
                )
                for host in hosts
            ),
        ),
        user,
        None if user is None else "pw",
        "key" if user is None else None,
        **options,  # type: ignore[arg-type]
    )
    assert found.label == ",".join(found.hosts)


@given(
    scheme=SCHEMES,
    secret=SECRETS,
    form=st.sampled_from(
        [
            "{s}+https://user:{p}@host:9200",
            "{s}+https://user:{p}@",
            "{s}+https://:{p}@one:1,two:2/x?shards=2",
            "{s}+http://user:{p}@host?nothing=1",
            "{s}+ftp://user:{p}@host",
            "user:{p}@host",
            "{s}+https://u:{p}@host:port",
            "{s}+https://user:{p}@host?ca_certs=/nowhere",
            "{s}+https://user:1{p}@host",
        ],
    ),
)
def test_password_in_address_is_refused(scheme: str, secret: str, form: str):
    url = form.format(s=scheme, p=secret)
    with pytest.raises(BackendError) as refused:
        parse(url, {})
    message = str(refused.value)
    parts = [secret, *(part for mark in "/?#@:&=" for part in secret.split(mark) if len(part) > 3)]
    assert not [part for part in parts if part in message]


@given(
    secret=SECRETS,
    other=SECRETS,
    rest=st.sampled_from(
        [
            "user@host",
            "host",
            "user@:1",
            "host?shards=0",
            "user@one,,two",
            "user@host:99999999",
            "host?x",
            "[::1",
        ],
    ),
)
def test_secrets_are_never_shown(secret: str, other: str, rest: str):
    try:
        found = parse(f"elastic+https://{rest}", {"BOC_PASSWORD": secret, "BOC_API_KEY": other})
    except BackendError as error:
        said = str(error)
    else:
        said = f"{found!r} {found} {found.label} {found.layout}"
        assert found.password == (secret if "@" in rest else None)
        assert found.api_key == (None if "@" in rest else other)
    assert secret not in said
    assert other not in said


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("elastic+ftp://host", "elastic+http:// or elastic+https://"),
        ("elastic:host", "elastic+http:// or elastic+https://"),
        ("opensearch+https:host", "opensearch+http:// or opensearch+https://"),
        ("elastic+https://", "names no host"),
        ("elastic+https://one,,two", "names no host"),
        ("elastic+https://:9200", "':9200' is not a list of HOST:PORT"),
        ("elastic+https://one:many", "'one:many' is not a list of HOST:PORT"),
        ("elastic+https://one:70000", "'one:70000' is not a list of HOST:PORT"),
        ("elastic+https://one:0", "'one:0' is not a list of HOST:PORT"),
        ("elastic+https://one two", "no host or no port in 'one two'"),
        ("elastic+https://one,t%zz", "no host or no port in 't%zz'"),
        ("elastic+https://one\u3002two", "no host or no port in 'one"),
        ("elastic+https://http://one:9200", "// behind the hosts"),
        ("elastic+https://one:9200,https://two:9200", "// behind the hosts"),
        ("elastic+https://one#two", "# or // behind the hosts"),
        ("elastic+https://[::1", "'[::1' is not a list of HOST:PORT"),
        ("elastic+https://user@one", "BOC_PASSWORD"),
        ("elastic+https://user:secret@one", "contains a password"),
        (
            "elastic+https://one?ca_cert=x.pem",
            "no option 'ca_cert' of an address; known: ca_certs,",
        ),
        (
            "elastic+https://one?ca_certs=/no/such/file",
            "ca_certs=/no/such/file in the address: must be a file",
        ),
        (
            "elastic+https://one?verify_certs=no",
            "verify_certs=no in the address: must be true or false",
        ),
        (
            "elastic+https://one?request_timeout=0",
            "request_timeout=0 in the address: must be a number of seconds",
        ),
        ("elastic+https://one?request_timeout=nan", "request_timeout=nan"),
        ("elastic+https://one?patience=inf", "patience=inf"),
        ("elastic+https://one?shards=0", "shards=0 in the address: must be a number from 1"),
        ("elastic+https://one?shards=", "shards= in the address"),
        ("elastic+https://one?replicas=-1", "replicas=-1 in the address: must be a number from 0"),
        ("elastic+https://one?field=bm25", "field=bm25 in the address: must be sparse_vector or "),
        ("elastic+https://one?vectors=int8", "vectors=int8 in the address: must be float or "),
    ],
)
def test_address_errors(url: str, part: str):
    with pytest.raises(BackendError) as refused:
        parse(url, {})
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_option_is_parsed(tmp_path: Path):
    file = tmp_path / "an authority@home.pem"
    file.write_text("certificate")
    assert {*OPTIONS} < {field.name for field in dataclasses.fields(Address)}
    quoted = (
        str(file)
        .replace(" ", "%20")
        .replace(
            "@",
            "%40",
        )
    )
    found = parse(f"elastic+https://one?ca_certs={quoted}&verify_certs=false&replicas=0", {})
    assert (found.ca_certs, found.verify_certs, found.replicas) == (str(file), False, 0)


def test_a_user_may_be_quoted_as_urls_are():
    assert parse("elastic+https://me%40home%3A1@one", {"BOC_PASSWORD": "pw"}).user == "me@home:1"


def test_the_layout_tells_indexes_made_otherwise_apart():
    same = parse("elastic+http://one?replicas=0&patience=9", {}).layout
    assert same == parse("elastic+https://two:1,three/prefix", {}).layout
    options = ("field=text", "vectors=byte", "shards=2")
    others = [parse(f"elastic+http://one?{option}", {}).layout for option in options]
    assert len({same, *others}) == 4
