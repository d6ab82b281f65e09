"""sharegen: offline batch generation for language models when prompts share text."""

import os

# With Intel's BLAS, whether a product's inner dimension is split over threads depends on how many
# rows it has; in this mode it does not, so that a sequence's tokens never depend on its batch.
# Measured to cost nothing. It must stand before the first matrix product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

__version__ = "0.1.0"
