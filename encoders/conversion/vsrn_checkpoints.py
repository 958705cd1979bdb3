"""Reading the files that the authors of VSRN published: checkpoints and vocabularies."""

import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any

from torch import Tensor

from boc.errors import EncoderError
from boc.foreign import parse_json

from ..networks.base import Network
from ..networks.foreign import reading_model
from ..networks.tokens import is_words
from ..networks.vsrn import Vsrn, VsrnConfig
from .checkpoints import load_whole, shape_of

CONVOLUTION = re.compile(r"img_enc\.Rs_GCN_\d+\.(?:g|theta|phi|W\.0)\.weight")
TEXT = {"embed.": "txt_enc.embed.", "rnn.": "txt_rnn."}


def vsrn_from_published(checkpoint: Mapping[str, Any]) -> Vsrn:
    """Return the network of a published VSRN; sizes and variant are read from the tensors.

    EncoderError names a missing or unused tensor.
    """
    model = checkpoint["model"]
    if len(model) != 2:
        raise EncoderError(
            "no VSRN checkpoint: its model must be two sets of tensors, of images and of texts",
        )
    options = checkpoint.get("opt")
    for option in ("use_abs", "no_imgnorm"):
        if getattr(options, option, False):
            raise EncoderError(
                f"this VSRN was trained with the option {option}, which no published model uses",
            )
    state = {
        f"img_enc.{name}": _linear(f"img_enc.{name}", tensor) for name, tensor in model[0].items()
    }
    state |= {_text_name(name): tensor for name, tensor in model[1].items()}
    width, region_dim = shape_of(state, "img_enc.fc.weight")
    vocabulary, word_width = shape_of(state, "txt_enc.embed.weight")
    config = VsrnConfig(
        region_dim=region_dim,
        width=width,
        reasoning_layers=max(
            [int(n) for name in state for n in re.findall(r"Rs_GCN_(\d+)", name)],
            default=0,
        ),
        # The name of the data set does not decide: checkpoints older than the variant have it too.
        variant="f30k" if any(name.startswith("img_enc.bn.") for name in state) else "coco",
    )
    network = Vsrn(config, {"kind": "embedding", "vocabulary": vocabulary, "width": word_width})
    load_whole(network, state)
    return network.eval()


def read_vocabulary(path: Path) -> list[str]:
    """Return the words of a published vocabulary, by id: a Python 2 pickle of the class Vocabulary,
    or JSON.

    JSON is a list of words, or an object with the entries of that class. Nothing in a pickle is
    executed: it may name only that class, which is replaced by an empty one. EncoderError names
    anything else that a file requires.
    """
    advice = (
        "fetch it again, or name the one that the checkpoint came with, for example "
        "coco_precomp_vocab.pkl"
    )
    with reading_model(
        lambda reason: (
            f"{path}: no vocabulary of a VSRN that can be read safely ({reason}); {advice}"
        ),
    ):
        data = path.read_bytes()
        content = parse_json(data) if data.lstrip()[:1] in (b"[", b"{") else vars(_unpickle(data))
        if isinstance(content, Mapping):
            by_id = {int(number): word for number, word in content["idx2word"].items()}
            content = [by_id[number] for number in range(len(by_id))]
        if not is_words(content):
            raise ValueError("it must hold words by number")
    words: list[str] = content
    return words


def check_vocabulary(words: Sequence[str], network: Network, path: Path) -> None:
    """EncoderError unless there is one word per row of the embedding of the network."""
    rows = len(network.txt_enc.embed.weight)
    if len(words) != rows:
        raise EncoderError(
            f"{path}: {len(words)} words, but the checkpoint was trained with {rows}; find the "
            "vocabulary it came with",
        )


def _unpickle(data: bytes) -> Any:
    class PickledVocabulary:
        pass

    class VocabularyUnpickler(Unpickler):
        def find_class(self, module: str, name: str) -> type:
            if (module, name) != ("__main__", "Vocabulary"):
                raise UnpicklingError(f"it asks for {module}.{name}")
            return PickledVocabulary

    return VocabularyUnpickler(BytesIO(data), encoding="utf-8").load()


def _linear(name: str, tensor: Tensor) -> Tensor:
    """Return a convolution with a kernel of size one as a linear layer."""
    return tensor.squeeze(-1) if CONVOLUTION.fullmatch(name) and tensor.ndim == 3 else tensor


def _text_name(name: str) -> str:
    head = next((head for head in TEXT if name.startswith(head)), "")
    return TEXT.get(head, "txt_enc.") + name.removeprefix(head)
