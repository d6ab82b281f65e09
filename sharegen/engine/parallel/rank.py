"""A rank above 0, in a process of its own: it runs what rank 0 does, as long as that lives."""

from __future__ import annotations

import os
import sys
import time
import warnings
from multiprocessing.connection import Connection

import torch

from sharegen.engine.core.batch import Batch
from sharegen.engine.execute.memory import is_out_of_memory, rank_out_of_memory
from sharegen.engine.execute.process import short_collections, using
from sharegen.engine.execute.room import TakenBack
from sharegen.engine.execute.runner import Runner
from sharegen.engine.model.loaded import on
from sharegen.engine.model.tensor_parallel import ranks
from sharegen.engine.parallel.line import Line
from sharegen.engine.parallel.messages import Failed, Here, Join
from sharegen.engine.prepared import Prepared, Start
from sharegen.errors import SharegenError

_LAST_SECONDS = 3.0  # in which rank 0 ends what only failed because another rank is gone


def serve(line: Line) -> None:
    """Join the ranks as the first message says, and run what comes until rank 0 lets go."""
    join: Join = line.get()
    warnings.simplefilter("ignore")  # rank 0 sees the same, and says so
    try:
        line.say(Here())
        _run(join, line)
    except ConnectionError:
        pass  # rank 0 is gone
    except SharegenError as error:
        if error.__cause__ is not None:  # a forward, which fails where another rank is gone, too
            time.sleep(_LAST_SECONDS)
        line.say(Failed(error))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            time.sleep(_LAST_SECONDS)
            raise
        line.say(Failed(rank_out_of_memory(join.rank)))


def _run(join: Join, line: Line) -> None:
    torch.set_num_threads(join.threads)
    device = torch.device(join.device)
    place = ranks.connect(join.rank, join.size, join.address, device)
    with on(device):
        with using(max(1, join.threads // join.size)):  # all ranks read at once
            model = join.load(ranks=place)
        prepared = Prepared(model, join.tokenizer, join.config)
        runner: Runner | None = None
        with using(prepared.threads), short_collections():
            while (record := line.get()) is not None:
                line.begin_step()
                if isinstance(record, Start):
                    runner = None  # its buffers, before there are others
                    runner = prepared.runner(record)
                else:
                    assert runner is not None
                    _step(runner, record)
        model.release()
        del runner, prepared  # the graphs, which hold collectives
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    ranks.disconnect()


def _step(runner: Runner, batch: Batch) -> None:
    """Run a batch, unless all ranks take it back."""
    try:
        runner.run(batch)
    except TakenBack:
        runner.spare_memory()  # as rank 0 does before it goes on


def main(descriptor: int) -> None:
    """The process: rank 0 is at the other end of its descriptor."""
    serve(Line(Connection(descriptor)))
    sys.stderr.flush()
    os._exit(0)  # taking torch apart takes seconds, for which rank 0 would wait
