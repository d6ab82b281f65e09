"""GRPO by TRL over the module that sharegen samples from: its pace, its memory, its numbers."""
