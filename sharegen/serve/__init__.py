"""An OpenAI endpoint for one's own batch clients, beside jobs: requests come over HTTP instead.

The engine steps in the main thread (`engine_loop.py`), the endpoint listens in another (`api.py`),
and `ticket.py` is what goes between the two.

Where HTTP would cost that process too much, others listen in its place (`http_process.py`), and
tickets go over links to it (`http_processes.py`).

Batches are answered beside requests (`batch_runner.py`) and lie on disk (`file_store.py`,
`batch_output.py`). What a trainer orders goes to all engines at once (`orders.py`).
"""
