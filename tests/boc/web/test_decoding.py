"""Pictures that are decoded at the same time stay within one budget."""

import threading
from pathlib import Path

import pytest
from PIL import Image

from boc.errors import ImageError
from boc.inputs.images import read_image
from boc.web.pictures.decoding import PixelBudget


@pytest.mark.slow
@pytest.mark.parametrize(
    "pixels",
    [1, 100, 250, 10_000],
)
def test_budget_limits_pixels(tmp_path: Path, pixels: int):
    sizes = [(10, 10), (5, 5), (10, 20), (50, 50)] * 6
    lock = threading.Lock()
    most = [0]
    held = []
    for number, size in enumerate(sizes):
        Image.new("L", size).save(tmp_path / f"{number}.png")
    budget = PixelBudget(pixels)

    def decode(number):
        with budget.of(tmp_path / f"{number}.png", "x"):
            with lock:
                held.append(number)
                taken = [sizes[each][0] * sizes[each][1] for each in held]
                assert sum(taken) <= pixels or len(taken) == 1
                most[0] = max(most[0], len(held))
            threading.Event().wait(0.005)
            with lock:
                held.remove(number)

    threads = [
        threading.Thread(
            target=decode,
            args=(number,),
        )
        for number in range(len(sizes))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] >= 1
    assert not held


def test_budget_after_an_error(tmp_path: Path):
    Image.new("L", (10, 10)).save(tmp_path / "a.png")
    budget = PixelBudget(100)
    for _ in range(3):
        with pytest.raises(ValueError, match="odd"), budget.of(tmp_path / "a.png", "a"):
            raise ValueError("odd")
    with pytest.raises(ImageError, match=r"^x:"), budget.of(tmp_path / "none.png", "x"):
        pass
    with budget.of(tmp_path / "a.png", "a"):
        pass


@pytest.mark.parametrize(
    "least",
    [1, 100, 480, 5000],
)
def test_draft_size(tmp_path: Path, least: int):
    Image.new("RGB", (2000, 1000)).save(tmp_path / "a.jpg")
    width, height = read_image(tmp_path / "a.jpg", least=least).size
    assert width >= min(least, 2000)
    assert height >= min(least, 1000)
    assert abs(width - 2 * height) <= 2
