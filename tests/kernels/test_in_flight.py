"""What the search for registers that are written too early finds."""

from __future__ import annotations

from tests.kernels.in_flight import written_in_loops

PRODUCT = "HGMMA.64x64x16.F32.BF16 R24, R88, gdesc[UR4], R24, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
AGAIN = "@P0 BRA `(.L_x_1)"


def test_a_factor_is_written_in_the_next_turn() -> None:
    turn = [".L_x_1", "LDSM.16.M88.4 R84, [R4]", "LDSM.16.M88.4 R88, [R4]", WAIT, PRODUCT, AGAIN]
    assert set(written_in_loops(turn)) == {"LDSM.16.M88.4 R88, [R4]"}


def test_a_wait_comes_first() -> None:
    turn = [".L_x_1", "IMAD R91, R1, R2, R3", PRODUCT, WAIT, "BAR.SYNC 0x0", AGAIN]
    assert not list(written_in_loops(turn))


def test_other_registers_and_memory_are_written() -> None:
    turn = [".L_x_1", "IMAD R92, R1, R2, R3", "STS [R88], R4", "@P1 LDS R87, [R88]", PRODUCT, AGAIN]
    assert not list(written_in_loops(turn))


def test_a_wide_result_reaches_a_factor() -> None:
    turn = [".L_x_1", "@P1 IMAD.WIDE R86, R1, R2, R4", "LDS.128 R85, [R4]", PRODUCT, WAIT, AGAIN]
    assert not list(written_in_loops(turn))
    turn.insert(4, "@!P1 LDS.128 R85, [R4]")
    assert list(written_in_loops(turn)) == ["@!P1 LDS.128 R85, [R4]"] * 2
