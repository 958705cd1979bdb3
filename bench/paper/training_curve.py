"""Validation curves of trainings: recall, and NDCG where it was measured, after each epoch (TERAN, Fig. 3 and 6).

    python -m bench.paper.training_curve NAME=MODEL...

MODEL is a folder that ``boc train`` made. A row holds the steps done, the loss of the last of them, the six recalls in
percent and their sum on the pictures held out, NDCG@25 of both directions, and whether the model has these weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from bench.report.rows import Writer
from boc.evaluate.metrics import Recall, Recalls

SIDES = {"text_to_image": "sentence to picture", "image_to_text": "picture to sentence"}
COLUMNS = (
    "model", "step", "loss", *(f"{side} R@{k}" for side in SIDES.values() for k in (1, 5, 10)), "sum",
    *(f"{side} NDCG" for side in SIDES.values()), "kept",
)  # fmt: skip


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="NAME=MODEL...")
def main(models: tuple[str, ...]) -> None:
    """Print the validation curves of MODELS, NAME=FOLDER each."""
    named = [model.partition("=") for model in models]
    with Writer(sys.stdout, __file__, {name: Path(folder) for name, _, folder in named}, COLUMNS) as out:
        for name, equals, folder in named:
            path = Path(folder) / "history.json"
            if not equals or not path.is_file():
                raise click.ClickException(f"{name}{equals}{folder}: no finished training; write NAME=FOLDER")
            state = json.loads(path.read_text(encoding="utf-8"))
            for entry in state["history"]:
                recalls = Recalls(*(Recall(**entry[side]) for side in SIDES))
                ndcg = entry.get("ndcg", {})
                six = [f"{r:.2f}" for side in SIDES for r in list(entry[side].values())[:3]]
                loss = f"{entry['loss']:.4f}" if "loss" in entry else None
                values = [f"{ndcg[side]:.4f}" if side in ndcg else None for side in SIDES]
                kept = entry["step"] == state["best_step"]
                out.write(name, entry["step"], loss, *six, f"{recalls.total:.2f}", *values, "yes" if kept else None)


if __name__ == "__main__":
    main()
