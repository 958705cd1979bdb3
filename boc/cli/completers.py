"""Shell completion: candidates are looked up in folders, without loading heavy libraries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from boc.models import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
SCHEMES = ("file:", "elastic+https://", "elastic+http://", "opensearch+https://", "opensearch+http://")


def names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of embedded indexes: folders with a file CURRENT. Servers are not queried."""
    at = str(context.params.get("at") or "")
    if not at.startswith("file:"):
        return []
    try:
        folders = Path(at.removeprefix("file:")).expanduser().glob("*/CURRENT")
        return sorted(path.parent.name for path in folders if path.parent.name.startswith(incomplete))
    except (OSError, RuntimeError):  # not readable, or unknown user after ~
        return []


def at(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Schemes of addresses; after file:, folders."""
    return _continued(SCHEMES, incomplete)


def encoder(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Kinds of encoders, and short names; after a kind, folders."""
    return _continued([*CATALOGUE, *(f"{kind}:" for kind in _modules("encoders"))], incomplete)


def models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Short names of models."""
    return [name for name in CATALOGUE if name.startswith(incomplete)]


def regions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Kinds of region sources; after a kind, folders."""
    return _continued([kind if kind == "grid" else f"{kind}:" for kind in _modules("encoders/regions")], incomplete)


def _modules(folder: str) -> list[str]:
    try:
        return sorted(path.stem for path in (ROOT / folder).glob("[!_]*.py"))
    except OSError:
        return []


def _continued(beginnings: tuple[str, ...] | list[str], incomplete: str) -> list[str]:
    kind, colon, place = incomplete.partition(":")
    if colon and f"{kind}:" in beginnings:
        return [f"{kind}:{folder}/" for folder in _folders(place)]
    return [each for each in beginnings if each.startswith(incomplete)]


def _folders(incomplete: str) -> Iterator[str]:
    """Folders whose path begins with what was typed."""
    above, slash, name = incomplete.rpartition("/")
    try:
        places = sorted(Path(f"{above}{slash}").expanduser().iterdir())
        for path in places:
            if path.name.startswith(name) and path.is_dir() and (name or not path.name.startswith(".")):
                yield f"{above}{slash}{path.name}"
    except (OSError, RuntimeError):
        return


class Bash(BashComplete):
    """Completion by click, extended to words with colons and equals signs, like ``--at=file:DIR``.

    Bash splits such a word at these signs and completes its last part. So the line is parsed here, and the answer
    leaves out everything before the last sign.
    """

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    response=$(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_WORDS="${COMP_WORDS[*]}" \
COMP_CWORD="$COMP_CWORD" BOC_WORDBREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1")
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain)
                COMPREPLY+=("$value")
                case $value in *[:/]) compopt -o nospace ;; esac ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        if "COMP_LINE" not in os.environ:
            return super().get_completion_args()
        line = os.environ["COMP_LINE"].encode()[: int(os.environ["COMP_POINT"])].decode(errors="ignore")
        words = split_arg_string(line)
        last = "" if not line or line[-1].isspace() else words.pop()
        return words[1:], last

    def format_completion(self, item: CompletionItem[Any]) -> str:
        _, typed = self.get_completion_args()
        if typed.startswith("--"):
            typed = typed.partition("=")[2]  # only the value is completed
        signs = "".join(sign for sign in ":=" if sign in os.environ.get("BOC_WORDBREAKS", ""))
        before = re.match(f".*[{signs}]", typed) if signs else None
        return f"{item.type},{item.value.removeprefix(before[0]) if before else item.value}"


add_completion_class(Bash)
