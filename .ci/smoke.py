"""An installed boc has its modules in C, and makes, checks and searches an index. From the root of
the repository."""

import importlib
import os
import re
import tempfile
from pathlib import Path

from boc.cli import main

MODULES = ("boc.clustering._nearest", "boc.rerank._rescore")
ENGINE = ("indexing.embedded._search",)
AT = ("--at", "file:index")

page = Path("docs/howto/own-vectors.md").read_text(encoding="utf-8")
(snippet, *_) = re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M)
for module in (*MODULES, *ENGINE):
    importlib.import_module(module)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    exec(compile(snippet, "docs/howto/own-vectors.md", "exec"))  # writes vectors and sentences
    for command in (
        ("--version",),
        ("index", "mine", "images.npy", "captions.npy", *AT),
        ("verify", "mine", *AT),
        ("search", "mine", "--like", "7", "--find", "image", "-k", "3", *AT),
    ):
        main(command, standalone_mode=False)
    os.chdir("/")
