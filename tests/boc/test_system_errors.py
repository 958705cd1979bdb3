"""Errors of the operating system are told as what they are: never as damage, and never as a
traceback."""

import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from boc.atomic_files import file_lock, replacing, sole_writer, sync
from boc.errors import ADVICE, BackendError, BocError, advice, check_system
from boc.web.settings import default_cache
from indexing.embedded import fs
from indexing.embedded.npy_files import load_array, load_strings
from tests.helpers import boc, run

NUMBERS = sorted(ADVICE)
UNDAMAGED = "rebuild the index"


@pytest.mark.parametrize("number", NUMBERS)
def test_each_is_told_with_its_own_advice(number: int):
    error = OSError(number, os.strerror(number))
    with pytest.raises(
        BackendError,
        match=os.strerror(number),
    ) as caught:
        check_system("f", error, BackendError)
    assert advice(error) in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("odd"),
        FileNotFoundError(errno.ENOENT, "no"),
        OSError("no number"),
    ],
)
def test_check_system_ignores_other_errors(error: Exception):
    check_system("f", error)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "command",
    ["info photos", "search photos hello", "verify photos", "delete photos 000.png"],
)
def test_system_errors_are_not_damage(
    library: Path,
    monkeypatch,
    number: int,
    command: str,
):
    opening = Path.open

    def failing(self, *given, **options):
        if "index" in self.parts and self.suffix in (".npy", ".bin", ".json"):
            raise OSError(
                number,
                os.strerror(number),
                str(self),
            )
        return opening(self, *given, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", failing)
    result = boc(*command.split(), "--at", f"file:{library / 'index'}")
    assert result.exit_code == 1
    assert os.strerror(number) in result.stderr
    assert UNDAMAGED not in result.stderr
    assert "damaged" not in result.stderr


@pytest.mark.parametrize(
    "load",
    [load_array, lambda path: load_strings(path.parent, "a")],
)
def test_a_file_that_is_gone_is_damage(tmp_path: Path, load: Callable[[Path], object]):
    with pytest.raises(BocError, match=UNDAMAGED):
        load(tmp_path / "a.npy")


@pytest.mark.slow
def test_limit_of_open_files(library: Path):
    code = (
        "import resource, sys; import boc.search.searcher, indexing.file, h5py; from boc.cli "
        "import main;n = "
        "len(__import__('os').listdir('/proc/self/fd'));resource.setrlimit(resource.RLIMIT_NOFILE, "
        f"(n, n));main(['info', 'photos', '--at', 'file:{library / 'index'}'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "ulimit -n" in done.stderr
    assert "damaged" not in done.stderr
    assert "Traceback" not in done.stderr


def save_closed(path: Path) -> None:
    save_file({"a": np.zeros(1)}, path)


@pytest.mark.parametrize(
    "mask",
    [0o022, 0o077, 0o002],
)
@pytest.mark.parametrize(
    "write",
    [Path.touch, save_closed],
)
def test_file_mode_follows_umask(tmp_path: Path, write: Callable[[Path], None], mask: int):
    before = os.umask(mask)
    try:
        with replacing(tmp_path / "a") as temporary:
            write(temporary)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~mask


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/dev/full").exists(),
    reason="no /dev/full here",
)
def test_full_output_is_one_line(library: Path):
    command = [sys.executable, "-c", "from boc.cli import main; main()", "info", "photos"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--at", f"file:{library / 'index'}"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode
    assert "Traceback" not in done.stderr
    assert os.strerror(errno.ENOSPC) in done.stderr


def test_a_user_without_a_home_has_a_cache(monkeypatch):
    def homeless(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert default_cache().is_absolute()


@pytest.mark.parametrize(
    "command",
    [
        ("search", "photos"),
        ("search", "photos", "--like"),
        ("explain", "photos", "hello"),
        ("delete", "photos"),
    ],
)
def test_arguments_are_utf8(library: Path, command: tuple[str, ...]):
    result = boc(
        *command,
        b"caf\xe9".decode(errors="surrogateescape"),
        "--at",
        f"file:{library / 'index'}",
    )
    assert result.exit_code in (1, 2)
    assert "not valid UTF-8" in result.stderr or re.search(
        r"no item '?caf\\+xe9",
        result.stderr,
    )


def test_delete_writes_no_codec(
    library: Path,
    tmp_path: Path,
    monkeypatch,
):
    at = f"--at=file:{tmp_path}"
    assert (
        boc(
            f"index x {library}/photos.h5 {at}",
        ).exit_code
        == 0
    )
    creating = fs.create

    def full(path):
        if path.stat().st_size if path.exists() else "codec" in path.name:
            raise BackendError("no room")
        return creating(path)

    monkeypatch.setattr(fs, "create", full)
    run(f"delete x 000.png {at}")
    assert boc(f"compact x {at}").exit_code == 0
    assert boc(f"verify x {at}").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit",
    [0, 100, 10_000],
)
def test_unwritable_index_leaves_nothing(library: Path, tmp_path: Path, limit: int):
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from boc.cli "
        f"import main;resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));main(['index', "
        f"'x', '{library / 'photos.h5'}', '--at', 'file:{tmp_path / 'at'}'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.search(
        "cannot be written|No usable temporary directory",
        done.stderr,
    )  # joblib may be the first to write
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("at/*"))


def test_a_folder_may_have_no_sync_of_its_own(
    tmp_path: Path,
    monkeypatch,
):
    (tmp_path / "file").touch()
    for number in (errno.EINVAL, errno.ENOTSUP, errno.EIO, errno.ENOSPC):

        def refuse(descriptor, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match=os.strerror(number)):
            sync(tmp_path / "file")
        if number in (errno.EINVAL, errno.ENOTSUP):
            sync(tmp_path)
        else:
            with pytest.raises(OSError, match=os.strerror(number)):
                sync(tmp_path)


def refuse_locks(monkeypatch, number: int) -> None:
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_disk_without_locks_is_not_written_to(
    tmp_path: Path,
    monkeypatch,
    number: int,
):
    refuse_locks(monkeypatch, number)
    reason = os.strerror(number)
    rule = rf"{tmp_path}(/new)?: this disk does not support file locks \({reason}\).* local disk"
    with pytest.raises(BocError, match=rule), replacing(tmp_path / "file"):
        pass
    with pytest.raises(BocError, match=rule), file_lock(tmp_path / "lock", "it is"):
        pass
    with pytest.raises(BocError, match=rule), sole_writer(tmp_path / "new"):
        pass
    assert not list(tmp_path.iterdir())


def test_other_errors_of_locks_stay(tmp_path: Path, monkeypatch):
    refuse_locks(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"), file_lock(tmp_path / "lock", "it is"):
        pass


def test_an_index_on_a_disk_without_locks_is_searched(
    library: Path,
    tmp_path: Path,
    monkeypatch,
):
    at = f"file:{library / 'index'}"
    refuse_locks(monkeypatch, errno.ENOLCK)
    run(f'search photos "a red box" --at {at}')
    run(f"info photos --at {at}")
    told = boc(f"delete photos 000.png --at {at}")
    assert (told.exit_code, "does not support file locks (No locks available)" in told.stderr) == (
        1,
        True,
    )
