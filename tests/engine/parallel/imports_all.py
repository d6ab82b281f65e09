"""What a worker's process might import, for test_program.py."""

import os
import sys


def main(descriptor: int) -> None:
    import concurrent.futures
    import json
    import multiprocessing.resource_tracker
    import queue
    import socket
    import xml.dom.minidom  # noqa: F401

    # As a library in it would begin another one: the first entry is the current folder by default.
    child = "import sys; import json; sys.exit(len(sys.argv) - 1)"
    code = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", child, "1"])
    modules = (concurrent, json, multiprocessing, queue, socket)
    os.write(descriptor, f"{code} {len(modules)}".encode())
