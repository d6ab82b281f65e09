"""What the driver and its workers say to each other: plain data, pickled."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sharegen.common.parameters.data import CheckpointParameters
from sharegen.common.parameters.machine import LoadParameters
from sharegen.engine.config import EngineConfig, EngineStats
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Completion, FinishReason, Request, TokenLogprobs
from sharegen.errors import SharegenError

if TYPE_CHECKING:
    from torch import nn

    from sharegen.engine.model.loaded import LoadedModel


class WorkersError(SharegenError):
    """A worker has failed, or none is left."""


@dataclass(frozen=True)
class Setting(CheckpointParameters, LoadParameters):
    """All that an engine is made from.

    Args:
        model: folder or hub id; for an engine in this process also a model that is loaded.
        load: makes the model instead, from the keywords `device` and, on each of several ranks,
            `ranks`.
        tokenizer: one that is loaded; None for none.
        threads: of torch; 0 leaves them be.
        ranks: processes that the model is cut among, each with a device of its own from `device`
            on.
        fingerprint: that the model is to have, where one is known.
    """

    model: str | os.PathLike[str] | nn.Module | LoadedModel
    tokenizer: Any
    config: EngineConfig
    threads: int = 0
    ranks: int = 1
    fingerprint: str | None = None
    load: Callable[..., LoadedModel] | None = None


@dataclass(frozen=True)
class Join:
    """All that a rank makes its half of an engine on the device from.

    address: where ranks 0..size-1 meet. load: makes the model of the keyword `ranks`. threads: of
    torch, for all ranks together.
    """

    rank: int
    size: int
    address: str
    device: str
    load: Callable[..., LoadedModel]
    tokenizer: Any
    config: EngineConfig
    threads: int


# -- to a worker ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """Say of each request why it can never run, if so."""

    requests: Sequence[Request]


@dataclass(frozen=True)
class Begin:
    """A job begins; seed: of requests that bring none. lengths: of samples of it until now.

    arriving: whether requests come one by one while others run. The worker checks them itself then.
    """

    job: int
    seed: int
    lengths: Lengths
    arriving: bool = False


@dataclass(frozen=True)
class Work:
    """Requests of the job to draw, besides those that the worker has.

    streams: keys of those whose tokens are told as they are drawn, where requests arrive.
    """

    requests: Sequence[Request]
    streams: Collection[int] = ()


@dataclass(frozen=True)
class Require:
    """The samples of a request with an index below `required` are required from now on."""

    key: int
    required: int


@dataclass(frozen=True)
class Cancel:
    """These samples of a request are wanted no more."""

    key: int
    samples: Sequence[int]


@dataclass(frozen=True)
class Forget:
    """Between two jobs: what prompts shared is forgotten."""


@dataclass(frozen=True)
class Hold:
    """Begin no step until the next of these says otherwise; what runs stays where it is."""

    is_held: bool


@dataclass(frozen=True)
class ReadWeights:
    """Read another checkpoint's weights, and see whether they fit the model."""

    folder: str


@dataclass(frozen=True)
class TakeWeights:
    """Between two jobs: the weights that were read take the place of the model's."""


@dataclass(frozen=True)
class DropWeights:
    """The weights that were read are not wanted."""


@dataclass(frozen=True)
class End:
    """The job is over: whatever is not finished is dropped."""


# -- from a worker or a rank above 0 ----------------------------------------------------------


@dataclass(frozen=True)
class Alive:
    """The sender lives; step_seconds: how long the step lasts that it is in, 0 outside of one."""

    step_seconds: float


# -- from a rank above 0 ----------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """The rank is about to join the others."""


# -- from a worker ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The engine stands.

    fingerprint, dtype, device, context_length: of its model. slots: samples that it decodes
    together. threads: of torch that it uses for its steps. resident: bytes of memory that the
    process holds. start: seconds that it took until then, by part.
    """

    fingerprint: str
    dtype: str
    device: str
    context_length: int
    slots: int
    threads: int
    resident: int
    stats: EngineStats
    start: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """What `Check` asked: for each request an error, or None."""

    errors: Sequence[SharegenError | None]


@dataclass(frozen=True)
class Obeyed:
    """What was said last of holding, and of weights, is done; or why it was not.

    fingerprint: of the model as it is now.
    """

    fingerprint: str
    error: SharegenError | None = None


class CompletionMessage(NamedTuple):
    """A completion without what the driver has: of its request it brings the key alone.

    A tuple, for its pickle is short and soon read: the driver reads one a sample.
    """

    key: int
    sample: int
    token_ids: list[int]
    text: str | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    cumulative_logprob: float
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    error: str | None
    num_cached_tokens: int = 0
    score: float | None = None

    @classmethod
    def of(cls, completion: Completion) -> CompletionMessage:
        values = vars(completion) | {"key": completion.request.key}
        del values["request"]
        return cls(**values)

    def completion(self, request: Request) -> Completion:
        return Completion(request, *self[1:])


class Growth(NamedTuple):
    """What a sample has drawn since the last report, with what was asked about its tokens."""

    key: int
    sample: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs]


@dataclass(frozen=True)
class Finished:
    """What has ended since the last report, and what the engine counts.

    grown: of samples that run and are told as they grow. refused: why requests that arrived can
    never run, by key.
    """

    job: int
    drawn: Sequence[CompletionMessage]
    stats: EngineStats
    grown: Sequence[Growth] = ()
    refused: Mapping[int, SharegenError] = field(default_factory=dict)


@dataclass(frozen=True)
class Warned:
    """Something that a user should read."""

    text: str


@dataclass(frozen=True)
class Failed:
    """The worker, or the rank, ends for this reason."""

    error: SharegenError
