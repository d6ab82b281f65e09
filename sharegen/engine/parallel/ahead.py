"""A model that is loaded before workers on a CPU are copied: each copy has it at once.

The process that is copied loads it while the driver makes tokens of prompts, and once for all
workers, who share its memory.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from sharegen.common.parameters.data import CheckpointParameters
from sharegen.common.parameters.machine import LoadParameters
from sharegen.common.parameters.parameter import values_of
from sharegen.engine.parallel.outline import ModelOutline
from sharegen.errors import SharegenError

if TYPE_CHECKING:
    from sharegen.engine.model.loaded import LoadedModel
    from sharegen.engine.parallel.messages import Setting


@dataclass(frozen=True)
class ModelAhead(CheckpointParameters, LoadParameters):
    """Which model, and how it is loaded, on a CPU. model: its folder, or its GGUF file.

    kv_cache_dtype: of the job.
    """

    model: str
    kv_cache_dtype: str = "auto"

    def is_of(self, setting: Setting) -> bool:
        """Whether it is what the setting says, and nothing else."""
        groups = (CheckpointParameters, LoadParameters)
        own = [values_of(group, replace(self, device="cpu")) for group in groups]
        others = [values_of(group, setting) for group in groups]
        return setting.load is None and self.model == setting.model and own == others


class LoadedAhead(NamedTuple):
    """The model, and what loading it has warned of."""

    asked: ModelAhead
    model: LoadedModel
    warned: tuple[str, ...]

    @property
    def outline(self) -> ModelOutline:
        """What the driver has to know of it."""
        return ModelOutline.of(self.model, self.asked.kv_cache_dtype)

    def given_to(self, setting: Setting) -> Setting:
        """The setting with the model, where it is of it, and the warnings as if loaded now."""
        if setting.ranks != 1 or not self.asked.is_of(setting):
            return setting
        for said in self.warned:
            warnings.warn(said, stacklevel=2)
        return replace(setting, model=self.model)


def load_ahead(asked: ModelAhead) -> LoadedAhead | SharegenError | None:
    """Load it, or return what is wrong with it.

    None where something else fails: a worker tries it again, and says what.

    One thread computes, for a process with more cannot be copied.
    """
    from sharegen.engine.execute.process import using
    from sharegen.engine.model.load import load_model

    checkpoint = values_of(CheckpointParameters, asked)
    how = values_of(LoadParameters, asked) | {"device": "cpu"}
    with warnings.catch_warnings(record=True) as warned, using(1):
        warnings.simplefilter("always")
        try:
            model = load_model(asked.model, **checkpoint, **how)
        except SharegenError as error:
            return error
        except (OSError, RuntimeError, MemoryError):
            return None
    told = (str(each.message) for each in warned if each.category is UserWarning)
    return LoadedAhead(asked, model, tuple(told))
