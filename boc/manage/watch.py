"""Keep an index up to date with its pictures by syncing it whenever files change."""

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
    """Wait times of a watch.

    A sync starts ``quiet`` ms after the last change, and at most ``longest`` ms after the first
    change. Every ``look`` ms, the watch checks whether a folder has been mounted, unmounted or
    replaced. A failed sync is retried after ``again`` seconds. After ``every`` seconds without a
    change, all files are compared, because network disks do not report changes.
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
    """Sync the index ``name`` now, and then whenever files in ``source`` change, until ``stop()``
    returns True.

    ``notify`` receives the report of the first sync, and of each later sync that changed the index
    or found that other folders are missing. ``notify`` also receives each error once, for example
    if a disk is not mounted. After an error, no items are removed, and the sync is retried.
    ``stop`` is called every ``pace.look`` ms.

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
    """Moments at which a sync is due: at the start, after each change, and after ``patience``
    seconds without a change.

    While a path is missing, a sync is due every ``pace.look`` ms. With ``some``, this applies only
    while all paths are missing.
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
                    break  # A disk was mounted or unmounted, so watch the folders again.

    def _changes(self) -> Iterator[Collection[object]]:
        """Yield sets of changed files, and an empty set whenever no file has changed for a
        while."""
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
                f"the folders cannot be watched ({error}); set WATCHFILES_FORCE_POLLING=1 to poll "
                "all files instead, or raise the limit fs.inotify.max_user_watches",
            ) from error


def _marks(places: Sequence[Path]) -> list[tuple[object, ...] | None]:
    """Return, for each path, a value that identifies the file or folder and the mounts below it, or
    None if the path is missing. The value changes when another disk is mounted there."""
    marks = []
    table = Path("/proc/self/mountinfo")  # exists only on Linux
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
