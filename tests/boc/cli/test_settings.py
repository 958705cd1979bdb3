"""Settings: which source is stronger, what a file may say, and how a wrong one is told."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from boc.cli import config, main, settings
from boc.cli.config import ConfigError
from tests.helpers import boc

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("here")

OPTIONS = [(name, option, p) for name, c in main.commands.items() for option, p in settings.options(c)]


def taken(command: str, *arguments: str, group: click.Group = main) -> dict[str, Any]:
    """The parameters that a command would be called with."""
    seen: dict[str, Any] = {}
    callback = group.commands[command].callback
    group.commands[command].callback = lambda **given: seen.update(given)
    try:
        result = CliRunner().invoke(group, [command, *arguments])
    finally:
        group.commands[command].callback = callback
    assert result.exit_code == 0, result.output
    return seen


def write(text: str, path: Path | str = "boc.toml") -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
    return Path(path)


SOURCES = ("shared key", "own key", "shared variable", "own variable", "flag")  # weakest first


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=st.sets(st.sampled_from(SOURCES)))
def test_the_strongest_source_counts(given: set[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines = ['at = "file:shared key"'] if "shared key" in given else []
        lines += ["[info]", 'at = "file:own key"'] if "own key" in given else []
        write("\n".join(lines))
        for name, source in (("BOC_AT", "shared variable"), ("BOC_INFO_AT", "own variable")):
            if source in given:
                patch.setenv(name, f"file:{source}")
        found = taken("info", *(["--at", "file:flag"] if "flag" in given else []))["at"]
    strongest = max(given, key=SOURCES.index, default="boc-data")
    assert found == f"file:{strongest}"


def sample(parameter: click.Option) -> Any:
    """A value that an option takes, and that is not its default."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        value: Any = next(each for each in kind.choices if each != parameter.default)
    elif isinstance(kind, (click.IntRange, click.FloatRange)):
        value = 7 if kind.max is None or kind.max > 7 else kind.max
    else:
        value = {"boolean": True, "integer": 7, "float": 0.75, "CODE": "dictionary:2/32"}.get(kind.name, "word")
    return [value] if parameter.multiple else value


def effective(command: str, parameter: click.Option, arguments: list[str], defaults: dict[str, Any]) -> Any:
    parent = click.Context(main, info_name="boc", default_map=defaults)
    context = main.commands[command].make_context(command, arguments, parent=parent, resilient_parsing=True)
    found = context.params[parameter.name]
    if isinstance(parameter.type, click.File):
        found.close()
    return found


@pytest.mark.parametrize(("command", "option", "parameter"), OPTIONS, ids=[f"{c}-{o}" for c, o, _ in OPTIONS])
def test_file_and_environment_say_the_same_as_the_flag(
    command: str, option: str, parameter: click.Option, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if isinstance(parameter.type, click.File):
        write("sentence", "word")
    value = sample(parameter)
    single = value[0] if isinstance(value, list) else value
    typed = max(parameter.opts, key=len)
    flag = effective(command, parameter, [typed] if single is True else [typed, str(single)], {})
    monkeypatch.setenv(settings.variable(command, option), str(single))
    by_variable = effective(command, parameter, [], {})
    monkeypatch.delenv(settings.variable(command, option))
    assert str(by_variable) == str(flag)  # of an open file: its name
    if option in (*settings.NOT_IN_FILES, "token"):
        return
    write(f"[{command}]\n{option} = {json.dumps(value)}\n")
    by_file = effective(command, parameter, [], settings.defaults(main))
    assert str(by_file) == str(flag)


def test_what_is_done_once_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for command, option in (("delete", "all"), ("index", "replace"), ("convert", "replace")):
        monkeypatch.setenv(settings.variable(command, option), "1")
        with pytest.raises(ConfigError, match=f"no option '{option}'"):
            config.read(write(f"[{command}]\n{option} = true"), settings.rules(main))
    write("")
    assert taken("delete", "photos", "1.jpg")["everything"] is False
    assert taken("index", "photos", "photos.h5")["replace"] is False


def test_an_index_knows_its_encoder_and_is_not_asked_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    write('encoder = "tern:shared"')
    monkeypatch.setenv("BOC_ENCODER", "tern:variable")
    assert taken("search", "photos", "a dog")["encoder"] is None
    assert taken("extract", "photos", "-o", "photos.h5")["encoder"] == "tern:variable"
    write('[search]\nencoder = "tern:own"')
    assert taken("search", "photos", "a dog")["encoder"] == "tern:own"


def test_regions_that_are_asked_for_are_stronger_than_an_encoder_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOC_ENCODER", "tern:set")
    alone = boc("extract", "none", "-o", "x.h5", "--regions", "grid")
    assert "no such file or folder" in alone.stderr
    both = boc("extract", "none", "-o", "x.h5", "--regions", "grid", "--encoder", "tern:typed")
    assert "give either --encoder" in both.stderr


def test_variables_that_are_empty_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BOC_AT", "BOC_SEARCH_K", "BOC_SEARCH_JSON", "BOC_CONFIG"):
        monkeypatch.setenv(name, "")
    found = taken("search", "photos", "a dog")
    assert (found["at"], found["k"], found["as_json"]) == ("file:boc-data", 10, False)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOC_SEARCH_K", "many")
    result = boc("search", "photos", "a dog")
    assert result.exit_code == 2
    assert "BOC_SEARCH_K" in result.stderr or "'-k'" in result.stderr


def test_one_file_counts_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [
        (tmp_path / "user" / "boc" / "boc.toml", "user"),
        (Path("boc.toml"), "here"),
        (tmp_path / "named.toml", "named"),
    ]
    assert config.find() is None
    for path, name in places:
        write(f'at = "file:{name}"', path)
        if name == "named":
            monkeypatch.setenv("BOC_CONFIG", str(path))
        assert config.find() == path
        assert taken("info")["at"] == f"file:{name}"
    write("[search]\nk = 3", "boc.toml")
    monkeypatch.delenv("BOC_CONFIG")
    assert taken("info")["at"] == "file:boc-data"  # files are not mixed


def test_the_null_device_switches_settings_off(monkeypatch: pytest.MonkeyPatch) -> None:
    write("this is no TOML")
    monkeypatch.setenv("BOC_CONFIG", os.devnull)
    assert taken("info")["at"] == "file:boc-data"


def test_a_user_without_a_home_has_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", nobody)
    assert config.find() is None


SECRET = "pa:ss/w@rd"
# A file, and words that the one line about it must hold.
WRONG = {
    "kk = 3": ["'kk'", "known: at", "encoder", "device"],
    "k = 3": ["k", "[search]", "tune"],
    "att = 'file:x'": ["did you mean at?"],
    "[serch]\nk = 3": ["'serch'", "did you mean search?", "known:", "verify"],
    "[search]\nkk = 3": ["'kk'", "[search]", "did you mean k?", "find"],
    "[search]\nas_json = true": ["'as_json'", "json"],
    "[search]\nwords_weight = 3": ["'words_weight'", "did you mean words-weight?"],
    "[search]\nk = 'many'": ['k = "many"', "[search]", "whole number"],
    "[search]\nk = true": ["k = true", "whole number"],
    "[search]\nk = 2.5": ["k = 2.5", "whole number"],
    "[search]\nrm = '3'": ["rm", "a number"],
    "[search]\njson = 'yes'": ["json", "true or false"],
    "[search]\njson = 1": ["json", "true or false"],
    "[search]\nfind = 'video'": ["find", "video", "image", "text"],
    "[search]\nfilter = 'tag=x'": ["filter", "a list"],
    "[search]\nfilter = [3]": ["filter", "in quotes"],
    "[index]\ncode = 'scalar:0'": ['code = "scalar:0"', "at least 1"],
    "[index]\ncode = 'magic'": ["'magic'", "known: scalar"],
    "[index]\ncode = 3": ["code = 3", "in quotes"],
    "[index]\nrm = 0.5": ["rm = 0.5", "range"],
    "at = 3": ["at = 3", "in quotes"],
    "device = 'gpu'": ["gpu", "cuda"],
    "search = 3": ["'search'", "known"],
    "[at]\nx = 1": ["no command 'at'"],
    "[search.more]\nx = 1": ["'more'", "[search]"],
    "[[search]]\nk = 1": ["'search'"],
    "[evaluate]\nspice = 'rm -rf /'": ["no option 'spice'", "ndcg"],
    "k = many": ["is not TOML", "line 1", "docs/configuration.md"],
    "at = file:x": ["is not TOML", "in quotes"],
    f"password = '{SECRET}'": ["password", "BOC_PASSWORD"],
    f"[search]\napi_key = '{SECRET}'": ["api_key", "BOC_API_KEY"],
    f"token = '{SECRET}'": ["token", "BOC_TOKEN"],
    f"at = 'elastic+https://me:{SECRET}@host:9200'": ["at", "BOC_PASSWORD", "https://USER@HOST"],
    f"[info]\nat = 'opensearch+http://:{SECRET}@host'": ["at", "[info]", "BOC_PASSWORD"],
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_told_in_one_line(text: str) -> None:
    write(text)
    result = boc("search", "photos", "a dog")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    for word in ["boc.toml", *WRONG[text]]:
        assert word in result.stderr
    for secret in (SECRET, "w@rd", "ss/w"):
        assert secret not in result.stderr


def test_files_that_cannot_be_read_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes('at = "file:caf\xe9"'.encode("latin-1"))
    for name, word in (("latin.toml", "UTF-8"), ("none.toml", "BOC_CONFIG"), ("", "BOC_CONFIG")):
        monkeypatch.setenv("BOC_CONFIG", str(tmp_path / name))
        result = boc("info")
        assert result.exit_code == 1
        assert word in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_wrong_file_stops_neither_help_nor_doctor_nor_completion() -> None:
    write("wrong")
    for arguments in (["--help"], ["search", "--help"], ["--version"], ["completion", "zsh"]):
        result = boc(*arguments)
        assert result.exit_code == 0, result.output
    assert boc("info").exit_code == 1


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\\\"'\n\r\t"), min_size=1, max_size=12).filter(
    lambda name: name.isprintable()
)


@pytest.mark.slow
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.sampled_from(["", *main.commands]), name=NAMES)
def test_every_unknown_name_is_told_with_the_known_ones(command: str, name: str) -> None:
    rules = settings.rules(main)
    if name in rules[command] or name.replace("_", "-") in config.SECRETS or (not command and name in _owners(rules)):
        return
    path = write(f'{f"[{command}]" if command else ""}\n"{name}" = 1\n')
    with pytest.raises(ConfigError) as caught:
        config.read(path, rules)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in rules[command])


def _owners(rules: config.Rules) -> set[str]:
    return {option for known in rules.values() for option in known}


PASSWORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(password=PASSWORDS, user=st.sampled_from(["", "me"]), scheme=st.sampled_from(["elastic", "opensearch"]))
def test_a_password_in_an_address_is_seen_whatever_it_is_made_of(password: str, user: str, scheme: str) -> None:
    assert config.holds_password(f"{scheme}+https://{user}:{password}@host:9200?shards=2")


@pytest.mark.parametrize(
    "at",
    [
        "file:a:b@c",
        "elastic+https://host:9200",
        "elastic+https://me@host:9200,other:9200/x?ca_certs=a.pem",
        "x",
        "@",
        3,
    ],
)
def test_other_addresses_hold_none(at: object) -> None:
    assert not config.holds_password(at)


def test_origins_tell_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    write('at = "file:a"\n[search]\nk = 3\nfind = "text"\n[info]\nat = "file:b"')
    assert settings.places(main) == ["file:a", "file:b"]
    monkeypatch.setenv("BOC_SEARCH_K", "4")
    monkeypatch.setenv("BOC_AT", "elastic+https://me:secret@host")
    found = {origin.name: (origin.shown, origin.source) for origin in settings.origins(main)}
    assert found == {
        "search.find": ("text", "boc.toml"),
        "search.k": ("4", "BOC_SEARCH_K"),
        "at": ("(not shown)", "BOC_AT"),
    }


def test_a_variable_that_nobody_reads_is_told_with_the_one_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BOC_SERCH_K", "BOC_PASSWRD", "BOC_PASSWORD", "BOC_SEARCH_K", "BOC_SOMETHING_ELSE_ENTIRELY"):
        monkeypatch.setenv(name, "1")
    assert list(settings.misspelt(main)) == [("BOC_PASSWRD", "BOC_PASSWORD"), ("BOC_SERCH_K", "BOC_SEARCH_K")]


def test_no_two_options_have_the_same_variable() -> None:
    own = [settings.variable(command, option) for command, option, _ in OPTIONS]
    assert len(set(own)) == len(own)
    assert not set(own) & {"BOC_CONFIG", *config.SECRETS.values(), "BOC_AT", "BOC_ENCODER", "BOC_DEVICE"}


def tables() -> Iterator[str]:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    yield from re.findall(r"```toml\n(.*?)```", page, re.DOTALL)


def test_the_files_of_the_documentation_are_right() -> None:
    found = list(tables())
    assert found
    for text in found:
        assert config.read(write(text), settings.rules(main))


def test_the_variables_of_the_documentation_are_read() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    known = {name for _, _, parameter in OPTIONS for name in parameter.envvar or ()}
    named = set(re.findall(r"\bBOC_[A-Z_]+[A-Z]\b", page))
    assert named <= known | {"BOC_CONFIG", "BOC_MODELS", *config.SECRETS.values()}
    assert len(named) > 6
