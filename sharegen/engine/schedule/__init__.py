"""Who runs next: the scheduler, the rows of the batch, and batches as data.

Numbers only: imports no torch, and knows neither the model nor what a token means.
"""
