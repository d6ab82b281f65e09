"""sharegen: offline batch generation for language models when prompts share text."""

__version__ = "0.1.0"
