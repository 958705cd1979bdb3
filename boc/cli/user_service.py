"""Serve an index from each login on: a unit of the user's systemd, or an agent of launchd on
macOS."""

import json
import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from boc.atomic_files import write_text
from boc.cli.settings import SECRETS
from boc.errors import BocError
from boc.outputs import begins, check_output

MADE = "Made by boc serve. To remove it: boc serve NAME with the option uninstall."
UNIT = """# {made}
[Unit]
Description=boc serve {name}
After={target}

[Service]
WorkingDirectory={folder}
Environment={variables}
ExecStart={command}
Restart=on-failure
RestartSec=5

[Install]
WantedBy={target}
"""
OURS = begins(b"", MADE.encode())


def install(name: str, command: Sequence[str], target: str) -> Path:
    """Write, enable and start a service that runs ``command`` here at ``target``; return its file.
    BocError for a secret, which it would need, and if it cannot be started now."""
    variables = {key: value for key, value in os.environ.items() if key.startswith("BOC_")}
    if secrets := {*SECRETS.values(), "BOC_HEADERS"} & set(variables):
        raise BocError(
            f"{min(secrets)} is set, and this keeps no secret; unset it, or start from "
            "deploy/boc.service",
        )
    path = _path(name)
    folder = str(Path.cwd())
    check_output(path, OURS)
    if sys.platform == "darwin":
        facts = {
            "Label": path.stem,
            "ProgramArguments": [*command],
            "WorkingDirectory": folder,
            "RunAtLoad": True,
        }
        text = plistlib.dumps(facts | {"EnvironmentVariables": variables}).decode()
        text = text.replace("<plist", f"<!-- {MADE} -->\n<plist", 1)
    else:
        written = _quoted(f"{key}={value}" for key, value in variables.items())
        line = _quoted(command).replace("$", "$$")
        folder = folder.replace("%", "%%")
        text = UNIT.format(
            made=MADE,
            name=name,
            target=target,
            folder=folder,
            variables=written,
            command=line,
        )
    write_text(path, text)
    _manage(path, "unload", "load") if sys.platform == "darwin" else _manage(
        path,
        "reenable",
        "restart",
    )
    return path


def uninstall(name: str) -> Path:
    """Stop the service and remove its file, and return its path. BocError if boc made none of this
    name."""
    path = _path(name)
    if not OURS(path):
        raise BocError(
            f"{path} is no service that boc serve {name} --install made; nothing was removed",
        )
    try:
        _manage(path, "unload") if sys.platform == "darwin" else _manage(path, "disable", "stop")
    finally:
        path.unlink()
    return path


def _path(name: str) -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "LaunchAgents" / f"boc.{name}.plist"
    user = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(user, "systemd", "user", f"boc-{name}.service")


def _quoted(words: Iterable[str]) -> str:
    """Return words as systemd reads them."""
    return " ".join(json.dumps(word, ensure_ascii=False) for word in words).replace("%", "%%")


def _manage(path: Path, *verbs: str) -> None:
    for verb in verbs:
        call = (
            ["launchctl", verb, str(path)]
            if sys.platform == "darwin"
            else ["systemctl", "--user", verb, path.name]
        )
        try:
            subprocess.run(call, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", "") or error).strip()
            raise BocError(
                f"{shlex.join(call)} failed ({reason}); it needs the session of a login",
            ) from None
