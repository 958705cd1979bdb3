"""``boc convert``: published files made here, small and with random weights, and what is refused of
them."""

import argparse
import gzip
import json
import os
import pickle
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from boc import plugins
from boc.errors import EncoderError
from encoders.conversion.checkpoints import kind_of, read_published
from encoders.conversion.convert import from_published
from tests.helpers import Bomb, boc

pytestmark = pytest.mark.usefixtures("left_to_torch")
REGION = 8
BERT = 24
JOINT = 8
PIECES = 40
WORDS = 30


def transformer(
    width: int,
    layers: int,
) -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, 4, 16),
        layers,
        enable_nested_tensor=False,
    )


def tern_state(joint_encoders: int = 1) -> dict[str, torch.Tensor]:
    """Tensors by the published names, the dead ones included."""
    torch.manual_seed(joint_encoders)
    sizes = {
        "num_hidden_layers": 2,
        "num_attention_heads": 12,
        "intermediate_size": 16,
        "max_position_embeddings": 32,
    }
    bert = BertModel(BertConfig(vocab_size=PIECES, hidden_size=BERT, **sizes))
    network = nn.Module()
    network.txt_enc = nn.Module()
    network.img_enc = nn.Module()
    network.img_enc.pos_encoding_image = nn.Module()
    network.txt_enc.bert_model = bert
    network.txt_enc.word_embeddings = bert.embeddings.word_embeddings
    network.txt_enc.map = nn.Linear(BERT, JOINT)
    network.img_enc.fc = nn.Linear(REGION, JOINT)
    network.img_enc.pos_encoding_image.map = nn.Sequential(
        nn.Linear(REGION + 5, 12),
        nn.ReLU(),
        nn.Linear(12, 12),
    )
    network.img_enc.transformer_encoder = transformer(12, 3)
    network.img_proj = nn.Linear(12, JOINT)
    network.cap_proj = nn.Linear(BERT, JOINT)
    for number in range(joint_encoders):
        network.add_module(f"transformer_encoder_{number + 1}", transformer(JOINT, 2))
    return OrderedDict(
        (f"img_txt_enc.{name}", tensor) for name, tensor in network.state_dict().items()
    )


def tern_file(joint_encoders: int = 1, **sections: dict[str, Any]) -> dict[str, Any]:
    config = {
        "model": {"name": "tern" if joint_encoders == 1 else "teran", "text-aggregation": "first"},
        "text-model": {"name": "bert", "layers": 0, "extraction-hidden-layer": 2},
        "image-model": {"pos-encoding": "concat-and-process"},
        "training": {"measure": "dot"},
    }
    for section, entries in sections.items():
        config[section.replace("_", "-")].update(
            {key.replace("_", "-"): value for key, value in entries.items()},
        )
    return {
        "epoch": 7,
        "model": tern_state(joint_encoders),
        "config": config,
        "opt": None,
        "best_ndcg": np.float64(0.65),
    }


def vsrn_file() -> dict[str, Any]:
    torch.manual_seed(0)
    image = nn.Module()
    text = nn.Module()
    image.fc = nn.Linear(REGION, JOINT)
    image.img_rnn = nn.GRU(JOINT, JOINT)
    for number in range(1, 5):
        layer = nn.Module()
        layer.g, layer.theta, layer.phi = (
            nn.Conv1d(
                JOINT,
                JOINT,
                1,
            )
            for _ in range(3)
        )
        layer.W = nn.Sequential(nn.Conv1d(JOINT, JOINT, 1), nn.BatchNorm1d(JOINT))
        image.add_module(f"Rs_GCN_{number}", layer)
    text.embed = nn.Embedding(WORDS, 6)
    text.rnn = nn.GRU(6, JOINT)
    options = argparse.Namespace(
        data_name="coco_precomp",
        embed_size=JOINT,
        use_abs=False,
        no_imgnorm=False,
    )
    return {
        "epoch": 3,
        "model": [image.state_dict(), text.state_dict()],
        "best_rsum": 480.0,
        "opt": options,
    }


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "tern": tern_file,
    "teran": lambda: tern_file(2),
    "vsrn": vsrn_file,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with tern.pth, teran.pth, vsrn.pth, vocab.txt, words.json, and region features."""
    home = tmp_path_factory.mktemp("published")
    for kind, make in FILES.items():
        torch.save(make(), home / f"{kind}.pth")
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "dog",
        *(f"piece{i}" for i in range(PIECES - 7)),
    ]
    (home / "vocab.txt").write_text("\n".join(pieces) + "\n")
    words = [
        "<pad>",
        "<start>",
        "<end>",
        "<unk>",
        "dog",
        *(f"word{i}" for i in range(WORDS - 5)),
    ]
    (home / "words.json").write_text(json.dumps(words))
    for name, width in (("features", REGION), ("other", REGION + 1)):
        for folder, array in (
            ("bu_att", np.ones((2, width), np.float32)),
            ("bu_box", np.ones((2, 4), np.float32)),
        ):
            (home / name / folder).mkdir(parents=True)
            np.save(home / name / folder / "0.npy", array)
    return home


def convert(
    home: Path,
    checkpoint: Path,
    output: Path,
    *more: object,
    tokens: str = "vocab.txt",
) -> tuple[int, str]:
    """Exit status, and what was printed."""
    place = ("--tokens", home / tokens, "--regions", f"files:{home / 'features'}")
    result = boc(
        f"convert {checkpoint} -o {output}",
        *place,
        *more,
    )
    return result.exit_code, result.output


@pytest.mark.parametrize("kind", FILES)
def test_convert_published_files(
    kind: str,
    home: Path,
    tmp_path: Path,
):
    status, printed = convert(
        home,
        home / f"{kind}.pth",
        tmp_path / "model",
        tokens="words.json" if kind == "vsrn" else "vocab.txt",
    )
    assert status == 0, printed
    first, *_, last = printed.splitlines()
    parameters = sum(
        p.numel() for p in from_published(read_published(home / f"{kind}.pth"))[1].parameters()
    )
    assert first.startswith(f"{kind} of {parameters:,} parameters: region_dim {REGION}, ")
    assert last.endswith(f"use it with --encoder {kind}:{tmp_path / 'model'}")
    encoder = plugins.encoder(last.rpartition(" ")[2], "cpu")
    embeddings = encoder.encode_texts(["the dog", "dog"])
    assert embeddings.vectors.shape == (2, JOINT)
    assert not list((tmp_path / "model").glob("*.pth"))


def test_a_tern_is_told_from_a_teran(tmp_path: Path):
    shared = {"loss_type": "alignment", "alignment_mode": "MwSr"}
    for file, kind, is_shared in (
        (tern_file(), "tern", None),
        (tern_file(2), "teran", False),
        (tern_file(model={"name": "teran"}), "teran", True),
        (tern_file(model={"name": "other"}, training=shared), "teran", True),
        (tern_file(model={"name": None}), "tern", None),
    ):
        found, network = from_published(file)
        assert (
            found,
            getattr(
                network.config,
                "shared",
                None,
            ),
        ) == (kind, is_shared)
    assert kind_of(vsrn_file()) == "vsrn"


def test_teran_pooling_and_stop_words(
    home: Path,
    tmp_path: Path,
):
    torch.save(
        tern_file(
            2,
            model={"exclude_stopwords": True},
            training={"alignment_mode": "MwSr"},
        ),
        tmp_path / "a.pth",
    )
    status, printed = convert(
        home,
        tmp_path / "a.pth",
        tmp_path / "model",
    )
    assert status == 1
    assert "ignores stop-words, but does not list them; give a list with --stop-list" in printed
    (tmp_path / "stops.txt").write_text("the\nunheard-of\n")
    listed = ("--stop-list", tmp_path / "stops.txt")
    status, printed = convert(
        home,
        tmp_path / "a.pth",
        tmp_path / "model",
        *listed,
    )
    assert status == 0
    encoder = plugins.encoder(f"teran:{tmp_path / 'model'}", "cpu")
    # The last word is dropped as in the published network, after the stop-words.
    assert encoder.encode_texts(["the dog dog", "dog dog the", "the"]).words == [
        ["dog"],
        ["dog"],
        [],
    ]
    status, printed = convert(
        home,
        home / "teran.pth",
        tmp_path / "other",
        *listed,
    )
    assert status == 1
    assert "does not ignore stop-words; leave out --stop-list" in printed


def test_newer_keys_may_be_missing():
    for file in (tern_file(), tern_file(2)):
        expected = from_published(file)[1]
        found = from_published(
            {
                "model": file["model"],
                "config": {"model": {"name": file["config"]["model"]["name"]}},
            },
        )[1]
        assert found.config == expected.config


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"model": {"text_aggregation": "gru"}}, "text-aggregation of this checkpoint is 'gru'"),
        ({"model": {"image_aggregation": None}}, "image-aggregation of this checkpoint is None"),
        (
            {"image_model": {"pos_encoding": "project-and-sum"}},
            "pos-encoding of this checkpoint is 'project-and-sum'",
        ),
        ({"training": {"measure": "order"}}, "measure of this checkpoint is 'order'"),
        ({"text_model": {"layers": 2}}, "layers of this checkpoint is 2"),
        ({"text_model": {"extraction_hidden_layer": 6}}, "declares 6 BERT layers but contains 2"),
    ],
)
def test_unsupported_settings(
    sections: dict[str, Any],
    named: str,
):
    with pytest.raises(EncoderError, match=named):
        from_published(tern_file(**sections))


def test_an_option_of_another_vsrn_is_refused():
    file = vsrn_file()
    file["opt"].use_abs = True
    with pytest.raises(EncoderError, match="use_abs"):
        from_published(file)


def without(
    state: dict[str, Any],
    name: str,
) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != f"img_txt_enc.{name}"}


@pytest.mark.slow
@pytest.mark.parametrize("joint_encoders", [1, 2])
def test_every_tensor_is_accounted_for(joint_encoders: int):
    file = tern_file(joint_encoders)
    state = file["model"]
    alive = {f"img_txt_enc.{name}" for name in from_published(file)[1].state_dict()}
    unused = {name.removeprefix("img_txt_enc.") for name in state.keys() - alive}
    heads = {
        f"{layer}.{part}" for layer in ("txt_enc.map", "img_enc.fc") for part in ("weight", "bias")
    }
    pooler = {f"txt_enc.bert_model.pooler.dense.{part}" for part in ("weight", "bias")}
    assert unused == heads | pooler | {"txt_enc.word_embeddings.weight"}
    for name in alive:
        with pytest.raises(EncoderError, match=r"missing|not a TERN"):
            from_published({**file, "model": without(state, name.removeprefix("img_txt_enc."))})
    for stranger in (
        "stranger",
        "img_enc.fc2.weight",
        "transformer_encoder_1.norm.weight",
        "txt_enc.map",
    ):
        with pytest.raises(EncoderError, match=f"unused, for example {stranger}"):
            from_published({**file, "model": {**state, f"img_txt_enc.{stranger}": torch.zeros(1)}})
    positions = {"img_txt_enc.txt_enc.bert_model.embeddings.position_ids": torch.arange(32)}
    from_published({**file, "model": {**state, **positions}})
    for name in ("img_proj.bias", "transformer_encoder_1.layers.1.linear1.bias"):
        with pytest.raises(
            EncoderError,
            match=f"the wrong shape, for example {name}",
        ):
            from_published({**file, "model": {**state, f"img_txt_enc.{name}": torch.zeros(3)}})
    alias = "img_txt_enc.txt_enc.word_embeddings.weight"
    with pytest.raises(EncoderError, match="should be a copy"):
        from_published({**file, "model": {**state, alias: state[alias] + 1}})


@pytest.mark.slow
def test_tensors_of_a_vsrn_are_accounted_for():
    file = vsrn_file()
    for part in (0, 1):
        # which the first torch versions did not have, and evaluation does not read
        counters = "num_batches_tracked"
        for name in (name for name in file["model"][part] if not name.endswith(counters)):
            states = [dict(state) for state in file["model"]]
            del states[part][name]
            with pytest.raises(EncoderError):
                from_published({**file, "model": states})
        states = [dict(state) for state in file["model"]]
        states[part]["stranger"] = torch.zeros(1)
        with pytest.raises(EncoderError, match="stranger"):
            from_published({**file, "model": states})
    with pytest.raises(EncoderError):
        from_published({**file, "model": file["model"][:1]})


BOMBS = {
    "os.system": Bomb(os.system, "touch exploded"),
    "getattr": Bomb(getattr, Bomb(__import__, "os"), "system"),
    "numpy.load": Bomb(np.load, "innocent.npy"),
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "config": lambda bomb: {**tern_file(), "config": {"model": {"name": bomb}}},
    "entry": lambda bomb: {**tern_file(), "zzz": [0, (bomb,)]},
    "model": lambda bomb: {"model": {"a": bomb}, "config": {}},
    "opt": lambda bomb: {**vsrn_file(), "opt": argparse.Namespace(data_name=bomb)},
    "everything": lambda bomb: bomb,
}


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("bomb", "place"),
    [*((bomb, "everything") for bomb in BOMBS), *(("os.system", place) for place in PLACES)][1:],
)
def test_a_hostile_checkpoint_runs_nothing(
    bomb: str,
    place: str,
    zipped: bool,
    home: Path,
    tmp_path: Path,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    torch.save(
        PLACES[place](BOMBS[bomb]),
        "hostile.pth",
        _use_new_zipfile_serialization=zipped,
    )
    status, printed = convert(
        home,
        Path("hostile.pth"),
        Path("model"),
    )
    assert status == 1
    assert printed.startswith("Error: hostile.pth: ")
    assert len(printed.splitlines()) == 1
    assert "tries to call" in printed
    assert os.listdir() == ["hostile.pth"]  # noqa: PTH208


def test_the_legacy_format_reads_the_same(tmp_path: Path):
    for kind, make in FILES.items():
        file = make()
        torch.save(file, tmp_path / "new.pth")
        torch.save(
            file,
            tmp_path / "old.pth",
            _use_new_zipfile_serialization=False,
        )
        networks = [
            from_published(read_published(tmp_path / f"{name}.pth"))[1] for name in ("new", "old")
        ]
        new, old = (network.state_dict() for network in networks)
        assert new.keys() == old.keys(), kind
        assert all(torch.equal(new[name], old[name]) for name in new)


def refusal(path: Path) -> str:
    try:
        from_published(read_published(path))
    except EncoderError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", ["tern", "vsrn"])
def test_damaged_files_are_refused_in_one_line(
    kind: str,
    zipped: bool,
    tmp_path: Path,
):
    """Cut anywhere, or with bytes changed: an EncoderError, or a checkpoint all the same, and no
    other exception."""
    path = tmp_path / "damaged.pth"
    torch.save(
        FILES[kind](),
        path,
        _use_new_zipfile_serialization=zipped,
    )
    whole = path.read_bytes()
    chance = random.Random(0)
    versions = [whole[: int(len(whole) * part)] for part in (0, 1e-5, 1e-3, 0.01, 0.3, 0.9, 0.999)]
    for _ in range(100):
        changed = bytearray(whole)
        for _ in range(chance.choice([1, 3, 30])):
            changed[chance.randrange(min(len(whole), chance.choice([400, 20000])))] = (
                chance.randrange(256)
            )
        versions.append(bytes(changed))
    refused = 0
    for number, version in enumerate(versions):
        path.write_bytes(version)
        message = refusal(path)
        refused += bool(message)
        assert "\n" not in message
        assert message or number > 6, "a part of a file is no checkpoint"
    assert refused > 7


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        gzip.compress(b"a" * 99, mtime=0),
        b"a text",
        pickle.dumps({"model": 1}, 2),
    ],
)
def test_no_checkpoint(
    content: bytes,
    home: Path,
    tmp_path: Path,
):
    (tmp_path / "a.pth").write_bytes(content)
    status, printed = convert(
        home,
        tmp_path / "a.pth",
        tmp_path / "model",
    )
    assert status == 1
    assert printed.startswith(f"Error: {tmp_path / 'a.pth'}: ")
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"model": {}},
        {"model": [1, 2]},
        {"model": {1: torch.zeros(1)}},
        {"model": {"a": torch.zeros(1)}},
        {"model": tern_state()},
        {"model": tern_state(), "config": []},
    ],
)
def test_other_contents_are_refused(
    content: Any,
    tmp_path: Path,
):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(EncoderError):
        from_published(read_published(tmp_path / "a.pth"))


@pytest.mark.slow
def test_files_of_other_tokens(
    home: Path,
    tmp_path: Path,
):
    pieces = (home / "vocab.txt").read_text().splitlines()
    for name, lines in {
        "short.txt": pieces[:-1],
        "twice.txt": [*pieces[:-1], "dog"],
        "plain.txt": [
            "a",
            *pieces[1:2],
            *pieces[4:],
            "b",
            "c",
        ],
    }.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "latin.txt").write_bytes("\n".join([*pieces[:-1], "caf\xe9"]).encode("latin-1"))
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "words.json").write_text(
        json.dumps(json.loads((home / "words.json").read_text())[:-1]),
    )
    for checkpoint, tokens, said in (
        ("tern", "short.txt", "39 word-pieces, but the checkpoint was trained with 40"),
        ("tern", "twice.txt", "occurs twice"),
        ("tern", "plain.txt", "it lacks [CLS] [SEP]"),
        ("tern", "latin.txt", "not the vocabulary of a BERT"),
        ("tern", "list.json", "not the vocabulary of a BERT"),
        ("tern", "deep.json", "not the vocabulary of a BERT"),
        ("tern", "absent.txt", "file does not exist"),
        ("vsrn", "words.json", "29 words, but the checkpoint was trained with 30"),
        ("vsrn", "deep.json", "deep.json: "),
        ("vsrn", "short.txt", "short.txt: "),
    ):
        tokens = tmp_path / tokens  # type: ignore[assignment]
        status, printed = convert(
            home,
            home / f"{checkpoint}.pth",
            tmp_path / "model",
            "--tokens",
            tokens,
        )
        assert status == 1, tokens
        assert said in printed
        assert len(printed.splitlines()) == 1
    status, printed = convert(
        home,
        home / "tern.pth",
        tmp_path / "model",
        "--regions",
        f"files:{home / 'other'}",
    )
    assert status == 1
    assert "have 9 features, but the checkpoint needs 8" in printed
    assert not (tmp_path / "model").exists()


def test_tokenizer_json(
    home: Path,
    tmp_path: Path,
):
    status, _ = convert(
        home,
        home / "tern.pth",
        tmp_path / "one",
    )
    assert status == 0
    tokenizer = json.loads((tmp_path / "one" / "tokenizer.json").read_text())
    tokenizer["truncation"] = tokenizer["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    status, _ = convert(
        home,
        home / "tern.pth",
        tmp_path / "two",
        "--tokens",
        tmp_path / "tokenizer.json",
    )
    assert status == 0
    digests = {
        plugins.encoder(f"tern:{tmp_path / name}", "cpu").identity.digest for name in ("one", "two")
    }
    assert len(digests) == 1


def test_a_model_is_not_replaced(
    home: Path,
    tmp_path: Path,
):
    folder = tmp_path / "model"
    assert convert(home, home / "tern.pth", folder)[0] == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    status, printed = convert(
        home,
        home / "teran.pth",
        folder,
    )
    assert status == 1
    assert "delete this one first" in printed
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
