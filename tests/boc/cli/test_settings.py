"""Settings: which source is stronger, what a file may say, and what a wrong one is answered
with."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st

from boc.cli import main, settings
from tests.helpers import boc, run

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("here")
OPTIONS = [
    (name, key, p)
    for name, command in main.commands.items()
    for key, p in settings.settable(command).items()
]
anywhere = hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def parameters(command: str, *arguments: str) -> dict[str, Any]:
    """The parameters that a command would be called with."""
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            main.commands[command],
            "callback",
            lambda **given: seen.update(given),
        )
        result = CliRunner().invoke(
            main,
            [command, *arguments],
        )
    assert result.exit_code == 0, result.output
    return seen


def write(text: str, path: Path | str = "boc.toml") -> None:
    Path(path).parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    Path(path).write_text(text, encoding="utf-8")


SOURCES = ("shared key", "own key", "variable", "flag")  # weakest first


@anywhere
@given(
    given=st.sets(st.sampled_from(SOURCES)),
)
def test_the_strongest_source_counts(given: set[str]):
    with pytest.MonkeyPatch.context() as patch:
        lines = ['at = "file:shared key"'] if "shared key" in given else []
        lines += ["[info]", 'at = "file:own key"'] if "own key" in given else []
        write("\n".join(lines))
        if "variable" in given:
            patch.setenv("BOC_AT", "file:variable")
        at = parameters(
            "info",
            *(["--at", "file:flag"] if "flag" in given else []),
        )["at"]
    assert at == f"file:{max(given, key=SOURCES.index, default='boc-data')}"


def sample(parameter: click.Option) -> Any:
    """A value that an option takes, and that is not its default."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        value = next(each for each in kind.choices if each != parameter.default)
    elif isinstance(kind, (click.IntRange, click.FloatRange)):
        value = 7 if kind.max is None or kind.max > 7 else kind.max
    else:
        kinds = {
            "boolean": True,
            "integer": 7,
            "float": 0.75,
            "CODE": "dictionary:2/32",
        }
        value = "seed=1" if parameter.name == "settings" else kinds.get(kind.name, "word")
    return ["workers=1" if parameter.callback else value] if parameter.multiple else value


@pytest.mark.parametrize(
    ("command", "key", "option"),
    OPTIONS,
    ids=[f"{name}-{key}" for name, key, _ in OPTIONS],
)
def test_the_file_equals_the_flag(command: str, key: str, option: click.Option):
    def effective(arguments):
        parent = click.Context(
            main,
            info_name="boc",
            default_map=settings.defaults(main),
        )
        context = main.commands[command].make_context(
            command,
            arguments,
            parent=parent,
            resilient_parsing=True,
        )
        return context.params[str(option.name)] if option.expose_value else dict(context.meta)

    value = sample(option)
    single = value[0] if isinstance(value, list) else value
    typed = max(option.opts, key=len)
    flag = effective([typed] if single is True else [typed, str(single)])
    write(f"[{command}]\n{key} = {json.dumps(value)}\n")
    assert effective([]) == flag


def test_what_is_done_once_is_no_setting():
    for command, option in (("delete", "all"), ("index", "replace")):
        write(f"[{command}]\n{option} = true")
        assert f"unknown '{option}' in [{command}]" in boc("info").stderr
    write("")
    assert parameters("delete", "photos", "1.jpg")["everything"] is False


def test_search_ignores_the_shared_encoder(monkeypatch):
    write('encoder = "tern:shared"')
    monkeypatch.setenv("BOC_ENCODER", "tern:variable")
    assert parameters("search", "photos", "a dog")["encoder"] is None
    assert parameters("extract", "photos", "-o", "photos.h5")["encoder"] == "tern:variable"
    write('[search]\nencoder = "tern:own"')
    assert parameters("search", "photos", "a dog")["encoder"] == "tern:own"


def test_regions_option_overrides_encoder_variable(monkeypatch):
    monkeypatch.setenv("BOC_ENCODER", "tern:set")
    alone = boc("extract none -o x.h5 --regions grid")
    assert "no such file or folder" in alone.stderr
    both = boc(
        "extract none -o x.h5 --regions grid --encoder tern:typed",
    )
    assert "give either --encoder" in both.stderr


def test_variables_that_are_empty_say_nothing(monkeypatch):
    for name in ("BOC_AT", "BOC_CONFIG"):
        monkeypatch.setenv(name, "")
    assert parameters("search", "photos", "a dog")["at"] == "file:boc-data"


def test_one_file_counts_the_nearest(tmp_path: Path, monkeypatch):
    assert settings.read() == (None, {})
    for path, name in (
        (tmp_path / "user" / "boc" / "boc.toml", "user"),
        (Path("boc.toml"), "here"),
        (tmp_path / "named.toml", "named"),
    ):
        write(f'at = "file:{name}"', path)
        if name == "named":
            monkeypatch.setenv("BOC_CONFIG", str(path))
        assert settings.read()[0] == path
        assert parameters("info")["at"] == f"file:{name}"
    write("[search]\nk = 3", "boc.toml")
    monkeypatch.setenv("BOC_CONFIG", "")
    assert parameters("info")["at"] == "file:boc-data"  # files are not mixed
    write("this is no TOML")
    monkeypatch.setenv("BOC_CONFIG", "/dev/null")
    assert parameters("info")["at"] == "file:boc-data"


SECRET = "pa:ss/w@rd"
# A file, and words of the error.
WRONG = {
    "kk = 3": ["unknown 'kk'", "known: at, encoder, device"],
    "att = 'file:x'": ["did you mean at?"],
    "[search]\nkk = 3": ["unknown 'kk' in [search]", "did you mean k?", "find"],
    "[search]\nk = 'many'": ["'many' is not a valid integer"],
    "[index]\ncode = 'scalar:0'": ["at least 1"],
    "[search.more]\nx = 1": ["unknown 'more' in [search]"],
    "k = many": ["is not valid TOML", "line 1", "docs/reference/configuration.md"],
    f"password = '{SECRET}'": ["password contains a secret", "BOC_PASSWORD"],
    f"[search]\napi_key = '{SECRET}'": ["api_key in [search] contains a secret", "BOC_API_KEY"],
    f"at = 'elastic+https://me:{SECRET}@host:9200'": ["at contains a secret", "BOC_PASSWORD"],
    f"[info]\nat = 'opensearch+http://:{SECRET}@host'": ["at in [info]", "BOC_PASSWORD"],
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_answered_with_one_line(text: str):
    write(text)
    commands = {
        "[index]": ("index", "photos", "photos.h5"),
        "[extract]": ("extract", "photos", "-o", "photos.h5"),
    }
    command = commands.get(
        text.partition("\n")[0],
        ("search", "photos", "a dog"),
    )
    result = boc(*command)
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    for word in WRONG[text]:
        assert word in result.stderr.splitlines()[-1]
    for secret in (SECRET, "w@rd", "ss/w"):
        assert secret not in result.stderr


def test_files_that_cannot_be_read_are_named(
    monkeypatch,
    tmp_path: Path,
):
    (tmp_path / "latin.toml").write_bytes('at = "file:caf\xe9"'.encode("latin-1"))
    for name, word in (
        ("latin.toml", "UTF-8"),
        ("none.toml", "BOC_CONFIG names"),
        ("", "cannot be read"),
    ):
        monkeypatch.setenv("BOC_CONFIG", str(tmp_path / name))
        result = boc("info")
        assert result.exit_code == 1
        assert word in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_wrong_file_does_not_stop_help():
    write("wrong")
    for arguments in (
        ["--help"],
        ["search", "--help"],
        ["--version"],
    ):
        run(*arguments)
    assert boc("info").exit_code == 1


@anywhere
@given(
    password=st.text(
        st.characters(
            codec="utf-8",
            exclude_categories=["Cc", "Cs"],
        ),
        min_size=1,
        max_size=12,
    ),
    user=st.sampled_from(["", "me"]),
)
def test_password_in_an_address_is_recognised(password: str, user: str):
    assert settings.PASSWORD.search(f"elastic+https://{user}:{password}@host:9200?shards=2")
    for address in (
        "file:a:b@c",
        "elastic+https://host:9200",
        "elastic+https://me@host:9200,other:9200/x?ca_certs=a",
    ):
        assert not settings.PASSWORD.search(address)


def test_documented_settings_exist():
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(
        encoding="utf-8",
    )
    files = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert files
    for text in files:
        write(text)
        assert settings.defaults(main)
    known = {"BOC_CONFIG", "BOC_HEADERS", *settings.SECRETS.values()}
    known |= {*(f"BOC_{key.upper()}" for key in settings.SHARED)}
    assert set(re.findall(r"\bBOC_[A-Z_]+[A-Z]\b", page)) <= known
