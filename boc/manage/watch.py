"""Keep an index in line with its pictures: a sync whenever files change."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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

    Changes are processed after ``quiet`` ms without another one, or after ``longest`` ms although
    others follow. Each ``look`` ms it looks whether the folders are the same. A sync that failed is
    tried again after ``again`` seconds, and everything is compared after ``every`` seconds without
    a change, since network disks report no change.
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
    """Sync the index ``name`` now and whenever files of ``source`` change, until ``stop()``; it is
    asked at each look.

    ``notify`` gets the report of the first sync and of each that did something, or to which other
    folders are away, and errors such as of a disk that is not mounted, each once; then nothing is
    removed, and the sync is tried again.
    The other parameters and ``options`` are as in ``sync_index``. BocError if the package
    watchfiles is not installed, or the index does not exist.
    """
    paths = paths_of(source)
    searcher = Searcher.open(name, at, encoder=encoder, device=device)
    error = ""
    away: Mapping[str, int] | None = None
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
    """The moments for a sync: at first, after each change, and when ``patience`` seconds have
    passed.

    While a place is missing, each second is one, unless ``some`` of them are enough.
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
                    break  # another disk is mounted there, or no disk: watch that folder

    def _changes(self) -> Iterator[Collection[object]]:
        """Yield the files that changed; an empty set after a while without a change."""
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
                f"the folders cannot be watched ({error}); set WATCHFILES_FORCE_POLLING=1 to "
                "look at all files again "
                "and again, or allow more watches (fs.inotify.max_user_watches)",
            ) from error


def _marks(places: Sequence[Path]) -> list[tuple[object, ...] | None]:
    """Return values that tell files and folders at these paths, and mounts below them, from others
    mounted there; None for nothing."""
    marks: list[tuple[object, ...] | None] = []
    table = Path("/proc/self/mountinfo")  # of Linux
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
    """Return the folder of a file, or the folder itself."""
    return place if place.is_dir() else place.parent
