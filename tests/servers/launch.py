"""How a fetched server is started: its configuration folder and its command line."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import jdk
from .catalogue import Kind
from .fetch import HERE


def options(folder: Path, heap: str, optimise: bool) -> list[str]:
    """Return what a node's Java is told; Lucene computes vectors with the incubator module."""
    memory = [
        f"-Xms{heap}",
        f"-Xmx{heap}",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
    ]
    return [
        *memory,
        "--add-modules=jdk.incubator.vector",
        *([] if optimise else ["-XX:TieredStopAtLevel=1"]),
    ]


def configure(
    kind: Kind,
    home: Path,
    folder: Path,
    settings: Mapping[str, Any],
    java: Sequence[str],
) -> None:
    """Write ``folder/config``; settings are one JSON object, which is YAML too."""
    config = folder / "config"
    for part in (config, folder / "tmp"):
        part.mkdir(parents=True, exist_ok=True)
    (config / f"{kind.engine}.yml").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    shutil.copy(HERE / "node" / "log4j2.properties", config)
    if kind.engine == "elasticsearch":
        vendor = (home / "config" / "jvm.options").read_text(encoding="utf-8").splitlines()
        files = ("Xlog:gc", "HeapDump", "ErrorFile")  # written into folders of an installation
        kept = [line for line in vendor if not any(name in line for name in files)]
        (config / "jvm.options").write_text("\n".join([*kept, *java]) + "\n", encoding="utf-8")


def command(kind: Kind, home: Path, folder: Path, java: Sequence[str]) -> list[str]:
    """Command line that starts ``kind`` from ``home`` with the configuration in ``folder``."""
    machine = str(jdk.find(*kind.java) / "bin" / "java")
    if kind.engine == "opensearch":
        logging = {
            "log4j2.configurationFile": folder / "config" / "log4j2.properties",
            "log4j2.disable.jmx": "true",
            "log4j.shutdownHookEnabled": "false",  # so that the log tells of the stop too
        }
        path = _path(home, "classes", "lib/*", "plugin/*")
        return [
            machine,
            *java,
            *_properties(logging),
            "-cp",
            path,
            "OpenSearchNode",
            str(folder),
            *kind.plugins,
        ]
    if (home / "lib" / "tools" / "server-launcher").is_dir():
        path = _path(home, "lib/tools/server-launcher/*")
        return [
            *unprivileged(),
            machine,
            "-Xmx64m",
            "-cp",
            path,
            "org.elasticsearch.server.launcher.ServerLauncher",
        ]
    return [*unprivileged(), *tool(kind, home, folder, "server")]


def tool(kind: Kind, home: Path, folder: Path, name: str) -> list[str]:
    """Command line of one of Elasticsearch's tools, such as ``keystore``; its arguments follow."""
    about = {
        "cli.name": name,
        "cli.script": home / "bin" / "elasticsearch",
        "cli.libs": f"lib/tools/{name}-cli",
        "es.path.home": home,
        "es.path.conf": folder / "config",
        "es.distribution.type": "zip",
        "es.java.type": "ES_JAVA_HOME",
    }
    java = str(jdk.find(*kind.java) / "bin" / "java")
    path = _path(home, "lib/*", "lib/cli-launcher/*")
    return [
        java,
        "-Xmx64m",
        *_properties(about),
        "-cp",
        path,
        "org.elasticsearch.launcher.CliToolLauncher",
    ]


def environment(kind: Kind, home: Path, folder: Path) -> dict[str, str]:
    """Return what Elasticsearch's own start scripts put into the environment, and nothing of ours
    but PATH."""
    java = jdk.find(*kind.java)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOSTNAME": "localhost",
        "JAVA": str(java / "bin" / "java"),
        "JAVA_TYPE": "ES_JAVA_HOME",
        "ES_JAVA_HOME": str(java),
        "ES_DISTRIBUTION_TYPE": "zip",
        "ES_HOME": str(home),
        "ES_PATH_CONF": str(folder / "config"),
        "ES_TMPDIR": str(folder / "tmp"),
    }


def unprivileged() -> list[str]:
    """Elasticsearch refuses to be root; as nobody, it keeps the right to read and write where root
    may."""
    if os.geteuid() != 0:
        return []
    nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    # The last makes access(2) agree with open(2): Java asks before it opens.
    rights = [
        "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override",
        "--securebits=+no_setuid_fixup",
    ]
    return ["setpriv", *nobody, *rights]


def _path(home: Path, *parts: str) -> str:
    return os.pathsep.join(str(home / part) for part in parts)


def _properties(values: Mapping[str, object]) -> list[str]:
    return [f"-D{key}={value}" for key, value in values.items()]
