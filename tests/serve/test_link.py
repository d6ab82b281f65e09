"""What is said at one end of a link is heard at the other, in order."""

from __future__ import annotations

import asyncio
import socket

from sharegen.serve.link import Link


def test_messages_come_in_order_and_the_end_is_told() -> None:
    async def talk() -> tuple[list[object], list[str]]:
        loop, heard, lost = asyncio.get_running_loop(), [], []
        one, other = socket.socketpair()
        all_heard = asyncio.Event()

        def hear(message: object) -> None:
            heard.append(message)
            if message == "last":
                all_heard.set()

        says = Link(lambda message: None, lambda: lost.append("says"))
        says.say("before it is connected")
        hears = Link(hear, lambda: lost.append("hears"))
        await loop.create_connection(lambda: hears, sock=other)
        transport, _ = await loop.create_connection(lambda: says, sock=one)
        for each in (1, [2] * 300_000, {"3": b"3"}):  # the second in many pieces
            says.say(each)
            await asyncio.sleep(0)
        says.say("last")
        await asyncio.wait_for(all_heard.wait(), 60)
        transport.close()
        while len(lost) < 2:
            await asyncio.sleep(0.001)
        return heard, lost

    heard, lost = asyncio.run(talk())
    assert heard == ["before it is connected", 1, [2] * 300_000, {"3": b"3"}, "last"]
    assert sorted(lost) == ["hears", "says"]
