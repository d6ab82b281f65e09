"""What a step drew, on its way to the host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


class Drawn:
    """Tokens that may still be being computed: asking for them waits.

    tokens, logprobs: [n], in the batch's order. ended: [n] which of them are EOS or a stop token of
    their sample; None for prompt tokens. ranks: [n] their places among all tokens, and top_ids,
    top_logprobs: [n, k] the likeliest of each place, where some sequence wants them. The copy to
    the host is ordered before whatever is launched next, so the step's own outputs may be
    overwritten then.
    prompt: the same of prompt tokens, for a prefill batch of which they are wanted.
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        logprobs: torch.Tensor,
        ended: torch.Tensor | None = None,
        ranks: torch.Tensor | None = None,
        top_ids: torch.Tensor | None = None,
        top_logprobs: torch.Tensor | None = None,
        *,
        prompt: Drawn | None = None,
    ) -> None:
        self.prompt = prompt
        self._on_host = [
            _to_host(t) for t in (tokens, logprobs, ended, ranks, top_ids, top_logprobs)
        ]
        self._done: torch.cuda.Event | None = None
        if tokens.is_cuda:
            self._done = torch.cuda.Event()
            self._done.record()

    @property
    def is_done(self) -> bool:
        """Whether nobody has to wait for it any more."""
        return self._done is None or self._done.query()

    @property
    def has_top(self) -> bool:
        return self._on_host[3] is not None

    def wait(self) -> None:
        """Wait until all of it is on the host."""
        if self._done is not None:
            self._done.synchronize()

    def get(self) -> tuple[list[int], list[float]]:
        """Wait for the tokens and their log-probabilities."""
        tokens, logprobs = self._wait(0), self._wait(1)
        return tokens.tolist(), logprobs.tolist()

    def arrays(self, count: int) -> tuple[Int64, Float64, Bool]:
        """Wait for the tokens of the first `count` places, their log-probabilities, and which
        tokens end their sample.
        """
        tokens, logprobs, ended = (self._wait(index)[:count].numpy() for index in range(3))
        return tokens, logprobs.astype(np.float64), ended

    def get_ended(self) -> list[bool]:
        """Wait for which of the tokens end their sample."""
        ended: list[bool] = self._wait(2).tolist()
        return ended

    def get_top(self) -> list[tuple[int, list[int], list[float]]]:
        """Wait for (token rank, likeliest tokens, their log-probabilities) of each place."""
        columns = (self._wait(index).tolist() for index in (3, 4, 5))
        return list(zip(*columns, strict=True))

    def _wait(self, index: int) -> torch.Tensor:
        self.wait()
        tensor = self._on_host[index]
        assert tensor is not None
        return tensor


def _to_host(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
