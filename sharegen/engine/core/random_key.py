"""The key of one sample's random stream: plain Python, for those that know no torch.

A sample's numbers depend on (seed, request, sample, position) and on nothing else. The mixing is
SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014);
`sample/draws.py` turns keys and positions into numbers.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


GAMMA, MIX_1, MIX_2 = _signed(_GAMMA), _signed(_MIX_1), _signed(_MIX_2)
"""SplitMix64's constants as signed 64-bit integers."""


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _with(key: int, part: int) -> int:
    return _mix(((key + _GAMMA) & _MASK) ^ _mix(part & _MASK))


class RequestKey:
    """What the keys of a request's samples begin with. Any integers, negative ones and numpy's
    too.
    """

    __slots__ = ("_key",)

    def __init__(self, seed: int, request_key: int) -> None:
        self._key = _with(_with(0, int(seed)), int(request_key))

    def of_sample(self, sample: int) -> int:
        """Return the 63-bit key of one sample's random stream."""
        return _with(self._key, int(sample)) >> 1


def row_key(seed: int, request_key: int, sample: int) -> int:
    """Return the 63-bit key of one sample's random stream."""
    return RequestKey(seed, request_key).of_sample(sample)
