from typing import Any, TypeVar

Kind = TypeVar("Kind")

def of(kind: type[Kind], names: tuple[str, ...], /, *columns: list[Any]) -> list[Kind]: ...
