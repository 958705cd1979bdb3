"""Read the checkpoints and vocabularies published by the authors of VSRN."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any

from boc.errors import EncoderError
from boc.foreign import parse_json

from ..networks.base import Network
from ..networks.foreign import reading_model
from ..networks.tokens import is_words
from ..networks.vsrn import Vsrn, VsrnConfig
from .checkpoints import load_whole, shape_of


def vsrn_from_published(checkpoint: Mapping[str, Any]) -> Vsrn:
    """Return the network of a published VSRN. The tensors determine its sizes and its variant.

    Raises EncoderError if a tensor is missing or unused.
    """
    model = checkpoint["model"]
    if len(model) != 2:
        raise EncoderError(
            "not a VSRN checkpoint: its model must be two sets of tensors, for images and for "
            "texts",
        )
    for option in ("use_abs", "no_imgnorm"):
        if getattr(checkpoint.get("opt"), option, False):
            raise EncoderError(
                f"this VSRN was trained with the option {option}, which no published model uses",
            )
    images, texts = model
    state = {}
    for name, tensor in images.items():
        # A convolution with a kernel of size one is a linear layer.
        if tensor.ndim == 3 and re.fullmatch(r"Rs_GCN_\d+\.(g|theta|phi|W\.0)\.weight", name):
            tensor = tensor.squeeze(-1)
        state[f"img_enc.{name}"] = tensor
    for name, tensor in texts.items():
        state[re.sub(r"^txt_enc\.rnn\.", "txt_rnn.", f"txt_enc.{name}")] = tensor
    width, region_dim = shape_of(state, "img_enc.fc.weight")
    vocabulary, word_width = shape_of(state, "txt_enc.embed.weight")
    layers = [int(number) for name in state for number in re.findall(r"Rs_GCN_(\d+)", name)]
    config = VsrnConfig(region_dim, width, max(layers, default=0))
    # The name of the data set does not identify the variant, because older checkpoints share the
    # name.
    if any(name.startswith("img_enc.bn.") for name in state):
        config = replace(config, variant="f30k")
    network = Vsrn(config, {"kind": "embedding", "vocabulary": vocabulary, "width": word_width})
    load_whole(network, state)
    return network.eval()


def read_vocabulary(path: Path) -> list[str]:
    """Return the words of a published vocabulary, in the order of their ids. The file is a Python 2
    pickle of the class Vocabulary, or JSON.

    JSON is a list of words, or an object with the entries of the class. No code in a pickle is
    executed, because a pickle may name only the class Vocabulary, which is replaced by an empty
    class. Raises EncoderError with the name of any other class that the file needs.
    """
    advice = (
        "download it again, or use the vocabulary that came with the checkpoint, for example "
        "coco_precomp_vocab.pkl"
    )
    with reading_model(
        lambda reason: (
            f"{path}: not a VSRN vocabulary that can be read safely ({reason}); {advice}"
        ),
    ):
        data = path.read_bytes()
        content: Any
        if data.lstrip()[:1] in (b"[", b"{"):
            content = parse_json(data)
        else:
            content = vars(_VocabularyUnpickler(BytesIO(data), encoding="utf-8").load())
        if isinstance(content, Mapping):
            by_id = {int(number): word for number, word in content["idx2word"].items()}
            content = [by_id[number] for number in range(len(by_id))]
        if not is_words(content):
            raise ValueError("it must map words to numbers")
    words: list[str] = content
    return words


def check_vocabulary(words: Sequence[str], network: Network, path: Path) -> None:
    """Raise EncoderError unless there is one word per row of the network's embedding."""
    rows = len(network.txt_enc.embed.weight)
    if len(words) != rows:
        raise EncoderError(
            f"{path}: {len(words)} words, but the checkpoint was trained with {rows}; use the "
            "vocabulary that came with it",
        )


class _PickledVocabulary:
    """Replacement for the authors' class, without methods."""


class _VocabularyUnpickler(Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) != ("__main__", "Vocabulary"):
            raise UnpicklingError(f"it needs {module}.{name}")
        return _PickledVocabulary
