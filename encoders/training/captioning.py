"""Caption branch of VSRN, which trains the regions to contain enough information to generate the
caption (VSRN, section 3.4, eq. 8).

The branch is used only in training.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..networks.layers import padding_mask
from ..networks.vsrn import at_last


def caption_targets(ids: Sequence[Sequence[int]], max_length: int = 60) -> Tensor:
    """Pad the ids of whole captions, including start and end, with zeros to targets (B, T) int64,
    where T is at most ``max_length``.

    A longer caption is truncated but keeps its end token. A shorter caption is followed by at least
    one pad, which the branch must predict.
    """
    cut = [[*row[:-1][: max_length - 1], row[-1]] for row in ids]
    longest = max(len(row) for row in cut)
    targets = torch.zeros((len(cut), min(1 + longest, max_length)), dtype=torch.long)
    for target, row in zip(targets, cut, strict=True):
        target[: len(row)] = torch.tensor(row)
    return targets


class CaptionBranch(nn.Module):
    """Caption generator in which one GRU encodes the regions V* of a picture, and another GRU
    generates the caption with attention to the first GRU.

    The branch follows the authors' code, which uses GRUs with additive attention, whereas the paper
    describes LSTMs. ``dim`` is the width of the regions, and ``vocabulary`` is the number of ids.
    """

    def __init__(
        self,
        dim: int,
        vocabulary: int,
        hidden: int,
    ) -> None:
        super().__init__()
        word_dim = 300
        self.vid2hid = nn.Linear(dim, hidden)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.embedding = nn.Embedding(vocabulary, word_dim)
        self.attend_regions = nn.Linear(hidden, hidden)
        self.attend_state = nn.Linear(hidden, hidden, bias=False)
        self.attention = nn.Linear(hidden, 1, bias=False)
        self.decoder = nn.GRUCell(word_dim + hidden, hidden)
        self.out = nn.Linear(hidden, vocabulary)
        self.dropout = nn.Dropout(0.2)

    def forward(
        self,
        regions: Tensor,
        lengths: Tensor,
        targets: Tensor,
        owners: Tensor,
    ) -> Tensor:
        """Compute the negative log-likelihood of each word given the words before it, summed over
        the captions and divided by their number.

        ``regions`` is (B, n, dim) with ``lengths`` (B,) of at least 1. ``targets`` (C, T) come from
        ``caption_targets``; only the tokens from the second to the first pad count. ``owners`` (C,)
        contains the picture of each caption.
        """
        lengths = lengths.clamp(min=1)
        read, _ = self.encoder(self.dropout(self.vid2hid(regions)))
        state = at_last(read, lengths)[owners]
        keys = self.attend_regions(read)[owners]
        padding = padding_mask(lengths, regions.shape[1])[owners]
        read = read[owners]
        states = []
        for word in self.embedding(targets[:, :-1]).unbind(1):
            # Compute the attention (C, n) to the regions, and their weighted mean (C, hidden).
            queries = self.attend_state(state)[:, None]
            energies = self.attention(torch.tanh(keys + queries))[..., 0]
            weights = energies.masked_fill(padding, -torch.inf).softmax(dim=1)
            context = (weights[:, None] @ read)[:, 0]
            inputs = torch.cat([word, context], dim=1)
            state = self.decoder(self.dropout(inputs), state)
            states.append(state)
        counted = targets[:, :-1] != 0
        logits = self.out(torch.stack(states, dim=1)[counted])
        loss = nn.functional.cross_entropy(logits, targets[:, 1:][counted], reduction="sum")
        return loss / len(targets)
