"""A process that says what it is told first."""

import pickle
from multiprocessing.connection import Connection


def main(descriptor: int) -> None:
    line = Connection(descriptor)
    line.send_bytes(pickle.dumps(line.recv()))
