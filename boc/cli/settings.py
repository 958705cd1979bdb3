"""Options from the environment and from ``boc.toml``.

Their names follow from the options: ``--concepts`` of ``boc index`` is BOC_INDEX_CONCEPTS, and ``concepts`` in the
table ``[index]``. The command line has priority over the environment, and the environment over the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import click

from boc.cli.config import SECRETS, SHARED, Rule, Rules, Settings, find, holds_password, read
from boc.cli.options import CodeType

SHARED_OPTIONS = ("at", "encoder", "device")
HAVE_THEIR_ENCODER = {"search", "query", "explain", "serve"}
"""Commands that use the encoder of the index; the shared setting of an encoder is for making indexes."""
THIS_TIME = {"all", "apply", "detach", "replace", "yes"}
"""Options that are never settings, so that an old line in a file cannot replace an index."""
NOT_IN_FILES = {"spice": "is a command to run, which is no setting of a file; give it as --spice"}
OTHERS = ("BOC_CONFIG", "BOC_MODELS", *SECRETS.values())


@dataclass(frozen=True)
class Origin:
    """A setting: ``name`` is like at or search.k, ``source`` a variable or the file."""

    name: str
    value: str
    source: str

    @property
    def shown(self) -> str:
        """The value, unless it is or contains a secret."""
        secret = self.source in SECRETS.values() or holds_password(self.value)
        return "(not shown)" if secret else self.value


def flag(option: click.Parameter) -> str:
    """The first long name of an option, without dashes."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0]).lstrip("-")


def options(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """Yield the options of a command that can be settings, by name."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.is_eager and flag(parameter) not in THIS_TIME:
            yield flag(parameter), parameter


def variable(*words: str) -> str:
    """The environment variable of an option, from command and name, or from a shared name."""
    return "_".join(("boc", *words)).replace("-", "_").upper()


def name_variables(group: click.Group) -> None:
    """Give each option its environment variables."""
    for name, command in group.commands.items():
        for option, parameter in options(command):
            known = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or ())
            own = [variable(name, option), *([variable(option)] if _shared(name, option, parameter) else [])]
            parameter.envvar = list(dict.fromkeys([*own, *known]))


def defaults(group: click.Group) -> dict[str, Any]:
    """The settings of the file as defaults for click, by command and parameter. ConfigError if the file is invalid."""
    path = find()
    if path is None:
        return {}
    settings = read(path, rules(group))
    return {name: dict(_given(name, command, settings)) for name, command in group.commands.items()}


def rules(group: click.Group) -> Rules:
    """The rules of all options."""
    made: dict[str, dict[str, Rule]] = {SHARED: {}}
    for name, command in group.commands.items():
        made[name] = {}
        for option, parameter in options(command):
            made[name][option] = partial(_refusal, parameter)
            if _shared(name, option, parameter):
                made[SHARED][option] = made[name][option]
    made[SHARED] = {option: made[SHARED][option] for option in SHARED_OPTIONS if option in made[SHARED]}
    return made


def origins(group: click.Group) -> Iterator[Origin]:
    """Yield all settings with their sources; the environment overrides the file. ConfigError as ``defaults``."""
    path = find()
    settings = read(path, rules(group)) if path is not None else {}
    for command, values in settings.items():
        for option, value in values.items():
            name = f"{command}.{option}" if command else option
            stronger = _stronger(command, option)
            if stronger is None:
                yield Origin(name, str(value), str(path))
    for known, name in _variables(group).items():
        if os.environ.get(known):
            yield Origin(name, os.environ[known], known)


def places(group: click.Group) -> list[str]:
    """The configured addresses, without repetition."""
    return list(dict.fromkeys(origin.value for origin in origins(group) if origin.name.rpartition(".")[2] == "at"))


def misspelt(group: click.Group) -> Iterator[tuple[str, str]]:
    """Yield unknown variables that resemble a known one, and the known one."""
    known = [*_variables(group), *OTHERS]
    for name in sorted(os.environ):
        if name.startswith("BOC_") and name not in known:
            near = get_close_matches(name, known, 1, cutoff=0.85)
            if near:
                yield name, near[0]


def _shared(command: str, option: str, parameter: click.Option) -> bool:
    if option == "encoder" and command in HAVE_THEIR_ENCODER:
        return False
    return option in SHARED_OPTIONS and not parameter.multiple


def _given(name: str, command: click.Command, settings: Settings) -> Iterator[tuple[str, Any]]:
    for option, parameter in options(command):
        own, shared = settings.get(name, {}), settings[SHARED]
        if option in own and parameter.name is not None:
            yield parameter.name, own[option]
        elif option in shared and _shared(name, option, parameter) and parameter.name is not None:
            yield parameter.name, shared[option]


def _stronger(command: str, option: str) -> str | None:
    """The variable that overrides the file, or None."""
    names = [variable(command, option)] if command else []
    names += [variable(option)] if option in SHARED_OPTIONS else []
    return next((name for name in names if os.environ.get(name)), None)


def _variables(group: click.Group) -> dict[str, str]:
    """All variables of options, with the names of the options."""
    targets: dict[str, str] = {}
    for name, command in group.commands.items():
        for option, parameter in options(command):
            for known in parameter.envvar or ():
                shared = known == variable(option)
                targets[known] = option if shared else f"{name}.{option}"
    return targets


def _refusal(parameter: click.Option, value: Any) -> str | None:
    """Why an option rejects ``value``; None if it accepts it."""
    name = flag(parameter)
    if name in NOT_IN_FILES:
        return NOT_IN_FILES[name]
    if not parameter.multiple:
        return _refused(parameter, value)
    if not isinstance(value, list):
        return "must be a list, in brackets"
    return next((why for each in value if (why := _refused(parameter, each))), None)


def _refused(parameter: click.Option, value: Any) -> str | None:
    kind = parameter.type
    for classes, types, words in KINDS:
        if isinstance(kind, classes):
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                return f"must be {words}"
            break
    if isinstance(kind, (click.Choice, click.IntRange, click.FloatRange, CodeType)):
        try:
            kind.convert(value, parameter, None)
        except click.BadParameter as error:
            return f"is refused: {error.message.rstrip('.')}"
    return None


KINDS: list[tuple[type | tuple[type, ...], tuple[type, ...], str]] = [
    (type(click.BOOL), (bool,), "true or false, without quotes"),
    (type(click.INT), (int,), "a whole number, without quotes"),
    (type(click.FLOAT), (int, float), "a number, without quotes"),
    (click.ParamType, (str,), "a text, in quotes"),
]
