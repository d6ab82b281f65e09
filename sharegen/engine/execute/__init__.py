"""From a batch to tensors to tokens: the one room that runs the model.

Sees batches as data; decides nothing about who runs, and knows no request.
"""
