"""The two towers of a model folder on ONNX Runtime: on a CPU, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import EncoderError
from boc.types import Ragged, Regions

from ..networks.foreign import reading_model
from .onnx_record import IMAGE, TEXT, OnnxRecord
from .sessions import open_session

Places = Sequence[Sequence[int]]
"""Rows of the set of each text, in ascending order."""


class OnnxSessions:
    """The two networks of a model in ONNX, each opened with its first input."""

    def __init__(self, folder: Path, record: OnnxRecord, batch: int) -> None:
        self.folder = folder
        self.record = record
        self.batch = batch

    @cached_property
    def image(self) -> Any:
        return open_session(self.record.check(self.folder, IMAGE))

    @cached_property
    def text(self) -> Any:
        return open_session(self.record.check(self.folder, TEXT))

    def encode(
        self,
        session: Any,
        lengths: Sequence[int],
        inputs: Callable[[list[int]], Mapping[str, NDArray[Any]]],
        rows: Callable[..., NDArray[np.float32]],
    ) -> tuple[NDArray[np.float32], Ragged]:
        """Run a network on inputs with these ``lengths``, those of one length together, so that
        there is no padding.

        ``inputs`` gives those at some places; ``rows`` the set at a place, from what the network
        gives beside vectors.
        """
        vectors = np.empty((len(lengths), self.record.dim), np.float32)
        sets: list[NDArray[np.float32]] = [vectors[:0]] * len(lengths)
        for places in of_one_length(lengths, self.batch):
            vectors[places], *outputs = run(session, self.record.dim, inputs(places))
            for place, *own in zip(places, *outputs, strict=True):
                sets[place] = rows(place, *own)
        return vectors, Ragged.from_sets(sets, self.record.dim)


class OnnxTowers(OnnxSessions):
    """The networks that ``onnx_export`` wrote into a model folder."""

    def images(self, regions: Sequence[Regions]) -> tuple[NDArray[np.float32], Ragged]:
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
    ) -> tuple[NDArray[np.float32], Ragged, Places]:
        chosen: list[Sequence[int]] = list(places) if places is not None else [range(0)] * len(ids)

        def rows(
            place: int,
            own: NDArray[np.float32],
            mask: NDArray[np.bool_],
        ) -> NDArray[np.float32]:
            if places is None:
                chosen[place] = np.flatnonzero(mask).tolist()
            return own[list(chosen[place])]

        def inputs(batch: list[int]) -> dict[str, NDArray[np.int64]]:
            return {"ids": np.array([ids[i] for i in batch], np.int64)}

        return *self.encode(self.text, [len(row) for row in ids], inputs, rows), chosen


def of_one_length(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the places of inputs with these lengths, at most ``most`` of one length at a time."""
    order = np.argsort(lengths, kind="stable")
    for group in np.split(
        order,
        np.flatnonzero(np.diff(np.array(lengths)[order])) + 1 if len(order) else [],
    ):
        for start in range(0, len(group), most):
            yield group[start : start + most].tolist()


def image_inputs(regions: Sequence[Regions]) -> dict[str, NDArray[Any]]:
    """Return the inputs of the network for pictures with equally many regions; without any, it
    reads a row of zeros that does not count."""
    rows = {
        "features": np.stack([np.asarray(each.features, np.float32) for each in regions]),
        "boxes": np.stack([np.asarray(each.boxes, np.float32) for each in regions]),
    }
    if not len(regions[0]):
        rows = {
            name: np.zeros((len(regions), 1, values.shape[2]), np.float32)
            for name, values in rows.items()
        }
    return {**rows, "lengths": np.full(len(regions), len(regions[0]), np.int64)}


def run(session: Any, dim: int, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Run a network that gives vectors of ``dim`` values; inputs that it does not read, such as the
    boxes for a VSRN, are left out."""
    with reading_model(
        lambda reason: (
            f"a network in ONNX cannot be run ({reason}); give smaller pictures or texts"
        ),
    ):
        outputs: list[NDArray[Any]] = session.run(
            None,
            {each.name: inputs[each.name] for each in session.get_inputs()},
        )
    if outputs[0].shape[1:] != (dim,):
        raise EncoderError(
            f"a network in ONNX gives vectors {outputs[0].shape[1:]}, not {dim}",
            "make it again: <boc convert>",
        )
    return outputs
