"""Choose the query bank of a trained model (``encoders/runtime/hubs.py``) during training.

The bank's captions and pictures come from the training set; its strengths maximise recall on the
held-out pictures. If a bank does not improve recall, the model is saved without a bank.
"""

import numpy as np

from boc.evaluate.metrics import evaluate_recall
from boc.vectors import Floats, Ints

from ..runtime.hubs import HubBank, hub_offsets

SIZE = 500  # number of captions and number of pictures in the bank
LEAST = 100  # minimum number of held-out pictures for choosing strengths
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def choose_bank(
    bank_texts: Floats,
    bank_images: Floats,
    texts: Floats,
    images: Floats,
    owners: Ints,
) -> HubBank | None:
    """Return a bank of caption and picture vectors, with the best strengths for ``texts`` (n, d)
    and ``images`` (m, d). ``owners`` (n,) contains the number of each text's picture. Returns None
    if offsets do not improve recall in either direction."""
    scores = texts @ images.T
    of_images = hub_offsets(images, bank_texts).astype(np.float32)
    of_texts = hub_offsets(texts, bank_images).astype(np.float32)
    best = [(-1.0, 0.0), (-1.0, 0.0)]
    for strength in STRENGTHS:
        factor = np.float32(strength)
        recalls = evaluate_recall(scores - factor * of_images - factor * of_texts[:, None], owners)
        # Query offsets do not change the order of items.
        for side, recall in enumerate((recalls.text_to_image, recalls.image_to_text)):
            if recall.total > best[side][0]:
                best[side] = (recall.total, strength)
    strengths = [strength for _, strength in best]
    if not any(strengths):
        return None
    return HubBank.of(bank_texts, bank_images, strengths)
