"""Without a GPU the Triton kernels run in Triton's interpreter, which is chosen at their import."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
