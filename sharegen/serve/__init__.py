"""An OpenAI endpoint for one's own batch clients, beside jobs: requests come over HTTP instead.

The engine steps in the main thread (`engine_loop.py`), the endpoint listens in another (`api.py`),
and `ticket.py` is what goes between the two.
"""
