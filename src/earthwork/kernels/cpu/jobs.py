"""A job: words in memory that say what a kernel is to do, so that a thread that knows its address can take part.

Each thread takes a room to work in, then one tile after the other until none is left. It does not matter which thread
comes first, how many come, or whether one of them is slow.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-call"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types

from earthwork.kernels.cpu.compiled import part
from earthwork.kernels.cpu.lanes import peek, poke

# Numba's annotations describe what an intrinsic's maker takes, not what a kernel calls it with.
intrinsic: Any = extending.intrinsic

# Where the words are. FAULT is what the kernel has to tell; two options are doubles; what comes after them is integers.
NEXT, TILES, TAKEN, ROOMS, ADDRESS, SIZE, FAULT, OPTIONS, BATCH = 0, 1, 2, 3, 4, 5, 6, 7, 9
BATCH_WORDS = 7
PLAN = BATCH + BATCH_WORDS

_WORD = ir.IntType(64)


@intrinsic
def number_of(typing: Any, pointer: Any) -> Any:
    """A zero of the type of number that a kernel was compiled for, which is that of its pointer."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_constant(pointer.dtype, 0)

    return pointer.dtype(pointer), lower


@intrinsic
def address_of(typing: Any, pointer: Any) -> Any:
    """The pointer as an integer."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], _WORD)

    return types.int64(pointer), lower


@intrinsic
def take(typing: Any, job: Any, word: Any) -> Any:
    """The number at a word, which goes up by one in the same moment, whoever else asks."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.gep(builder.inttoptr(args[0], _WORD.as_pointer()), [args[1]], source_etype=_WORD)
        return builder.atomic_rmw("add", pointer, _WORD(1), "monotonic")

    return types.int64(job, types.int64), lower


@intrinsic(prefer_literal=True)
def words(typing: Any, job: Any, first: Any, count: Any) -> Any:
    """So many words of a job, a number written in the source."""
    block = types.UniTuple(types.int64, count.literal_value)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        base = builder.inttoptr(args[0], _WORD.as_pointer())
        found = [
            builder.load(builder.gep(base, [_WORD(first.literal_value + i)], source_etype=_WORD))
            for i in range(count.literal_value)
        ]
        return context.make_tuple(builder, block, found)

    return block(job, first, count), lower


@part
def options(job: Any) -> tuple[Any, Any]:
    """The two options."""
    return peek(0.0, job, OPTIONS), peek(0.0, job, OPTIONS + 1)


@part
def take_tiles(work: Any, zero: Any, job: Any) -> None:
    """Call ``work(zero, job, room, tile)`` on tiles until none is left; it tells whether all was right."""
    seat = take(job, TAKEN)
    if seat >= peek(0, job, ROOMS):
        return
    room = peek(0, job, ADDRESS) + seat * peek(0, job, SIZE)
    tiles = peek(0, job, TILES)
    tile = take(job, NEXT)
    while tile < tiles:
        if not work(zero, job, room, tile):
            poke(0, job, FAULT, 1)
        tile = take(job, NEXT)
