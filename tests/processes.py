"""Commands in processes that can be killed, forked from one that has imported what they need.

The imports take longer than all that such a command does in a test. The first one imports; it has
no threads to copy.
"""

import os
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from boc.cli import main, options

IMPORTED = [
    "boc.manage.build",
    "boc.inputs.extraction",
    "boc.web.app",
    "boc.web.http.server",
    "encoders.regions.grid",
    "encoders.tern",
    "encoders.training.train",
    "indexing.file",
    "transformers.models.bert.modeling_bert",
]
NOWHERE = Path(os.devnull)


def start(
    arguments: Sequence[object],
    output: Path = NOWHERE,
    errors: Path = NOWHERE,
    **environment: str,
) -> BaseProcess:
    """A process that runs the command line, with its stdout and stderr in files.

    ``join`` waits for it, ``exitcode`` is its status. Give ``environment`` what only it should see.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(
        target=_run,
        args=([*map(str, arguments)], output, errors, environment),
    )
    process.start()
    return process


def _run(arguments: list[str], output: Path, errors: Path, environment: dict[str, str]) -> None:
    for file, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), file)
    os.environ.update(environment)
    sys.stdin = None  # type: ignore[assignment]  # uvicorn hands it on to its workers
    options.write_onnx = lambda folder, **_: None  # it takes longer than all else
    main(arguments)
