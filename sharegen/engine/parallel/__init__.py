"""Several engines for one job: what is dealt to whom, and the processes that they run in.

The driver sees requests and completions, a worker one engine; neither knows what is asked or where
the results go. `deal.py` imports no torch.
"""
