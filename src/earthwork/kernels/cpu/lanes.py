"""Several samples side by side, as a Numba type: one value for each sample, one instruction for all of them.

Left to itself the compiler must prove that arrays do not overlap before it works on several samples at once, and
often cannot. Here such a vector is a value like a float, and what a kernel says is what the machine does. Buffers are
addresses (plain integers) with offsets counted in elements, which cost nothing to pass from Python.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-call"
from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

# Numba's annotations describe what an intrinsic's maker takes, not what a kernel calls it with.
intrinsic: Any = extending.intrinsic

# Eight doubles are one register of AVX-512, two of AVX2, four of NEON; and a tile of eight rows stays in the cache.
LANES = 8

_INDEX = ir.IntType(32)


class Lanes(types.Type):
    """The Numba type of a vector of ``LANES`` numbers of type ``dtype``."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, _vector(lanes.dtype))


def _vector(dtype: Any) -> ir.VectorType:
    return ir.VectorType(ir.FloatType() if dtype.bitwidth == 32 else ir.DoubleType(), LANES)


def _integers(dtype: Any) -> ir.VectorType:
    return ir.VectorType(ir.IntType(dtype.bitwidth), LANES)


def _same(vector: ir.VectorType, value: Any) -> ir.Constant:
    return ir.Constant(vector, [value] * LANES)


def _pointer(builder: Any, element: ir.Type, address: Any, offset: Any) -> Any:
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [offset], source_etype=element)


def _load(builder: Any, dtype: Any, address: Any, offset: Any) -> Any:
    vector = _vector(dtype)
    start = builder.bitcast(_pointer(builder, vector.element, address, offset), vector.as_pointer())
    return builder.load(start, align=dtype.bitwidth // 8)


def _store(builder: Any, dtype: Any, address: Any, offset: Any, value: Any) -> None:
    vector = _vector(dtype)
    start = builder.bitcast(_pointer(builder, vector.element, address, offset), vector.as_pointer())
    builder.store(value, start, align=dtype.bitwidth // 8)


@intrinsic
def load(typing: Any, zero: Any, address: Any, offset: Any) -> Any:
    """The vector at an element of a buffer of the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _load(builder, zero, args[1], args[2])

    return Lanes(zero)(zero, address, offset), lower


@intrinsic
def store(typing: Any, address: Any, offset: Any, value: Any) -> Any:
    """Write a vector to a buffer."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _store(builder, value.dtype, *args)
        return context.get_dummy_value()

    return types.void(address, offset, value), lower


@intrinsic
def peek(typing: Any, zero: Any, address: Any, offset: Any) -> Any:
    """One number of a buffer of the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, context.get_value_type(zero), args[1], args[2]))

    return zero(zero, address, offset), lower


@intrinsic
def poke(typing: Any, zero: Any, address: Any, offset: Any, value: Any) -> Any:
    """Write one number to a buffer of the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = context.cast(builder, args[3], value, zero)
        builder.store(number, _pointer(builder, context.get_value_type(zero), args[1], args[2]))
        return context.get_dummy_value()

    return types.void(zero, address, offset, value), lower


@intrinsic
def size_of(typing: Any, zero: Any) -> Any:
    """The bytes of a number of the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.IntType(64)(zero.bitwidth // 8)

    return types.int64(zero), lower


def _arithmetic(operation: Any, instruction: str) -> None:
    @infer_global(operation)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            fits = len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]
            return signature(args[0], *args) if fits else None

    @lower_builtin(operation, Lanes, Lanes)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=("contract",))


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


@intrinsic
def splat(typing: Any, zero: Any, number: Any) -> Any:
    """The same number in every lane, in the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = _vector(zero)
        scalar = context.cast(builder, args[1], number, zero)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _INDEX(0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES))

    return Lanes(zero)(zero, number), lower


@intrinsic
def convert(typing: Any, zero: Any, value: Any) -> Any:
    """The vector in the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if zero.bitwidth == value.dtype.bitwidth:
            return args[1]
        cast = builder.fpext if zero.bitwidth > value.dtype.bitwidth else builder.fptrunc
        return cast(args[1], _vector(zero))

    return Lanes(zero)(zero, value), lower


def _elementwise(name: str) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = _vector(sig.return_type.dtype)
        full = f"llvm.{name}.v{LANES}f{sig.return_type.dtype.bitwidth}"
        function = builder.module.globals.get(full)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(vector, [vector] * len(args)), full)
        return builder.call(function, args)

    return lower


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """``a·b + c``."""
    return a(a, b, c), _elementwise("fmuladd")


@intrinsic
def magnitude(typing: Any, a: Any) -> Any:
    """``|a|``."""
    return a(a), _elementwise("fabs")


@intrinsic
def with_sign(typing: Any, a: Any, b: Any) -> Any:
    """``|a|`` with the sign of ``b``."""
    return a(a, b), _elementwise("copysign")


@intrinsic
def where_greater(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """``yes`` where ``a > b``, else ``no``. NaN is not greater than anything."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[2], args[3])

    return yes(a, b, yes, no), lower


@intrinsic
def times_power_of_two(typing: Any, a: Any, k: Any) -> Any:
    """``a·2^k`` for a normal result; ``k`` is a whole number plus 1.5 · 2^(bits of the mantissa), see `lane_math`."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # Added to such a big number, k stands in its last bits; shifted into the exponent's place it adds up there.
        integers = _integers(a.dtype)
        mantissa = _same(integers, 23 if a.dtype.bitwidth == 32 else 52)
        step = builder.shl(builder.bitcast(args[1], integers), mantissa)
        return builder.bitcast(builder.add(builder.bitcast(args[0], integers), step), _vector(a.dtype))

    return a(a, k), lower


# The bits of √½: counted from there, the exponent is that for which the mantissa lies from √½ to √2.
_HALF_ROOT = 0x3FE6A09E667F3BCD
_BIG_BITS = 0x4338000000000000


def _exponent_steps(builder: Any, value: Any, integers: ir.VectorType) -> tuple[Any, Any]:
    bits = builder.bitcast(value, integers)
    return bits, builder.ashr(builder.sub(bits, _same(integers, _HALF_ROOT)), _same(integers, 52))


@intrinsic
def exponent(typing: Any, a: Any) -> Any:
    """The power of two of a positive double, plus 1.5 · 2^52."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        integers = _integers(a.dtype)
        _, steps = _exponent_steps(builder, args[0], integers)
        return builder.bitcast(builder.add(steps, _same(integers, _BIG_BITS)), _vector(a.dtype))

    return a(a), lower


@intrinsic
def mantissa(typing: Any, a: Any) -> Any:
    """A positive double divided by its power of two: from √½ to √2."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        integers = _integers(a.dtype)
        bits, steps = _exponent_steps(builder, args[0], integers)
        return builder.bitcast(builder.sub(bits, builder.shl(steps, _same(integers, 52))), _vector(a.dtype))

    return a(a), lower


# ---- square blocks: rows of a matrix in memory, turned so that each vector holds one column ------------------------


def _turned(builder: Any, vectors: list[Any]) -> list[Any]:
    """The transpose of a square block, by swapping ever smaller quarters."""
    half = LANES // 2
    while half:
        low, high = _swap_masks(half)
        turned = list(vectors)
        for i in range(LANES):
            if not i & half:
                a, b = vectors[i], vectors[i | half]
                turned[i] = builder.shuffle_vector(a, b, low)
                turned[i | half] = builder.shuffle_vector(a, b, high)
        vectors, half = turned, half // 2
    return vectors


def _swap_masks(half: int) -> tuple[ir.Constant, ir.Constant]:
    kind = ir.VectorType(_INDEX, LANES)
    low = [lane if not lane & half else LANES + (lane ^ half) for lane in range(LANES)]
    high = [lane | half if not lane & half else LANES + lane for lane in range(LANES)]
    return ir.Constant(kind, low), ir.Constant(kind, high)


@intrinsic
def load_turned(typing: Any, zero: Any, matrix: Any, rows: Any, column: Any) -> Any:
    """The columns from ``column`` on of ``LANES`` rows of a matrix; ``rows`` is the address of the rows' offsets."""
    block = types.UniTuple(Lanes(zero), LANES)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, base, table, start = args
        offsets = [builder.load(_pointer(builder, ir.IntType(64), table, ir.IntType(64)(s))) for s in range(LANES)]
        loaded = [_load(builder, zero, base, builder.add(offset, start)) for offset in offsets]
        return context.make_tuple(builder, block, _turned(builder, loaded))

    return block(zero, matrix, rows, column), lower


@intrinsic
def store_turned(typing: Any, matrix: Any, rows: Any, column: Any, block: Any) -> Any:
    """Write the columns ``block`` to ``LANES`` rows of a matrix, from ``column`` on."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        base, table, start, values = args
        columns = [builder.extract_value(values, s) for s in range(LANES)]
        for s, value in enumerate(_turned(builder, columns)):
            offset = builder.load(_pointer(builder, ir.IntType(64), table, ir.IntType(64)(s)))
            _store(builder, block.dtype.dtype, base, builder.add(offset, start), value)
        return context.get_dummy_value()

    return types.void(matrix, rows, column, block), lower


@intrinsic
def load_columns(typing: Any, zero: Any, tile: Any, places: Any, column: Any) -> Any:
    """The vectors of ``LANES`` columns from ``column`` on, each from its place in a tile."""
    block = types.UniTuple(Lanes(zero), LANES)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, base, table, start = args
        loaded = [_load(builder, zero, base, _place(builder, table, start, c)) for c in range(LANES)]
        return context.make_tuple(builder, block, loaded)

    return block(zero, tile, places, column), lower


@intrinsic
def store_columns(typing: Any, tile: Any, places: Any, column: Any, block: Any) -> Any:
    """Write the vectors of ``LANES`` columns from ``column`` on, each to its place in a tile."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        base, table, start, values = args
        for c in range(LANES):
            value = builder.extract_value(values, c)
            _store(builder, block.dtype.dtype, base, _place(builder, table, start, c), value)
        return context.get_dummy_value()

    return types.void(tile, places, column, block), lower


# ---- what blocks of ``LANES`` vectors come to ------------------------------------------------------------------------


@intrinsic
def minus(typing: Any, a: Any, b: Any) -> Any:
    """The difference of two blocks."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = [[builder.extract_value(block, c) for block in args] for c in range(LANES)]
        return context.make_tuple(builder, a, [builder.fsub(*pair) for pair in pairs])

    return a(a, b), lower


@intrinsic
def without_first(typing: Any, block: Any, count: Any) -> Any:
    """A block with zeros for its first so many vectors."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        nothing = ir.Constant(_vector(block.dtype.dtype), None)
        kept = [
            builder.select(
                builder.icmp_signed(">", args[1], ir.IntType(64)(c)), nothing, builder.extract_value(args[0], c)
            )
            for c in range(LANES)
        ]
        return context.make_tuple(builder, block, kept)

    return block(block, count), lower


def _folded(builder: Any, vectors: list[Any], fold: Any) -> Any:
    """One vector of many, by halves, so that no step has to wait for the one before."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [fold(a, b) for a, b in zip(vectors[:half], vectors[half:], strict=True)]
    return vectors[0]


@intrinsic
def sum_of(typing: Any, block: Any) -> Any:
    """The sum of a block's vectors."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _folded(builder, [builder.extract_value(args[0], c) for c in range(LANES)], builder.fadd)

    return block.dtype(block), lower


@intrinsic
def lowest_of(typing: Any, block: Any) -> Any:
    """The lowest number of a block in each lane, unless there is NaN."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def lower_one(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered("<", a, b), a, b)

        return _folded(builder, [builder.extract_value(args[0], c) for c in range(LANES)], lower_one)

    return block.dtype(block), lower


@intrinsic
def magnitudes(typing: Any, block: Any) -> Any:
    """The block of ``|a|``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        positive = _elementwise("fabs")
        one = block.dtype(block.dtype)
        values = [builder.extract_value(args[0], c) for c in range(LANES)]
        return context.make_tuple(builder, block, [positive(context, builder, one, [value]) for value in values])

    return block(block), lower


@intrinsic
def convert_block(typing: Any, zero: Any, block: Any) -> Any:
    """The block in the type of ``zero``."""
    result = types.UniTuple(Lanes(zero), LANES)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [builder.extract_value(args[1], c) for c in range(LANES)]
        if zero.bitwidth > block.dtype.dtype.bitwidth:
            values = [builder.fpext(value, _vector(zero)) for value in values]
        return context.make_tuple(builder, result, values)

    return result(zero, block), lower


def _place(builder: Any, table: Any, start: Any, step: int) -> Any:
    index = builder.add(start, ir.IntType(64)(step))
    place = builder.load(_pointer(builder, ir.IntType(64), table, index))
    return builder.mul(place, ir.IntType(64)(LANES))
