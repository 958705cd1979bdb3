"""Read options from environment variables and from the file ``boc.toml``.

The option ``--code`` of ``boc index`` is the key ``code`` in the table ``[index]``. The options in
SHARED can also be set at the top of the file, or by environment variables such as BOC_AT. The
command line overrides environment variables, which override the file.
"""

import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from boc.errors import BocError, advice

SHARED = ("at", "encoder", "device")
INDEX_ENCODER = ("search", "explain", "serve")
"""Commands that use the encoder of the index. They ignore the shared setting ``encoder``, which is
for building indexes."""
ONCE = {"all", "detach", "paths", "replace", "yes"}
"""Options that cannot be set in the file, because a forgotten line could replace an index or change
the output format that a program expects."""
SECRETS = {"password": "BOC_PASSWORD", "api-key": "BOC_API_KEY", "token": "BOC_TOKEN"}
PASSWORD = re.compile(r"(?s)://[^@]*:.*@")  # matches an address that contains a password


class ConfigError(BocError):
    """The settings file cannot be read or contains an invalid entry."""


def places() -> list[Path]:
    """Return the possible paths of the settings file: $BOC_CONFIG if it is set, otherwise the
    current folder and ~/.config/boc."""
    if os.environ.get("BOC_CONFIG"):
        return [Path(os.environ["BOC_CONFIG"])]
    user = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("HOME", "") + "/.config"
    return [Path("boc.toml"), Path(user, "boc", "boc.toml")]


def settable(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that the settings file can set, keyed by name without
    dashes."""
    named = {
        next((name for name in p.opts if name.startswith("--")), p.opts[0]).lstrip("-"): p
        for p in command.params
        if isinstance(p, click.Option) and not p.is_eager
    }
    return {name: option for name, option in named.items() if name not in ONCE}


def defaults(group: click.Group) -> dict[str, dict[str, Any]]:
    """Return the values from the file and from environment variables as click's ``default_map``.

    Raises ConfigError if the file cannot be read, or if it contains an unknown command, an unknown
    option or a password.
    """
    path, content = read()
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if key not in shared}
    _check(path, "", shared, SHARED)
    _check(path, "", dict.fromkeys(tables), list(group.commands))
    result = {}
    for command in group.commands:
        options = settable(group.commands[command])
        table = tables.get(command, {})
        _check(path, command, table, list(options))
        inherited = [key for key in SHARED if key in options and not options[key].multiple]
        if command in INDEX_ENCODER:
            inherited.remove("encoder")
        values = {key: shared[key] for key in inherited if key in shared} | table
        variables = {key: os.environ.get(f"BOC_{key.upper()}") for key in inherited}
        values |= {key: value for key, value in variables.items() if value}
        result[command] = {
            str(options[key].name): _value(f"{path}: {key} in [{command}]", value, options[key])
            for key, value in values.items()
        }
    return result


def _value(place: str, value: Any, option: click.Option) -> Any:
    """Convert a value to the form in which the command line passes it. Raises ConfigError for dates
    and tables, and for a list if the option accepts a single value."""
    values = value if isinstance(value, list) and option.multiple else [value]
    for each in values:
        if not isinstance(each, (str, int, float)):
            raise ConfigError(
                f"{place}: {str(each)[:40]!r} is not allowed; write a quoted string, a number, "
                "true or false",
            )
    texts = [each if isinstance(each, bool) else str(each) for each in values]
    return texts if option.multiple else texts[0]


def read() -> tuple[Path | None, dict[str, Any]]:
    """Return the path of the settings file, or None if the file does not exist, and its content."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    path = next((path for path in places() if path.exists()), None)
    if path is None and os.environ.get("BOC_CONFIG"):
        raise ConfigError(
            f"BOC_CONFIG names {os.environ['BOC_CONFIG']}, which does not exist; correct or unset "
            "this variable",
        )
    try:
        return path, {} if path is None else tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror or error}); {advice(error)}",
        ) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # the file is not UTF-8, not TOML, or nested too deeply
        raise ConfigError(
            f"{path}: is not valid TOML in UTF-8 ({error}); put strings in quotes, see "
            "docs/reference/configuration.md",
        ) from error


def _check(path: Path | None, command: str, values: dict[str, Any], known: Sequence[str]) -> None:
    place = f" in [{command}]" if command else ""
    for key, value in values.items():
        secret = SECRETS.get(key.replace("_", "-")) or (
            "BOC_PASSWORD" if PASSWORD.search(str(value)) else None
        )
        if secret:
            raise ConfigError(
                f"{path}: {key}{place} contains a secret, which others could read; move the "
                f"secret to the variable {secret}",
            )
        if key not in known:
            near = get_close_matches(key.replace("_", "-"), known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(
                f"{path}: unknown {key!r}{place}{hint}; known: {', '.join(known)}; correct or "
                "remove this entry",
            )
