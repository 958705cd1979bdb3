"""Paint galleries of captioned scenes from a seed, for demonstrations and tests. The command is
``python -m demo.gallery``."""

from demo.scene import Scene, Thing, boxes, captions, draw, draw_gallery, read_scenes, sample_scene

__all__ = [
    "Scene",
    "Thing",
    "boxes",
    "captions",
    "draw",
    "draw_gallery",
    "read_scenes",
    "sample_scene",
]
