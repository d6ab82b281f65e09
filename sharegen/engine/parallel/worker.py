"""One engine in a process of its own: requests in, completions out, as long as the driver lives."""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

import torch

from sharegen.common.start_clock import START
from sharegen.engine.core.request import Completion
from sharegen.engine.execute.process import short_collections
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.model.new_weights import NewWeights
from sharegen.engine.parallel.ahead import LoadedAhead
from sharegen.engine.parallel.arrivals import TOGETHER_SECONDS, Arrivals
from sharegen.engine.parallel.line import Line
from sharegen.engine.parallel.messages import (
    Begin,
    Cancel,
    Check,
    Checked,
    CompletionMessage,
    DropWeights,
    End,
    Failed,
    Finished,
    Forget,
    Growth,
    Hold,
    Obeyed,
    ReadWeights,
    Ready,
    Require,
    Setting,
    TakeWeights,
    Warned,
    Work,
    WorkersError,
)
from sharegen.engine.parallel.rank_zero import engine_of
from sharegen.errors import ModelError, SharegenError

_REPORT_SECONDS = 0.2  # between reports while nothing ends: the driver shows what runs


def serve(line: Line, ahead: LoadedAhead | None = None) -> None:
    """Make the engine that the first message describes, and work until the driver hangs up.

    ahead: a model that is loaded, which may be the one that is described.
    """

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        line.say(Warned(str(message)))

    warnings.showwarning = warn
    try:
        worker = _Worker(line, ahead)
        with short_collections():
            worker.work()
    except ConnectionError:
        pass  # the driver is gone, and nobody is left to tell
    except SharegenError as error:
        line.say(Failed(error))
    except (RuntimeError, MemoryError) as error:  # torch's own: no memory, a fault of the card
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        line.say(Failed(WorkersError(said)))


class _Worker:
    def __init__(self, line: Line, ahead: LoadedAhead | None) -> None:
        setting: Setting = line.get()
        if setting.threads:
            torch.set_num_threads(setting.threads)
        stay_on(resolve_device(setting.device))
        loaded = setting if ahead is None else ahead.given_to(setting)
        self.engine = engine_of(loaded, stuck=lambda error: line.say(Failed(error)))
        if setting.fingerprint not in (None, self.engine.model.fingerprint):
            raise ModelError(
                f"{setting.model} is not the model that the job was begun with: its files differ"
            )
        self.line = line
        self.job = 0
        self.arrivals: Arrivals | None = None  # of a job to which requests come
        self.is_held = False
        self.new_weights: NewWeights | None = None
        self.reported = time.monotonic()
        line.say(
            Ready(
                fingerprint=self.engine.model.fingerprint,
                dtype=str(self.engine.model.dtype).removeprefix("torch."),
                device=str(self.engine.model.device),
                context_length=self.engine.model.context_length,
                slots=self.engine.stats.slots,
                threads=self.engine.threads,
                resident=_resident(),
                stats=self.engine.stats,
                start=START.seconds(),
            )
        )

    def work(self) -> None:
        """Take messages as they come, and step in between; wait where there is nothing to do."""
        while True:
            self._take_all()
            self.line.begin_step()
            self._report(self.engine.step() if self.engine.has_work else ())

    @property
    def _has_work(self) -> bool:
        return self.engine.has_work or (self.arrivals is not None and self.arrivals.wait)

    def _take_all(self) -> None:
        """Take all that has come. Where nothing is to do, wait for it; and then, of requests that
        arrive, a moment for what comes with the first."""
        was_idle = not self._has_work
        while self.is_held or not self._has_work or self.line.has_mail:
            self._take()
            if was_idle and self.arrivals is not None and self.arrivals.wait:
                was_idle = False
                time.sleep(TOGETHER_SECONDS)
        if self.arrivals is not None:
            self.arrivals.admit()

    def _take(self) -> None:
        match self.line.get():
            case Check(requests):
                self.line.say(Checked(self.engine.errors(requests)))
            case Begin(job, seed, lengths, arriving):
                self.job = job
                self.engine.begin(seed, lengths, arriving)
                self.arrivals = Arrivals(self.engine) if arriving else None
            case Work() as work if self.arrivals is not None:
                self.arrivals.come(work)
            case Work(requests):
                self.engine.add(requests)
            case Require(key, required):
                self.engine.call(key, required)
            case Cancel(key, samples) if self.arrivals is not None:
                self.arrivals.cancel(key, samples)
                self._report(())
            case Cancel(key, samples):
                self.engine.cancel(key, samples)
            case End():
                self.engine.end()
                self.arrivals = None
            case Forget():
                self.engine.reset_prefix_cache()
            case Hold(is_held):
                self.is_held = is_held
                self._obeyed()
            case ReadWeights(folder):
                self._obeyed(self._read_weights(folder))
            case TakeWeights():
                assert self.new_weights is not None
                self.engine.take_weights(self.new_weights)
                self.new_weights = None
                self._obeyed()
            case DropWeights():
                self.new_weights = None
                self._obeyed()

    def _read_weights(self, folder: str) -> SharegenError | None:
        """Read them; why they are none for this model, if so."""
        try:
            self.new_weights = NewWeights(self.engine.model, folder)
        except SharegenError as error:
            return error
        except (RuntimeError, MemoryError) as error:  # torch's own: no memory on the host
            return ModelError(
                f"{folder}: cannot be read: {next(iter(str(error).splitlines()), '')}"
            )
        return None

    def _obeyed(self, error: SharegenError | None = None) -> None:
        self.line.say(Obeyed(self.engine.model.fingerprint, error))

    def _report(self, completions: Sequence[Completion]) -> None:
        now = time.monotonic()
        grown: Sequence[Growth] = ()
        refused: Mapping[int, SharegenError] = {}
        if self.arrivals is not None:
            grown, refused = self.arrivals.growth(completions), self.arrivals.refused()
        is_news = completions or grown or refused
        is_last = self.arrivals is not None and not self._has_work  # nothing may come after it
        if not (is_news or is_last) and now - self.reported < _REPORT_SECONDS:
            return
        drawn = [CompletionMessage.of(completion) for completion in completions]
        self.line.say(Finished(self.job, drawn, self.engine.stats, grown, refused))
        self.reported = now


def stay_on(device: torch.device) -> None:
    """Make a GPU the one that torch means by default, so that nothing ever touches another one.

    A Ray actor sees its own GPU alone, and its device has no index.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)


def _resident() -> int:
    """The most bytes that this process has held so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def main(descriptor: int) -> None:
    """The process: the driver is at the other end of its descriptor."""
    serve(Line(Connection(descriptor)))
