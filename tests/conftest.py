"""What must be set before torch and Triton are imported, here and in processes that tests start."""

import os

# Tiny models gain nothing from a second thread, and tests that run side by side (-n) lose by it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    # The kernels run in Triton's interpreter, which is chosen at their import.
    os.environ["TRITON_INTERPRET"] = "1"
