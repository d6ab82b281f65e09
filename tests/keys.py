"""The keys of a recipe, as its models declare them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from pydantic import BaseModel


def keys(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key of a section and of the sections in it."""
    for name, field in model.model_fields.items():
        yield (*above, name)
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if inspect.isclass(kind) and issubclass(kind, BaseModel):
                yield from keys(kind, (*above, name))
