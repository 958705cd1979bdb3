"""The modules in C, all optional: without a compiler boc installs all the same, and numpy does
their work."""

import os
import platform
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

# Not contracted, or sums would be rounded otherwise where processors multiply and add in one.
FLAGS = ["-O3", "-funroll-loops", "-ffp-contract=off"]
LINKED: list[str] = []
if os.environ.get("BOC_SANITIZE"):  # of make sanitize
    LINKED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-ffp-contract=off", *LINKED]
MODULES = ("boc.clustering._nearest", "boc.rerank._rescore", "indexing.embedded._search")
HEADERS = sorted(map(str, [*Path("boc").rglob("*.h"), *Path("indexing").rglob("*.h")]))
SOURCES = {name: f"{name.replace('.', '/')}.c" for name in MODULES}

# One wheel is for all Pythons from 3.11, whose stable interface is the first with buffers. Modules
# built in place are of one Python: it would prefer those that an earlier build left beside them.
STABLE = (
    "bdist_wheel" in sys.argv
    and platform.python_implementation() == "CPython"
    and sys.version_info >= (3, 11)
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
MACROS = [("Py_LIMITED_API", "0x030B0000")] if STABLE else []

setup(
    ext_modules=[
        Extension(
            name,
            [source],
            define_macros=MACROS,
            py_limited_api=STABLE,
            extra_compile_args=FLAGS,
            extra_link_args=LINKED,
            depends=HEADERS,
            optional=not LINKED,
        )
        for name, source in SOURCES.items()
        if Path(source).is_file()
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
