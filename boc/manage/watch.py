"""Keep an index in line with its pictures: sync it whenever files change."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boc.errors import BocError, needing
from boc.manage.build import PLACE
from boc.manage.index_sources import paths_of
from boc.manage.sync import SyncReport, sync_index
from boc.search.searcher import Searcher


@dataclass(frozen=True)
class Pace:
    """Waiting times of a watch.

    A sync starts ``quiet`` ms after the last change, and at most ``longest`` ms after the first
    change. Every ``look`` ms the watch checks whether the folders are still the same. A failed sync
    is repeated after ``again`` seconds. After ``every`` seconds without a change everything is
    compared, since network disks report no changes.
    """

    quiet: int = 300
    longest: int = 2000
    look: int = 1000
    again: float = 5.0
    every: float = 600.0


def watch(
    name: str,
    source: Path | str | Sequence[Path | str],
    notify: Callable[[SyncReport | BocError], None],
    *,
    at: str = PLACE,
    encoder: str | None = None,
    device: str = "auto",
    images: Path | None = None,
    keep_missing: bool | None = None,
    stop: Callable[[], bool] = lambda: False,
    pace: Pace = Pace(),
    **options: Any,
) -> None:
    """Sync the index ``name`` now and whenever files of ``source`` change, until ``stop()``, which
    is called at each look, returns True.

    ``notify`` gets the report of the first sync, and of each sync that did something or that finds
    a different set of folders missing. It also gets each error once, for example for a disk that is
    not mounted; after an error nothing is removed, and the sync is repeated.

    The other parameters and ``options`` are as in ``sync_index``. Raises BocError if the package
    watchfiles is not installed, or if the index does not exist.
    """
    paths = paths_of(source)
    searcher = Searcher.open(name, at, encoder=encoder, device=device)
    error = ""
    away = None
    moments = Moments([*paths, *([images] if images else [])], stop, pace, some=bool(keep_missing))
    for _ in moments:
        try:
            searcher = searcher.renew()
            report = sync_index(
                name,
                paths,
                at=at,
                images=images,
                keep_missing=keep_missing,
                searcher=searcher,
                **options,
            )
        except BocError as failure:
            if str(failure) != error:
                notify(failure)
            error = str(failure)
            moments.patience = pace.again
        else:
            if error or report.failed or report.away != away or not report.up_to_date:
                notify(report)
            error = ""
            away = report.away
            moments.patience = pace.every


@dataclass
class Moments:
    """Times for a sync: at the start, after each change, and when ``patience`` seconds have passed.

    While a place is missing, a sync is due every second. With ``some``, this applies only while all
    places are missing.
    """

    places: Sequence[Path]
    stop: Callable[[], bool]
    pace: Pace = Pace()
    some: bool = False
    patience: float = Pace.every

    def __iter__(self) -> Iterator[None]:
        looked = -self.patience
        enough = any if self.some else all
        while not self.stop():
            marks = _marks(self.places)
            if not enough(mark is not None for mark in marks):
                yield
                time.sleep(self.pace.look / 1000)
                continue
            for changes in self._changes():
                late = time.monotonic() - looked > self.patience
                if changes or late or _marks(self.places) != marks:
                    looked = time.monotonic()
                    yield
                if self.stop() or _marks(self.places) != marks:
                    break  # a disk was mounted or unmounted: watch the folder there now

    def _changes(self) -> Iterator[Collection[object]]:
        """Yield sets of changed files; an empty set if nothing changes for a while."""
        with needing("watching", "watch"):
            import watchfiles
        roots = {_root(place) for place in self.places if place.exists()}
        try:
            yield from watchfiles.watch(
                *roots,
                watch_filter=None,
                debounce=self.pace.longest,
                step=self.pace.quiet,
                rust_timeout=self.pace.look,
                yield_on_timeout=True,
            )
        except OSError as error:
            raise BocError(
                f"the folders cannot be watched ({error}); set WATCHFILES_FORCE_POLLING=1 to check "
                "all files repeatedly, or allow more watches (fs.inotify.max_user_watches)",
            ) from error


def _marks(places: Sequence[Path]) -> list[tuple[object, ...] | None]:
    """Return values that identify the files and folders at these paths, and the mounts below them;
    None for a missing path. A different mount at a path changes its value."""
    marks = []
    table = Path("/proc/self/mountinfo")  # exists on Linux
    mounts = table.read_text(errors="replace").splitlines() if table.exists() else []
    for place in places:
        try:
            at = _root(place).stat()
            below = f"{_root(place).resolve()}/".replace(" ", "\\040")
            mark = (at.st_dev, at.st_ino, *(line for line in mounts if below in line))
            marks.append(mark if place.exists() else None)
        except OSError:
            marks.append(None)
    return marks


def _root(place: Path) -> Path:
    """Return the folder that contains a file; return a folder unchanged."""
    return place if place.is_dir() else place.parent
