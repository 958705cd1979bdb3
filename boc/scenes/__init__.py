"""Galleries of painted scenes with captions, drawn from a seed, for demonstrations and tests."""

from boc.scenes.scene import (
    Scene,
    Thing,
    boxes,
    captions,
    draw,
    draw_gallery,
    read_scenes,
    relevance,
    sample_scene,
)

__all__ = ["Scene", "Thing", "boxes", "captions", "draw", "draw_gallery", "read_scenes", "relevance", "sample_scene"]
