"""Forged model folders: every value of the configuration, the tokenizer and the header of the
weights may be another.

A folder is refused as a BocError, or encodes a sentence. BOC_FORGED sets how many are tried
(default 100).
"""

import json
import random
import shutil
import struct
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from boc.plugins import encoder
from tests.encoders.test_clip import tiny_clip
from tests.fuzz.mutations import FORGED, damaged, verdict
from tests.fuzz.test_fuzz_indexes import ODD
from tests.helpers import DEMO_MODEL

SAFETENSORS = "model.safetensors"


def forge_tree(tree: Any, rng: random.Random) -> str:
    """Replace a value of JSON, at any depth."""
    node = tree
    keys = list[Any]()
    while isinstance(node, (dict, list)) and node and (not keys or rng.random() < 0.8):
        above = node
        keys.append(rng.choice(list(node) if isinstance(node, dict) else range(len(node))))
        node = node[keys[-1]]
    above[keys[-1]] = rng.choice(ODD)
    return f"{'/'.join(map(str, keys))} = {str(above[keys[-1]])[:20]}"


def forge(folder: Path, rng: random.Random) -> str:
    """Change one file of a model."""
    path = rng.choice(
        sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors")),
    )
    data = path.read_bytes()
    if rng.random() < 0.3:
        path.write_bytes(damaged(data, rng))
        return f"{path.name} damaged"
    if path.name == SAFETENSORS:
        length = struct.unpack("<Q", data[:8])[0]
        tree = json.loads(data[8 : 8 + length])
        told = forge_tree(tree, rng)
        header = json.dumps(tree).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])
        return f"header of the weights: {told}"
    tree = json.loads(data)
    if path.name == "config.json" and rng.random() < 0.1:
        tree["auto_map"] = dict.fromkeys(
            ("AutoConfig", "AutoModel", "AutoTokenizer"),
            "evil.Evil",
        )
        (folder / "evil.py").write_text(
            f"open({str(folder / 'ran')!r}, 'w')\nclass Evil: pass\n",
            encoding="utf-8",
        )
        told = "auto_map"
        if rng.random() < 0.5:
            tree["model_type"] = "evil"
    else:
        told = forge_tree(tree, rng)
    path.write_text(
        json.dumps(tree),
        encoding="utf-8",
    )
    return f"{path.name}: {told}"


def use(spec: str) -> None:
    """Encode a sentence by a model."""
    model = encoder(spec, "cpu")
    assert model.encode_texts(["a red box"]).vectors.shape == (1, model.identity.dim)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["tern", "teran", "clip"],
)
def test_a_forged_model_is_refused_or_encodes(library: Path, tmp_path: Path, kind: str):
    sound = DEMO_MODEL if kind == "teran" else library / "model"
    if kind == "clip":
        sound = tmp_path / "sound"
        sound.mkdir()
        tiny_clip(sound)
    use(f"{kind}:{sound}")
    verdicts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(FORGED // 2):
            rng = random.Random(number)
            folder = tmp_path / "forged"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(sound, folder)
            told = forge(folder, rng)
            verdicts[f"{number}: {told}"] = verdict(
                partial(use, f"{kind}:{folder}"),
                "encoded",
            )
            assert not (folder / "ran").exists(), "a model is data, not code"
    wrong = {
        what: became for what, became in verdicts.items() if became not in ("refused", "encoded")
    }
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert set(verdicts.values()) == {"refused", "encoded"}
