"""Which keys of a job the command line has flags for."""

from __future__ import annotations

from sharegen.common.parameters.groups import flagged_keys

FLAGS = {each.key: each.flag.name for each in flagged_keys()}
"""The keys that a flag of their own sets -> the flag; others go by --set."""
