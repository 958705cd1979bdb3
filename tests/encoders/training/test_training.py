"""The parts of training: word-pieces, the closed-form start, what a batch reads, and the loop that
can be stopped."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.random import default_rng
from safetensors.torch import load_file
from scipy import sparse

from boc.errors import EncoderError
from boc.evaluate.metrics import Ndcg, Recalls, evaluate_ndcg, evaluate_recall
from boc.evaluate.relevance import rouge_l_matrix
from boc.inputs.features import FeatureFile
from boc.types import Item
from encoders.networks import text_towers
from encoders.networks.base import Network
from encoders.networks.tern import Tern, TernConfig
from encoders.runtime import model_folder as checkpoint
from encoders.training import trainer as trainer_module, warmstart
from encoders.training.caption_tensors import CaptionTensors, Chunk, in_order
from encoders.training.config import TrainConfig
from encoders.training.data import RegionReader, numbers_of, read_pairs
from encoders.training.recipes import RECIPES
from encoders.training.train import Recipe
from encoders.training.trainer import RunState, Trainer, cosine, update_average
from encoders.training.warmstart import cca, latent_semantics, warm_start
from tests.helpers import boc, run

pytestmark = pytest.mark.usefixtures("left_to_torch")
ROOT = Path(__file__).resolve().parents[3]
SIZES = {"visual_width": 16, "visual_layers": 1, "joint_layers": 1, "heads": 2, "feedforward": 16}
WORDS = [
    *("dog", "dogs", "runs", "running", "snow", "white", "the", "a", "on", "woman", "bicycle"),
    *("red", "stands"),
]
SENTENCES = [" ".join(random.Random(i).choices(WORDS, k=1 + i % 19)) for i in range(150)]


@pytest.mark.slow
def test_tokenizer_is_deterministic():
    code = (
        "import hashlib, sys; from encoders.networks.text_towers import learn_tokenizer\n"
        "print(hashlib.sha256(learn_tokenizer(sys.argv[1:]).to_str().encode()).hexdigest())"
    )
    here = hashlib.sha256(text_towers.learn_tokenizer(SENTENCES).to_str().encode()).hexdigest()
    command = [sys.executable, "-c", code, *SENTENCES]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    assert (
        subprocess.check_output(
            command,
            env=environment,
            text=True,
        ).strip()
        == here
    )


def test_tokenizer_pieces():
    tokenizer = text_towers.learn_tokenizer([*SENTENCES, "Zebra"])

    def pieces(text):
        return tokenizer.encode(text, add_special_tokens=False).tokens

    for word in WORDS:
        assert pieces(word) == pieces(word.upper()) == [word]
    for word in ("zebra", "snowman", "rinning", "bicycles"):
        assert len(pieces(word)) > 1
        assert "".join(piece.removeprefix("##") for piece in pieces(word)) == word
    assert pieces("dog ж!") == ["dog", "[UNK]", "[UNK]"]
    assert tokenizer.encode("red dog").tokens == ["[CLS]", "red", "dog", "[SEP]"]
    assert [tokenizer.token_to_id(piece) for piece in text_towers.SPECIALS] == [0, 1, 2, 3, 4]


def paired(
    seed: int,
    n: int,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Regions (m, 12) and words (m, 16) of n pictures, both noisy linear images of one latent of 8
    numbers."""
    maps = default_rng(0)
    A = maps.standard_normal((8, 12))
    B = maps.standard_normal((8, 16))
    rng = default_rng(seed)
    sets = ([], [])
    for z in rng.standard_normal((n, 8)):
        for side, matrix in zip(sets, (A, B), strict=True):
            rows = z @ matrix + 0.5 * rng.standard_normal((rng.integers(3, 8), matrix.shape[1])) + 2
            side.append(torch.from_numpy(rows.astype(np.float32)))
    return sets


@torch.inference_mode()
def recalls(
    model: Network,
    regions: list[torch.Tensor],
    words: list[torch.Tensor],
) -> Recalls:
    model.eval()
    images = []
    texts = []
    for features, hidden in zip(regions, words, strict=True):
        boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(len(features), 4)
        images.append(
            model.images(
                features[None],
                boxes[None],
                torch.tensor([len(features)]),
            )[0],
        )
        texts.append(model.words(hidden[None], torch.tensor([len(hidden)]))[0])
    return evaluate_recall((torch.cat(texts) @ torch.cat(images).T).numpy(), np.arange(len(images)))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("tern", 80), ("vsrn", 40), ("vsrnpp", 40)])
def test_warm_start_recall(
    kind: str,
    least: float,
):
    torch.manual_seed(0)
    sizes = SIZES | {"joint_width": 16}
    if kind != "tern":
        sizes = {"width": 16, "norm_axis": "row"}
    text = {"kind": "embedding", "vocabulary": 30, "width": 16}
    network = checkpoint.make(
        kind,
        {"region_dim": 12, **sizes},
        text,
    )
    before = recalls(network, *paired(2, 200))
    means = [torch.stack([rows.mean(0) for rows in side]) for side in paired(1, 500)]
    warm_start(network, *means, 8)
    after = recalls(network, *paired(2, 200))
    for side in ("text_to_image", "image_to_text"):
        assert getattr(before, side).r10 < 20  # chance is 5
        assert getattr(after, side).r10 > least


@pytest.mark.parametrize("known", [0, 3])
def test_latent_semantics(known: int):
    rng = default_rng(0)
    counts = rng.poisson(0.7, (60, 12)) + np.eye(12)[rng.integers(0, 12, 60)]
    # A word of all captions.
    counts[:, 0] = 1
    bags = sparse.csr_array(counts / counts.sum(axis=1, keepdims=True))
    embedding = torch.nn.Embedding(12, known + 5)
    if known:
        with torch.no_grad():
            embedding.weight[:, known:] = 0
    before = embedding.weight.detach().clone()
    latent_semantics(embedding, bags)
    after = embedding.weight.detach()
    assert torch.equal(after[:, :known], before[:, :known])
    assert (after[0, known:] == 0).all()
    spread = np.log(60 / (counts > 0).sum(axis=0))
    U, S, _ = np.linalg.svd(bags.toarray() * spread)
    semantics = bags @ after[:, known:].numpy()
    semantics /= np.linalg.norm(semantics[:, 0])
    assert np.allclose(
        np.abs(semantics),
        np.abs(U[:, :5] * S[:5] / S[0]),
        atol=1e-4,
    )


def test_cca_correlations(monkeypatch):
    """Against the textbook's eigenvalues of Cxx^-1 Cxy Cyy^-1 Cyx."""
    monkeypatch.setattr(warmstart, "IMAGE_RIDGE", 1e-9)
    monkeypatch.setattr(warmstart, "TEXT_RIDGE", 1e-9)
    rng = default_rng(0)
    Z = rng.standard_normal((400, 3))
    X = Z @ rng.standard_normal((3, 5)) + rng.standard_normal((400, 5)) + 1
    Y = Z @ rng.standard_normal((3, 4)) + rng.standard_normal((400, 4)) - 2
    one, other = cca(
        torch.from_numpy(X),
        torch.from_numpy(Y),
        3,
    )
    assert np.allclose(one.mean, X.mean(0), atol=1e-5)
    assert np.allclose(other.mean, Y.mean(0), atol=1e-5)
    U = (X - X.mean(0)) @ one.matrix.double().numpy()
    V = (Y - Y.mean(0)) @ other.matrix.double().numpy()
    C = np.cov(np.hstack([X, Y]).T)
    product = np.linalg.solve(C[:5, :5], C[:5, 5:]) @ np.linalg.solve(C[5:, 5:], C[5:, :5])
    expected = np.sqrt(np.sort(np.linalg.eigvals(product).real)[::-1][:3])
    correlations = np.corrcoef(np.hstack([U, V]).T)
    assert np.allclose(correlations[:3, 3:], np.diag(expected), atol=1e-4)
    assert np.allclose(correlations[:3, :3], np.eye(3), atol=1e-4)
    for projected in (U, V):
        assert projected.std() == pytest.approx(1, abs=0.01)
        assert np.allclose(
            projected.std(axis=0) / projected[:, 0].std(),
            expected / expected[0],
            atol=1e-4,
        )


def test_cca_ridge():
    rng = default_rng(1)
    Z = rng.standard_normal((500, 2))
    X = Z * [1, 0.01]
    Y = Z + 0.1 * rng.standard_normal((500, 2))
    one, _ = cca(
        torch.from_numpy(X),
        torch.from_numpy(Y),
        2,
    )
    shares = (torch.from_numpy(X).float() @ one.matrix).std(dim=0)
    assert shares[0] > 20 * shares[1]


def vectors(chunks: list[Chunk]) -> torch.Tensor:
    return in_order(chunks, [chunk.encoded.vectors.T for chunk in chunks]).T


@pytest.mark.slow
def test_captions_in_order():
    torch.manual_seed(0)
    tower = text_towers.load_tower("small", 1, SENTENCES)
    model = Tern(
        TernConfig(
            8,
            8,
            1,
            16,
            1,
            2,
            16,
        ),
        tower.text,
    )
    items = [Item(str(i), "text", text) for i, text in enumerate(SENTENCES)]
    captions = CaptionTensors(items, tower.tokens)
    model.eval()
    numbers = [
        *default_rng(0).permutation(150).tolist(),
        3,
        3,
        0,
    ]
    with torch.inference_mode():
        together = vectors(captions.encode(model, numbers, "cpu"))
        alone = torch.cat(
            [
                vectors(
                    captions.encode(
                        model,
                        [number],
                        "cpu",
                    ),
                )
                for number in numbers
            ],
        )
        ids, lengths = text_towers.pad(captions.ids)
        direct = model.texts(ids, lengths)[0][numbers]
        hidden = model.txt_enc(ids, lengths)
    assert (together - alone).abs().max() <= 1e-5
    assert (together - direct).abs().max() <= 1e-5
    rows = zip(hidden, lengths, strict=True)
    means = torch.stack([row[:length].mean(dim=0) for row, length in rows])
    assert (
        captions.means(
            model,
            numbers,
            "cpu",
        )
        - means[numbers]
    ).abs().max() <= 0.01


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9])
def test_region_reader(
    library: Path,
    keep: float,
):
    torch.manual_seed(0)
    reader = RegionReader(library / "regions.h5")
    numbers = [7, 0, 39, 7, *range(1, 37)]
    whole, boxes, total = reader(numbers)
    features, _, lengths = reader(numbers, keep)
    assert lengths.min() >= 1
    with FeatureFile(library / "regions.h5") as file:
        for i, number in enumerate(numbers):
            expected = file.region_batch("image", number, number + 1).regions()[0]
            assert np.array_equal(whole[i, : total[i]], expected.features)
            assert np.array_equal(boxes[i, : total[i]], expected.boxes)
            rest = iter(whole[i])
            # A subset in the same order.
            for row in features[i, : lengths[i]]:
                assert any(torch.equal(row, other) for other in rest)
    assert float(lengths.sum() / total.sum()) == pytest.approx(max(keep, 1 / 46), abs=0.05)
    assert (lengths == 1).all() == (keep == 0)


def test_pairs_hold_out_and_batches(library: Path):
    pairs, captions = read_pairs(library / "regions.h5", None)
    rest, held_out = pairs.hold_out(8, seed=3)
    assert sorted([*rest.pictures, *held_out.pictures]) == pairs.pictures.tolist()
    assert len(held_out) == 8
    batches = list(rest.batches(10, 1, default_rng(0)))
    drawn = np.concatenate([pictures for pictures, _, _ in batches])
    assert len(drawn) == len(set(drawn.tolist())) == 30
    assert set(drawn) <= set(rest.pictures)
    for pictures, numbers, positive in batches:
        owners = [f"{picture:03d}.png" for picture in pictures]
        for j, number in enumerate(numbers):
            assert [owners[i] for i in torch.nonzero(positive[:, j]).flatten()] == [
                captions[number].group,
            ]
    few, theirs = read_pairs(library / "regions.h5", {"004.png"})
    assert few.pictures.tolist() == [4]
    assert [theirs[i].id for i in few.captions[0]] == ["004.png#0", "004.png#1"]
    rest, named = pairs.apart(numbers_of(library / "regions.h5", {"004.png", "017.png"}))
    assert named.pictures.tolist() == [4, 17]
    assert sorted([*rest.pictures, 4, 17]) == pairs.pictures.tolist()
    assert [c.tolist() for c in named.captions] == [pairs.captions[i].tolist() for i in (4, 17)]
    with pytest.raises(EncoderError, match="does not contain the 1 pictures for validation"):
        numbers_of(library / "regions.h5", {"strange.png"})
    with pytest.raises(EncoderError, match="no pictures with captions"):
        read_pairs(library / "regions.h5", set())


@pytest.mark.slow
@pytest.mark.parametrize("source", ["captions.csv", "regions.h5"])
def test_train_validate_option(
    library: Path,
    tmp_path: Path,
    source: str,
):
    names = [f"{i:03d}.png" for i in range(40)]
    for name, part in (("train", names[:24]), ("val", names[30:36]), ("both", names[20:32])):
        (tmp_path / f"{name}.txt").write_text("\n".join(part))
    sizes = "visual_width=8 joint_width=8 feedforward=8 heads=2 text_layers=1"
    tiny = [f"--set={size}" for size in f"{sizes} epochs=1 batch_size=8".split()]
    command = ("train", library / source, *tiny, "--validate", tmp_path / "val.txt")
    run(
        *command,
        "-o",
        tmp_path / "model",
        "--ids",
        tmp_path / "train.txt",
    )
    history = json.loads((tmp_path / "model" / "history.json").read_text())
    assert history["step"] == 24 // 8
    # The captions of six pictures.
    assert history["history"][0]["image_to_text"]["median_rank"] <= 2 * 6
    run(*command, "-o", tmp_path / "rest")
    assert json.loads((tmp_path / "rest" / "history.json").read_text())["step"] == (40 - 6) // 8
    refused = boc(*command, "-o", tmp_path / "model")
    assert "trained with another items" in refused.stderr
    refused = boc(
        *command,
        "-o",
        tmp_path / "other",
        "--ids",
        tmp_path / "both.txt",
    )
    assert (
        "2 pictures (such as 030.png) are in both the training and the validation set"
        in refused.stderr
    )
    (tmp_path / "all.txt").write_text("\n".join(names))
    refused = boc(
        *command[:-1],
        tmp_path / "all.txt",
        "-o",
        tmp_path / "other",
    )
    assert "40 pictures are too few, because 40 are held out and a batch needs" in refused.stderr


@given(warmup=st.integers(0, 50), rest=st.integers(1, 200))
def test_cosine_schedule(
    warmup: int,
    rest: int,
):
    steps = warmup + rest
    factors = [cosine(step, warmup, steps) for step in range(steps + 1)]
    assert factors[0] == (1 / warmup if warmup else 1)
    assert factors[warmup] == max(factors) == 1
    assert factors[steps] == pytest.approx(0, abs=1e-12)
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)


@given(
    values=st.lists(st.integers(-8, 8), min_size=1, max_size=30),
    decay=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_update_average(
    values: list[int],
    decay: float,
):
    average = {"w": torch.zeros(1, dtype=torch.float64)}
    expected = 0.0
    for step, value in enumerate(values):
        learned = {"w": torch.tensor([value], dtype=torch.float64)}
        update_average(average, learned, decay, step)
        factor = min(decay, (step + 1) / (step + 10))
        expected = factor * expected + (1 - factor) * value
        assert float(average["w"]) == pytest.approx(expected, abs=1e-9)
    if decay == 0:
        assert float(average["w"]) == values[-1]


Make = Callable[..., Trainer]


@pytest.fixture
def make(
    library: Path,
    tmp_path: Path,
) -> Make:
    """Makes a trainer of a tiny network on the library, in a folder of some name, with some
    settings."""
    plain = TrainConfig(
        epochs=3,
        batch_size=8,
        held_out=8,
        lr=1e-2,
        warmup=2,
    )

    def build(name, kind="tern", **settings):
        config = replace(plain, **settings)
        torch.manual_seed(0)
        pairs, items = read_pairs(library / "regions.h5", None)
        tower = text_towers.load_tower("small", 1, (item.content for item in items))
        sizes = {"width": 16} if kind.startswith("vsrn") else {**SIZES, "joint_width": 16}
        network = checkpoint.make(
            kind,
            {"region_dim": 108, **sizes},
            tower.text,
        )
        (tmp_path / name / "training").mkdir(parents=True, exist_ok=True)
        return Trainer(
            tmp_path / name,
            network,
            pairs,
            RegionReader(library / "regions.h5"),
            CaptionTensors(items, tower.tokens),
            config,
            device="cpu",
        )

    return build


def resume_at(
    stop: int,
    make: Make,
    settings: dict[str, Any],
) -> Trainer:
    """The trainer that continues a run that was stopped at the end of a step."""
    run = make("wild", **settings).run()
    while next(run).step < stop:
        pass
    run.close()
    return make("wild", **settings)


def assert_same_tensors(
    one: Trainer,
    other: Trainer,
) -> None:
    for kind in ("learned", "average", "buffers"):
        for name, tensor in getattr(one, kind).items():
            assert torch.equal(getattr(other, kind)[name], tensor), name


RUNS: dict[str, dict[str, Any]] = {
    "frozen": {},
    "learning": {"text_lr": 1.0},
    "steps": {"schedule": "steps", "decay_epochs": 1},
    "align": {
        "kind": "teran",
        "objective": "matching+alignment",
        "uncertainty": 1,
        "averaging": 1.0,
    },
    "vsrn": {
        "kind": "vsrn",
        "objective": "matching+generation",
        "generation_hidden": 8,
        "text_lr": 1.0,
    },
    "vsrnpp": {"kind": "vsrnpp", "sinkhorn": 5},
}


# Within the first epoch, and within the second.
STOPS = list(zip(RUNS.values(), (2, 6, 6, 2, 6, 2), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "stop"), STOPS, ids=RUNS.keys())
def test_resumed_run_equals_whole(
    make: Make,
    monkeypatch,
    settings: dict[str, Any],
    stop: int,
):
    calm = make("calm", **settings)
    assert [now.step for now in calm.run() if now.recalls is None] == list(range(1, 13))
    monkeypatch.setattr(trainer_module, "SAVE_SECONDS", 0)
    second = resume_at(stop, make, settings)
    steps = [now.step for now in second.run() if now.recalls is None]
    # The step at whose end the run was stopped is done again.
    assert steps == list(range(stop, 13))
    assert second.state == calm.state
    assert_same_tensors(second, calm)
    weights = [load_file(trainer.folder / "model.safetensors") for trainer in (calm, second)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_best_weights_are_saved(make: Make):
    for seed in range(9):  # until one that learns too fast ends below its best
        trainer = make(
            f"best-{seed}",
            epochs=6,
            lr=0.1,
            average=0.0,
            seed=seed,
        )
        totals = [now.recalls.total for now in trainer.run() if now.recalls is not None]
        if totals[-1] < max(totals):
            break
    assert totals[-1] < max(totals)
    assert trainer.state.best == max(totals)
    assert trainer.state.best_step == 4 * (1 + totals.index(max(totals)))
    trainer.network.load_state_dict(load_file(trainer.folder / "model.safetensors"))
    assert evaluate_recall(trainer.scores(), trainer.held_out.owners).total == max(totals)


@pytest.mark.slow
def test_bank_of_queries(
    make: Make,
    monkeypatch,
):
    trainer = make("bank", epochs=1)
    list(trainer.run())
    # Too few pictures to choose a bank.
    assert trainer.bank() is None
    chosen = []
    monkeypatch.setattr(trainer_module, "SIZE", 10)
    monkeypatch.setattr(trainer_module, "LEAST", 8)
    monkeypatch.setattr(
        trainer_module,
        "choose_bank",
        lambda *arrays: chosen.extend(arrays),
    )
    trainer.bank()
    bank_texts, bank_images, texts, images, owners = chosen
    assert bank_texts.shape == bank_images.shape == (10, 16)
    assert np.allclose(texts @ images.T, trainer.scores(), atol=1e-5)
    assert np.array_equal(owners, trainer.held_out.owners)
    assert not any((row == images).all(axis=1).any() for row in bank_images)


@pytest.mark.slow
@pytest.mark.parametrize("choose", ["ndcg", "ndcg-image"])
def test_choose_by_ndcg(
    make: Make,
    choose: str,
):
    trainer = make(
        "rouge",
        epochs=4,
        lr=0.1,
        average=0.0,
        choose=choose,
    )
    assert all(now.step for now in trainer.run())
    ndcgs = [Ndcg(**entry["ndcg"]) for entry in trainer.state.history]
    scores = [n.text_to_image + (n.image_to_text if choose == "ndcg" else 0) for n in ndcgs]
    assert len(scores) == 4
    assert trainer.state.best == max(scores)
    assert trainer.state.best_step == 4 * (1 + scores.index(max(scores)))
    trainer.network.load_state_dict(load_file(trainer.folder / "model.safetensors"))
    texts = [trainer.captions.texts[i] for i in np.concatenate(trainer.held_out.captions)]
    owners = trainer.held_out.owners
    graded = evaluate_ndcg(trainer.scores(), owners, rouge_l_matrix(texts, owners))
    best = ndcgs[scores.index(max(scores))]
    assert graded.text_to_image == pytest.approx(best.text_to_image, abs=1e-6)


@pytest.mark.slow
def test_frozen_tower(make: Make):
    for text_lr, same in ((0.0, True), (0.5, False)):
        trainer = make(
            f"tower-{same}",
            text_lr=text_lr,
            epochs=1,
        )
        before = deepcopy(trainer.network.txt_enc.state_dict())
        list(trainer.run())
        after = trainer.network.txt_enc.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before) == same


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (100, 1),
        (60, 6),
        (1, 1),
        (7, 7),
    ],
)
def test_negatives_schedule(
    make: Make,
    first: int,
    last: int,
):
    trainer = make(
        "negatives",
        epochs=9,
        negatives_first=first,
        negatives_last=last,
    )
    counts = [trainer._negatives(step) for step in range(trainer.steps)]
    assert counts[0] == first
    assert set(counts[-(-2 * trainer.steps // 3) :]) == {last}
    assert counts == sorted(counts, reverse=True)


def test_run_state_over():
    config = TrainConfig(patience=2)
    entries = [{"step": step} for step in (4, 8, 12)]
    assert not RunState(
        8,
        1.0,
        4,
        entries[:2],
    ).over(config, 20)
    assert RunState(
        12,
        1.0,
        4,
        entries,
    ).over(config, 20)
    assert not RunState(
        12,
        1.0,
        8,
        entries,
    ).over(config, 20)
    assert RunState(
        12,
        1.0,
        12,
        entries,
    ).over(config, 12)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipe_settings(name: str):
    plain = Recipe.of(name, {})
    assert plain == Recipe.of(name, RECIPES[name])
    width = "width" if plain.kind.startswith("vsrn") else "joint_width"
    settings = {"lr": "0.5", "epochs": "3", width: "8", "text": "folder", "text_layers": "1"}
    changed = Recipe.of(name, settings)
    assert (changed.train.lr, changed.train.epochs, changed.sizes[width]) == (0.5, 3, 8)
    assert (changed.text, changed.text_layers) == ("folder", 1)
    assert changed.sizes.keys() == plain.sizes.keys() | {width}
    assert changed.train.batch_size == plain.train.batch_size


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"depth": "3"}, "no setting 'depth'; known: .*joint_width.*batch_size.*text_layers"),
        ({"region_dim": "3"}, "no setting 'region_dim'"),
        ({"lr": "fast"}, "lr is 'fast' .expected `float`.*; for example, write boc train --set"),
        ({"epochs": "2.5"}, "epochs is '2.5' .expected `int`"),
        ({"text_layers": ""}, "text_layers is ''"),
        ({"scaled": "2"}, "scaled is '2' .expected `bool`"),
        ({"heads": "3"}, "visual_width must be a multiple of heads=3"),
    ],
)
def test_invalid_setting(
    setting: dict[str, str],
    words: str,
):
    with pytest.raises(EncoderError, match=words):
        Recipe.of("small", setting)


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        ("photos", {"objective": "alignment"}),
        ("photos-teran", {"vector": "first"}),
        ("teran", {"vector": "first", "objective": "alignment+generation"}),
        ("vsrn", {"objective": "alignment"}),
    ],
)
def test_untrained_vector(
    recipe: str,
    setting: dict[str, str],
):
    words = "its global vector keeps its random values; add matching"
    with pytest.raises(EncoderError, match=words):
        Recipe.of(recipe, setting)
    objective = f"matching+{setting.get('objective', 'alignment')}"
    assert Recipe.of(recipe, {**setting, "objective": objective}).train.objective == objective
