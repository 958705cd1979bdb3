"""Commands in processes that can be killed, forked from one that has imported what they need.

The imports take longer than all that such a command does in a test. The first one imports; it has no threads to copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

from boc.cli import main

IMPORTED = [
    "boc.indexes.build", "boc.inputs.extraction", "encoders.regions.grid", "encoders.tern", "encoders.training.train",
    "indexing.file", "transformers.models.bert.modeling_bert",
]  # fmt: skip


def start(arguments: Sequence[object]) -> BaseProcess:
    """A process that runs the command line, and says nothing. ``join`` waits for it, ``exitcode`` is its status."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=_run, args=([str(argument) for argument in arguments],))
    process.start()
    return process


def _run(arguments: list[str]) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(silence, output)
    main(arguments)
