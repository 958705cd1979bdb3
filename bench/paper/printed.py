"""Figures that the papers report for their published models, and verdicts on boc's figures.

Recalls are in percent, and NDCG@25 is in [0, 1]. "image" is image retrieval (sentence to picture),
and "sentence" is sentence retrieval (picture to sentence).
"""

from __future__ import annotations

MEASURES = tuple(
    f"{side} {measure}" for side in ("image", "sentence") for measure in ("R@1", "R@5", "R@10")
)
GRADED = tuple(
    f"{side} {relevance}" for side in ("image", "sentence") for relevance in ("ROUGE-L", "SPICE")
)
EQUAL = {"R": 0.15, "N": 0.0015}  # one and a half units of the last printed digit
NEAR = {"R": 1.0, "N": 0.01}  # the effect of another random seed in training

Numbers = dict[str, float]


def _numbers(image: str, sentence: str) -> Numbers:
    """Parse the figures of each side: three recalls, and then the NDCG by ROUGE-L and by SPICE if
    the paper reports it."""
    values: Numbers = {}
    for side, text in (("image", image), ("sentence", sentence)):
        names = ("R@1", "R@5", "R@10", "ROUGE-L", "SPICE")
        values |= {
            f"{side} {name}": float(value) for name, value in zip(names, text.split(), strict=False)
        }
    return values


PRINTED: dict[tuple[str, str], Numbers] = {
    ("TERN", "MS-COCO 1K"): _numbers("51.9 85.6 93.6 .725 .653", "63.7 90.5 96.2 .716 .674"),
    ("TERN", "MS-COCO 5K"): _numbers("28.7 59.7 72.7 .665 .600", "38.4 69.5 81.3 .601 .556"),
    ("TERAN MrSw", "MS-COCO 1K"): _numbers("65.0 91.2 96.4 .741 .668", "77.7 95.9 98.6 .746 .707"),
    ("TERAN MrSw", "MS-COCO 5K"): _numbers("42.6 72.5 82.9 .682 .610", "55.6 83.9 91.6 .643 .606"),
    ("TERAN MrSw", "Flickr30K 1K"): _numbers(
        "59.5 84.9 90.6 .686 .564",
        "75.8 93.2 96.7 .687 .614",
    ),
    ("VSRN (two models)", "MS-COCO 1K"): _numbers("62.8 89.7 95.1", "76.2 94.8 98.2"),
    ("VSRN (two models)", "MS-COCO 5K"): _numbers("40.5 70.6 81.1", "53.0 81.1 89.4"),
    ("VSRN (two models)", "Flickr30K 1K"): _numbers("54.7 81.8 88.2", "71.3 90.6 96.0"),
    ("VSRN++ (two models)", "MS-COCO 1K"): _numbers("64.1 91.0 96.1", "77.9 96.0 98.5"),
    ("VSRN++ (two models)", "MS-COCO 5K"): _numbers("42.0 72.2 82.7", "54.7 82.9 90.9"),
    ("VSRN++ (two models)", "Flickr30K 1K"): _numbers("60.6 85.6 91.4", "79.2 94.6 97.5"),
}
"""The papers' figures by model and test set. The figures for TERN are from Table I and, for
sentences, from Tables 1 and 2 of TERAN; for TERAN from Tables 1-3; for VSRN and VSRN++ from Tables
1-3 of VSRN++."""


def verdict(measure: str, printed: float, value: float | None) -> str:
    """Return ``reproduced`` for a value that matches the printed digits, ``near`` for a value
    within the effect of a seed, ``differs`` for other values, or ``not run`` without a value."""
    if value is None:
        return "not run"
    kind = "R" if "R@" in measure else "N"
    apart = round(abs(value - printed), 6)
    if apart <= EQUAL[kind]:
        return "reproduced"
    if apart <= NEAR[kind]:
        return "near"
    return "differs"
