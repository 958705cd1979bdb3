from boc.vectors import Array

def nearest(
    queries: Array,
    heads: Array,
    head_scales: Array,
    starts: Array,
    vectors: Array,
    scales: Array,
    numbers: Array,
    cosines: Array,
    cells: int,
    /,
) -> None: ...
