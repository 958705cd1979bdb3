"""Create an index of boc without the additions from the templates of a cluster."""

from collections.abc import Iterator
from contextlib import suppress
from fnmatch import filter as matching
from typing import Any

import orjson

from boc.errors import BackendError

from .aliases import APART
from .force_merge import reopen
from .transport import Json, RefusedError, Transport

MANAGED = (
    "index.lifecycle.",
    "index.plugins.index_state_management.",
    "index.opendistro.index_state_management.",
)
"""Settings that cause a cluster to move, shrink or delete an index automatically."""
PIPELINES = (
    "index.default_pipeline",
    "index.final_pipeline",
    "index.search.default_pipeline",
)


def name_apart(transport: Transport, usual: str) -> str:
    """Return a name for a new index to which no template of the cluster gives aliases: ``usual``,
    or this name after ``boc-on-``. A process may be killed before ``create_index`` removes aliases.

    Return ``usual`` if both names get aliases, or if this user may not read templates.
    """
    with suppress(RefusedError):
        legacy = transport.request("GET", "/_template").values()
        for name in (usual, APART + usual):
            answer = transport.request("POST", f"/_index_template/_simulate_index/{name}")
            found = [answer.get("template", {})]
            for each in legacy:
                if any(matching([name], pattern) for pattern in each["index_patterns"]):
                    found.append(each)
            if not any(each.get("aliases") for each in found):
                return name
    return usual


def create_index(transport: Transport, index: str, body: Json) -> Json:
    """Create ``index``, read it back, remove whatever templates added, and wait for its shards.
    Return the server's response.

    Raises BackendError, and leaves no index, if an addition remains that changes written documents,
    or lets others read or write them.
    """
    # Additions are removed first, since an alias of another program refuses writes meanwhile.
    transport.request("PUT", f"/{index}", body, wait_for_active_shards=0)
    try:
        _take_away(transport, index, body)
        if added := list(_additions(_read(transport, index), body)):
            raise BackendError(
                f"a template of the cluster {', '.join(added)}, so {index} would drop or change "
                "written data; change it (GET /_index_template, GET /_template), then run the "
                "command again",
            )
        return reopen(transport, index)
    except BackendError:
        transport.request("DELETE", f"/{index}")
        raise


def _read(transport: Transport, index: str) -> Json:
    entry: Json
    (entry,) = transport.request("GET", f"/{index}", flat_settings="true").values()
    return entry


def _foreign(entry: Json, body: Json) -> tuple[list[str], Json]:
    """Return the aliases of an index that were not requested, and the settings with different
    values."""
    aliases = sorted({*entry["aliases"]} - {*body.get("aliases", ())})
    settings: Json = {name: None for name in entry["settings"] if name.startswith(MANAGED)}
    for name in PIPELINES:
        if entry["settings"].get(name, "_none") != "_none":
            settings[name] = "_none"
    return aliases, settings


def _take_away(transport: Transport, index: str, body: Json) -> None:
    """Remove all additions that can be removed."""
    entry = _read(transport, index)
    aliases, settings = _foreign(entry, body)
    if aliases:
        actions = [{"remove": {"index": index, "alias": alias}} for alias in aliases]
        transport.request("POST", "/_aliases", {"actions": actions})
    if settings:
        transport.request("PUT", f"/{index}/_settings", settings)
    if computed := entry["mappings"].get("runtime", ()):
        transport.request("PUT", f"/{index}/_mapping", {"runtime": dict.fromkeys(computed)})


def _additions(entry: Json, body: Json) -> Iterator[str]:
    """Yield descriptions of the additions of an index to ``body``, in words."""
    aliases, settings = _foreign(entry, body)
    if aliases:
        yield f"gives it the aliases {', '.join(aliases)}"
    for name in settings:
        yield f"sets {name}"
    mapping = entry["mappings"]
    asked = body["mappings"]
    shown = {*asked["properties"]} - {*asked.get("_source", {}).get("excludes", ())}
    excluded = mapping.get("_source", {}).get("excludes", ())
    hidden = {each for each in excluded if matching(shown, each.partition(".")[0])}
    if hidden:
        yield f"hides {', '.join(sorted(hidden))} from _source"
    if mapping.get("enabled", True) not in (True, "true"):
        yield "has no field read (enabled: false)"
    for path, value in _other_fields(mapping, asked):
        yield f"sets {path} to {orjson.dumps(value).decode()}"


def _other_fields(actual: Json, asked: Json, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a mapping's fields that were not requested or have different values;
    defaults may be missing."""
    for name, spec in asked["properties"].items():
        shown = actual.get("properties", {}).get(name, {})
        where = f"{path}{name}"
        usual = dict(spec)
        if "properties" in spec:
            yield from _other_fields(shown, spec, f"{where}.")
            usual.setdefault("type", "object")
        for key, value in shown.items():
            if key != "properties" and not _same(value, usual.get(key)):
                yield f"{where}.{key}", value


def _same(there: Any, asked: Any) -> bool:
    """Return whether the value from the server equals the requested value. Servers return false as
    a string, a list with one value as the value, and missing parameters as {}."""
    if isinstance(there, dict) and isinstance(asked, dict):
        return all(_same(value, asked.get(key)) for key, value in there.items() if value != {})
    return str(there).lower() in (str(asked).lower(), str([asked]).lower())
