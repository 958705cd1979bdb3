"""Reads the settings file ``boc.toml`` strictly, so that a typing error is reported and not ignored.

A key at the top is an option that several commands share; a table is a command::

    at = "file:/data/boc"
    [search]
    k = 20

The caller gives the commands, and the rules of their options.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from boc.errors import BocError

FILE = "boc.toml"
SHARED = ""
"""The key, among commands, of the shared options."""
SECRETS = {"password": "BOC_PASSWORD", "api-key": "BOC_API_KEY", "token": "BOC_TOKEN"}
GUIDE = "docs/configuration.md tells what goes into it"

Rule = Callable[[Any], str | None]
"""Of an option: why it rejects a value; None if it accepts it."""
Rules = Mapping[str, Mapping[str, Rule]]
"""Rules by command and name of the option."""
Settings = dict[str, dict[str, Any]]
"""Values by command and name of the option."""


class ConfigError(BocError):
    """The settings file cannot be read, or has an invalid entry."""


def find(environment: Mapping[str, str] = os.environ, folder: Path | None = None) -> Path | None:
    """The settings file: that of BOC_CONFIG, else boc.toml in ``folder`` (the current one), else that of the user.

    None if there is none; ConfigError if BOC_CONFIG names a missing file.
    """
    named = environment.get("BOC_CONFIG")
    if named:
        path = Path(named)
        if not path.exists() or path.is_dir():
            raise ConfigError(f"BOC_CONFIG names {named}, which is no file; correct it or unset it")
        return path
    return next((path for path in places(environment, folder) if path.is_file()), None)


def places(environment: Mapping[str, str] = os.environ, folder: Path | None = None) -> list[Path]:
    """The default paths of the file: the current folder, then the settings folder of the user."""
    user = environment.get("XDG_CONFIG_HOME")
    try:
        home = Path(user) if user else Path.home() / ".config"
    except RuntimeError:  # a user of a container may have no home
        return [(folder or Path()) / FILE]
    return [(folder or Path()) / FILE, home / "boc" / FILE]


def read(path: Path, rules: Rules) -> Settings:
    """Read the file; values by command. ConfigError names the file, the key, the known keys, and the next step."""
    settings: Settings = {SHARED: {}}
    for key, value in _parsed(path).items():
        if isinstance(value, dict):
            if key == SHARED or key not in rules:
                raise ConfigError(f"{path}: no command {key!r}{_known(key, [name for name in rules if name])}")
            settings[key] = {name: _checked(path, key, name, one, rules) for name, one in value.items()}
        else:
            settings[SHARED][key] = _checked(path, SHARED, key, value, rules)
    return settings


def holds_password(value: object) -> bool:
    """Whether a value is an address with a password, whatever its characters."""
    return isinstance(value, str) and re.search(r"://[^@]*:.*@", value, re.DOTALL) is not None


def _parsed(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 ({error.reason}); save it as such") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML ({error}); texts stand in quotes, and {GUIDE}") from error


def _checked(path: Path, command: str, name: str, value: Any, rules: Rules) -> Any:
    place = f" in [{command}]" if command else ""
    variable = SECRETS.get(name.replace("_", "-"))
    if variable is not None:
        raise ConfigError(f"{path}: {name}{place} is a secret, which a file may show to others; put it into {variable}")
    rule = rules[command].get(name)
    if rule is None:
        owners = [owner for owner, known in rules.items() if owner and name in known]
        if owners and not command:
            below = ", ".join(f"[{owner}]" for owner in owners)
            raise ConfigError(f"{path}: {name} is not set for all commands; write it below one of {below}")
        raise ConfigError(f"{path}: no option {name!r}{place}{_known(name, rules[command])}")
    if any(map(holds_password, value if isinstance(value, list) else [value])):
        raise ConfigError(
            f"{path}: {name}{place} holds a password, which others could read; put it into BOC_PASSWORD, and leave the "
            "user in the address: https://USER@HOST"
        )
    refusal = rule(value)
    if refusal is not None:
        raise ConfigError(f"{path}: {name} = {_toml(value)}{place} {refusal}; correct it")
    return value


def _known(name: str, known: Mapping[str, Any] | list[str]) -> str:
    near = get_close_matches(name.replace("_", "-"), list(known), 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"{meant}; known: {', '.join(known)}; correct or remove it"


def _toml(value: Any) -> str:
    """A value in TOML notation, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
