"""Read options from the environment and from the file ``boc.toml``.

The option ``--code`` of ``boc index`` is the key ``code`` in the table ``[index]``. The options in
SHARED may also appear at the top of the file or as environment variables such as BOC_AT. The
command line overrides the environment, and the environment overrides the file.
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
"""Commands that use the encoder of the index. The shared setting ``encoder`` does not apply to
them: it is for making indexes."""
ONCE = {"all", "detach", "paths", "replace", "yes"}
"""Options that are never settings, so that a forgotten line cannot replace an index, or change the
output that a program reads."""
SECRETS = {"password": "BOC_PASSWORD", "api-key": "BOC_API_KEY", "token": "BOC_TOKEN"}
PASSWORD = re.compile(r"(?s)://[^@]*:.*@")  # an address that contains a password


class ConfigError(BocError):
    """The settings file cannot be read, or has an invalid entry."""


def places() -> list[Path]:
    """Return the paths to try for the settings file: only $BOC_CONFIG if it is set, otherwise the
    current folder, then ~/.config/boc."""
    if os.environ.get("BOC_CONFIG"):
        return [Path(os.environ["BOC_CONFIG"])]
    user = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("HOME", "") + "/.config"
    return [Path("boc.toml"), Path(user, "boc", "boc.toml")]


def settable(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that settings can set, by name without dashes."""
    named = {
        next((name for name in p.opts if name.startswith("--")), p.opts[0]).lstrip("-"): p
        for p in command.params
        if isinstance(p, click.Option) and not p.is_eager
    }
    return {name: option for name, option in named.items() if name not in ONCE}


def defaults(group: click.Group) -> dict[str, dict[str, Any]]:
    """Return click's ``default_map``, the values from the file and from shared variables by command
    and parameter.

    Raises ConfigError for an unreadable file, an unknown command or option, or a password in the
    file.
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
    """Return an option's value as the command line would pass it. Raises ConfigError for dates and
    tables, and for lists where the option takes one value."""
    values = value if isinstance(value, list) and option.multiple else [value]
    for each in values:
        if not isinstance(each, (str, int, float)):
            raise ConfigError(
                f"{place}: is {str(each)[:40]!r}; write a text in quotes, a number, true or false",
            )
    texts = [each if isinstance(each, bool) else str(each) for each in values]
    return texts if option.multiple else texts[0]


def read() -> tuple[Path | None, dict[str, Any]]:
    """Return the path of the settings file, or None, and its content."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    path = next((path for path in places() if path.exists()), None)
    if path is None and os.environ.get("BOC_CONFIG"):
        raise ConfigError(
            f"BOC_CONFIG names {os.environ['BOC_CONFIG']}, which does not exist; correct it or "
            "unset it",
        )
    try:
        return path, {} if path is None else tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror or error}); {advice(error)}",
        ) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or too deeply nested
        raise ConfigError(
            f"{path}: is not TOML in UTF-8 ({error}); put texts in quotes, see "
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
                f"{path}: {key}{place} contains a secret, which others could read; move it to "
                f"{secret}",
            )
        if key not in known:
            near = get_close_matches(key.replace("_", "-"), known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(
                f"{path}: unknown {key!r}{place}{hint}; known: {', '.join(known)}; correct or "
                "remove it",
            )
