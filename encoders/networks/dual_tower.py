"""The towers of dual encoders of ``transformers``: global vectors and tokens, and tokens in the
joint space."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Tolerance relative to the global vector: float32 rounding is a hundredth of it, other tokens are
# far away.
CLOSE = 1e-3


class Tower:
    """One of the two towers: inputs to global vectors and tokens, tokens to the joint space.

    ``features`` gives the global vectors, ``tower`` is the network that it calls, ``projection``
    its last layer.
    """

    def __init__(
        self,
        features: Callable[..., Any],
        tower: nn.Module,
        projection: nn.Module | None,
    ) -> None:
        self._features = features
        self._tower = tower
        self._projection = projection or nn.Identity()
        self._pool: nn.Module = nn.Identity()

    def __call__(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit vectors (B, dim), and the tokens (B, T, w) of the last layer."""
        output = self._features(**inputs)
        vectors = output.pooler_output
        hidden = output.last_hidden_state
        if hidden.ndim == 4:  # the feature map of a convolutional network
            hidden = hidden.flatten(2).transpose(1, 2)
        return nn.functional.normalize(vectors.float(), dim=-1), hidden

    def joint(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, T, w), each pooled as if it were the only one, in the joint space (B, T,
        dim)."""
        single = tokens.flatten(0, 1)[:, None]
        projected: Tensor = self._projection(self._pool(single).flatten(1))
        joint: Tensor = projected.unflatten(0, tokens.shape[:2])
        return joint

    def learn_pool(self, vector: Tensor, hidden: Tensor) -> bool:
        """Find the map that the tower applies to a token between its last layer and the projection,
        from the unit vector (1, dim) and the tokens (1, T, w) of one input. False if single tokens
        cannot be mapped.

        The right map takes one of the tokens, or their mean, to the vector. A head that attends to
        all tokens cannot be tested in this way, and is chosen if no other map fits.
        """
        inner = getattr(self._tower, "text_model", self._tower)
        inner = getattr(self._tower, "vision_model", inner)
        heads = [getattr(inner, name, None) for name in ("post_layernorm", "pooler", "head")]
        # A head without parameters maps no single token.
        known = [head for head in heads if isinstance(head, nn.Module) and list(head.parameters())]
        for self._pool in (nn.Identity(), *known):
            rows = self.joint(hidden)[0].float()
            candidates = torch.cat([rows, rows.mean(0, keepdim=True)])
            differences = nn.functional.normalize(candidates, dim=-1) - vector
            if float(differences.norm(dim=1).min()) <= CLOSE:
                return True
        return heads[-1] is not None
