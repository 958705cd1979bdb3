"""The modules in C, all optional: without a compiler boc installs all the same, and numpy does their work."""

import sys
from pathlib import Path

from setuptools import Extension, setup

# Not contracted, or sums would be rounded otherwise where processors multiply and add in one.
FLAGS = [] if sys.platform == "win32" else ["-O3", "-funroll-loops", "-ffp-contract=off"]
MODULES = ("boc._dots", "boc._instances", "indexing.embedded._topk", "indexing.embedded._strings")
SOURCES = {name: f"{name.replace('.', '/')}.c" for name in MODULES}

setup(
    ext_modules=[
        Extension(name, [source], extra_compile_args=FLAGS, optional=True)
        for name, source in SOURCES.items()
        if Path(source).is_file()
    ]
)
