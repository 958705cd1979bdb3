"""Run the two towers of a model folder with ONNX Runtime, on a CPU without torch."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from boc.errors import EncoderError
from boc.types import Ragged, Regions
from boc.vectors import Array, Floats, batches

from ..networks.foreign import reading_model
from .dual_encoder import Encoded
from .onnx_record import IMAGE, TEXT, OnnxRecord
from .sessions import open_session

Places = Sequence[Sequence[int]]
"""The rows to keep of each text's set, in ascending order."""


class OnnxSessions:
    """Two ONNX networks of a model, stored as files ``names`` in a folder. Each network is opened
    when it is first used."""

    names = (IMAGE, TEXT)

    def __init__(
        self,
        folder: Path,
        record: OnnxRecord,
        batch: int,
    ) -> None:
        self.folder = folder
        self.record = record
        self.dim = record.dim
        self.batch = batch

    @cached_property
    def image(self) -> Any:
        return self._open(self.names[0])

    @cached_property
    def text(self) -> Any:
        return self._open(self.names[1])

    def _open(self, name: str) -> Any:
        session = open_session(self.record.check(self.folder, name))
        count = session.get_inputs()[0].shape[0]
        # Some published networks accept only batches of one fixed size.
        if isinstance(count, int):
            self.batch = count
        return session

    def encode(
        self,
        session: Any,
        lengths: Sequence[int],
        inputs: Callable[[list[int]], Mapping[str, Array]],
        rows: Callable[..., Floats],
    ) -> Encoded:
        """Run a network on inputs with these ``lengths``. All inputs in a batch have the same
        length, so no padding is needed.

        ``inputs`` returns the inputs at given places; ``rows`` returns the set at a place from the
        network's other outputs.
        """
        vectors = np.empty((len(lengths), self.dim), np.float32)
        sets: list[Floats] = [vectors[:0]] * len(lengths)
        by_length: dict[int, list[int]] = {}
        for place, length in enumerate(lengths):
            by_length.setdefault(length, []).append(place)
        for same in by_length.values():
            for places in batches(same, self.batch):
                vectors[places], *outputs = self._run(session, inputs(places))
                for place, *own in zip(places, *outputs, strict=True):
                    sets[place] = rows(place, *own)
        return vectors, Ragged.from_sets(sets, self.dim)

    def _run(
        self,
        session: Any,
        inputs: Mapping[str, Array],
    ) -> list[Array]:
        """Run a network, omitting inputs that it does not read, such as boxes for a VSRN."""
        read = {each.name: inputs[each.name] for each in session.get_inputs()}
        with reading_model(
            lambda reason: (
                f"an ONNX network cannot be run ({reason}); use smaller pictures or texts"
            ),
        ):
            outputs: list[Array] = session.run(None, read)
        if outputs[0].shape[1:] != (self.dim,):
            raise EncoderError(
                f"an ONNX network returns vectors {outputs[0].shape[1:]} instead of {self.dim}",
                "recreate it with <boc convert>",
            )
        return outputs


class OnnxTowers(OnnxSessions):
    """Networks written to a model folder by ``onnx_export``."""

    def images(self, regions: Sequence[Regions]) -> Encoded:
        return self.encode(
            self.image,
            [len(each) for each in regions],
            lambda places: image_inputs([regions[i] for i in places]),
            lambda place, own: own[: len(regions[place])],
        )

    def texts(
        self,
        ids: Sequence[list[int]],
        places: Places | None = None,
    ) -> tuple[Floats, Ragged, Places]:
        """Encode ids. Return vectors, sets with the rows ``places`` (by default the words), and
        these places."""
        chosen = list(places or [[]] * len(ids))

        def rows(
            place: int,
            own: Floats,
            mask: Array,
        ) -> Floats:
            if places is None:
                chosen[place] = np.flatnonzero(mask).tolist()
            return own[list(chosen[place])]

        vectors, sets = self.encode(
            self.text,
            [len(row) for row in ids],
            lambda batch: {"ids": np.array([ids[i] for i in batch], np.int64)},
            rows,
        )
        return vectors, sets, chosen


def image_inputs(regions: Sequence[Regions]) -> dict[str, Array]:
    """Return the network inputs for pictures with equal numbers of regions. Without regions, the
    network reads a masked row of zeros."""
    count = len(regions[0])
    features = np.stack([np.asarray(each.features, np.float32) for each in regions])
    boxes = np.stack([np.asarray(each.boxes, np.float32) for each in regions])
    if not count:
        features = np.pad(features, ((0, 0), (0, 1), (0, 0)))
        boxes = np.pad(boxes, ((0, 0), (0, 1), (0, 0)))
    lengths = np.full(len(regions), count, np.int64)
    return {"features": features, "boxes": boxes, "lengths": lengths}
