"""Finds a JDK on this machine."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .errors import UnavailableError


def installed() -> Iterator[tuple[int, Path]]:
    """(release, home) of JAVA_HOME, then of every JDK where Linux and macOS keep them."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    homes += sorted(Path("/usr/lib/jvm").glob("*"))
    homes += sorted(Path("/Library/Java/JavaVirtualMachines").glob("*/Contents/Home"))
    for home in homes:
        about = home / "release"
        if (home / "bin" / "javac").exists() and about.exists():
            version = re.search(
                r'^JAVA_VERSION="(\d+)',
                about.read_text(encoding="utf-8"),
                re.MULTILINE,
            )
            if version:
                yield int(version[1]), home


def find(oldest: int, newest: int) -> Path:
    """Home of a JDK whose release lies in [oldest, newest]; ``UnavailableError`` says what to
    install."""
    there = list(installed())
    for release, home in there:
        if oldest <= release <= newest:
            return home
    found = (
        ", ".join(str(release) for release in sorted({release for release, _ in there})) or "none"
    )
    wanted = f"{oldest} or newer" if newest == 99 else f"{oldest} to {newest}"
    raise UnavailableError(
        f"no JDK {wanted} in JAVA_HOME or /usr/lib/jvm (found: {found}); install one, such as "
        f"openjdk-{oldest}-jdk",
    )
