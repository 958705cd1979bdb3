"""The modules in C, all optional: without a compiler boc installs all the same, and numpy does their work."""

import sys
from pathlib import Path

from setuptools import Extension, setup

FLAGS = [] if sys.platform == "win32" else ["-O3", "-funroll-loops"]
SOURCES = {"indexing._kernel": "indexing/_kernel.c", "boc._dots": "boc/_dots.c"}

setup(
    ext_modules=[
        Extension(name, [source], extra_compile_args=FLAGS, optional=True)
        for name, source in SOURCES.items()
        if Path(source).is_file()
    ]
)
