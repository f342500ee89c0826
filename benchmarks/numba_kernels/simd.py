"""SIMD vectors as a Numba type: one value for each of ``WIDTH`` rows, one instruction for all of them.

Left to itself the compiler vectorizes a loop over rows only if it can prove that arrays do not overlap, and often it
cannot. Here a vector is a value like a float. Buffers are addresses (plain integers) with offsets counted in elements,
which are cheap to pass from Python.
"""

# mypy: disable-error-code="misc,untyped-decorator,no-untyped-call"
from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.extending import lower_builtin, models, register_model, type_callable

# Numba's annotations describe the function that defines an intrinsic, not the intrinsic.
intrinsic: Any = extending.intrinsic

# Eight doubles are one register of AVX-512, two of AVX2 and four of NEON, and a tile of eight rows fits in the cache.
WIDTH = 8

_INDEX = ir.IntType(32)


class Vector(types.Type):
    """The Numba type of a vector of ``WIDTH`` numbers of type ``dtype``."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, simd_: Vector) -> None:
        super().__init__(manager, simd_, _llvm_vector(simd_.dtype))


def _llvm_vector(dtype: Any) -> ir.VectorType:
    return ir.VectorType(ir.FloatType() if dtype.bitwidth == 32 else ir.DoubleType(), WIDTH)


def _integers(dtype: Any) -> ir.VectorType:
    return ir.VectorType(ir.IntType(dtype.bitwidth), WIDTH)


def _same(vector: ir.VectorType, value: Any) -> ir.Constant:
    return ir.Constant(vector, [value] * WIDTH)


def _pointer(builder: Any, element: ir.Type, address: Any, offset: Any) -> Any:
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [offset], source_etype=element)


def _load(builder: Any, dtype: Any, address: Any, offset: Any) -> Any:
    vector = _llvm_vector(dtype)
    start = builder.bitcast(_pointer(builder, vector.element, address, offset), vector.as_pointer())
    return builder.load(start, align=dtype.bitwidth // 8)


def _store(builder: Any, dtype: Any, address: Any, offset: Any, value: Any) -> None:
    vector = _llvm_vector(dtype)
    start = builder.bitcast(_pointer(builder, vector.element, address, offset), vector.as_pointer())
    builder.store(value, start, align=dtype.bitwidth // 8)


@intrinsic
def load(typing: Any, zero: Any, address: Any, offset: Any) -> Any:
    """Load a vector from a buffer of the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _load(builder, zero, args[1], args[2])

    return Vector(zero)(zero, address, offset), lower


@intrinsic
def store(typing: Any, address: Any, offset: Any, value: Any) -> Any:
    """Store a vector to a buffer."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _store(builder, value.dtype, *args)
        return context.get_dummy_value()

    return types.void(address, offset, value), lower


@intrinsic
def load_scalar(typing: Any, zero: Any, address: Any, offset: Any) -> Any:
    """Load one number from a buffer of the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, context.get_value_type(zero), args[1], args[2]))

    return zero(zero, address, offset), lower


@intrinsic
def load_atomic(typing: Any, address: Any, offset: Any) -> Any:
    """Load one integer from a buffer that other threads may write to: exactly once, and never half of it."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, ir.IntType(64), *args), "monotonic", 8)

    return types.int64(address, offset), lower


@intrinsic
def store_scalar(typing: Any, zero: Any, address: Any, offset: Any, value: Any) -> Any:
    """Store one number to a buffer of the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = context.cast(builder, args[3], value, zero)
        builder.store(number, _pointer(builder, context.get_value_type(zero), args[1], args[2]))
        return context.get_dummy_value()

    return types.void(zero, address, offset, value), lower


@intrinsic
def size_of(typing: Any, zero: Any) -> Any:
    """The size of the type of ``zero`` in bytes."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.IntType(64)(zero.bitwidth // 8)

    return types.int64(zero), lower


def _arithmetic(operation: Any, instruction: str) -> None:
    @type_callable(operation)
    def _type(context: Any) -> Any:
        def result(a: Any, b: Any) -> Any:
            return a if isinstance(a, Vector) and a == b else None

        return result

    @lower_builtin(operation, Vector, Vector)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=("contract",))


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


@intrinsic
def splat(typing: Any, zero: Any, number: Any) -> Any:
    """A vector with the same number in every lane, in the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = _llvm_vector(zero)
        scalar = context.cast(builder, args[1], number, zero)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _INDEX(0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INDEX, WIDTH), [0] * WIDTH))

    return Vector(zero)(zero, number), lower


@intrinsic
def convert(typing: Any, zero: Any, value: Any) -> Any:
    """The vector, converted to the type of ``zero``."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if zero.bitwidth == value.dtype.bitwidth:
            return args[1]
        cast = builder.fpext if zero.bitwidth > value.dtype.bitwidth else builder.fptrunc
        return cast(args[1], _llvm_vector(zero))

    return Vector(zero)(zero, value), lower


def _elementwise(name: str) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = _llvm_vector(sig.return_type.dtype)
        full = f"llvm.{name}.v{WIDTH}f{sig.return_type.dtype.bitwidth}"
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
def absolute(typing: Any, a: Any) -> Any:
    """``|a|``."""
    return a(a), _elementwise("fabs")


@intrinsic
def copysign(typing: Any, a: Any, b: Any) -> Any:
    """``|a|`` with the sign of ``b``."""
    return a(a, b), _elementwise("copysign")


@intrinsic
def where_greater(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """``yes`` where ``a > b``, else ``no``, also if one of them is NaN."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[2], args[3])

    return yes(a, b, yes, no), lower


@intrinsic
def any_greater(typing: Any, a: Any, b: Any) -> Any:
    """Whether ``a > b`` in any lane."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = builder.bitcast(builder.fcmp_ordered(">", args[0], args[1]), ir.IntType(WIDTH))
        return builder.icmp_unsigned("!=", lanes, ir.IntType(WIDTH)(0))

    return types.boolean(a, b), lower


@intrinsic
def times_power_of_two(typing: Any, a: Any, k: Any) -> Any:
    """``a·2^k`` if that is a normal number; ``k`` is an integer plus 1.5 · 2^(bits of the mantissa)."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # The sum holds the integer in its last bits; shifted to the exponent's position, it can be added to a's.
        integers = _integers(a.dtype)
        mantissa = _same(integers, 23 if a.dtype.bitwidth == 32 else 52)
        step = builder.shl(builder.bitcast(args[1], integers), mantissa)
        return builder.bitcast(builder.add(builder.bitcast(args[0], integers), step), _llvm_vector(a.dtype))

    return a(a, k), lower


# The bits of √½. An exponent counted from there leaves a mantissa from √½ to √2.
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
        return builder.bitcast(builder.add(steps, _same(integers, _BIG_BITS)), _llvm_vector(a.dtype))

    return a(a), lower


@intrinsic
def mantissa(typing: Any, a: Any) -> Any:
    """A positive double divided by its power of two: from √½ to √2."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        integers = _integers(a.dtype)
        bits, steps = _exponent_steps(builder, args[0], integers)
        return builder.bitcast(builder.sub(bits, builder.shl(steps, _same(integers, 52))), _llvm_vector(a.dtype))

    return a(a), lower


# ---- square blocks: rows of a matrix in memory, transposed so that each vector holds one column ----------------------


def _transposed(builder: Any, vectors: list[Any]) -> list[Any]:
    """The transpose of a square block, by swapping its off-diagonal quarters, then theirs, and so on."""
    half = WIDTH // 2
    while half:
        low, high = _swap_masks(half)
        transposed = list(vectors)
        for i in range(WIDTH):
            if not i & half:
                a, b = vectors[i], vectors[i | half]
                transposed[i] = builder.shuffle_vector(a, b, low)
                transposed[i | half] = builder.shuffle_vector(a, b, high)
        vectors, half = transposed, half // 2
    return vectors


def _swap_masks(half: int) -> tuple[ir.Constant, ir.Constant]:
    kind = ir.VectorType(_INDEX, WIDTH)
    low = [lane if not lane & half else WIDTH + (lane ^ half) for lane in range(WIDTH)]
    high = [lane | half if not lane & half else WIDTH + lane for lane in range(WIDTH)]
    return ir.Constant(kind, low), ir.Constant(kind, high)


@intrinsic
def load_transposed(typing: Any, zero: Any, matrix: Any, rows: Any, column: Any) -> Any:
    """Load ``WIDTH`` columns, from ``column`` on, of ``WIDTH`` rows; ``rows`` is the address of the rows' offsets."""
    block = types.UniTuple(Vector(zero), WIDTH)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, base, table, start = args
        offsets = [builder.load(_pointer(builder, ir.IntType(64), table, ir.IntType(64)(s))) for s in range(WIDTH)]
        loaded = [_load(builder, zero, base, builder.add(offset, start)) for offset in offsets]
        return context.make_tuple(builder, block, _transposed(builder, loaded))

    return block(zero, matrix, rows, column), lower


@intrinsic
def store_transposed(typing: Any, matrix: Any, rows: Any, column: Any, block: Any) -> Any:
    """Store the columns ``block`` to ``WIDTH`` rows of a matrix, from ``column`` on."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        base, table, start, values = args
        columns = [builder.extract_value(values, s) for s in range(WIDTH)]
        for s, value in enumerate(_transposed(builder, columns)):
            offset = builder.load(_pointer(builder, ir.IntType(64), table, ir.IntType(64)(s)))
            _store(builder, block.dtype.dtype, base, builder.add(offset, start), value)
        return context.get_dummy_value()

    return types.void(matrix, rows, column, block), lower


@intrinsic
def load_columns(typing: Any, zero: Any, tile: Any, places: Any, column: Any) -> Any:
    """Load the vectors of ``WIDTH`` columns, from ``column`` on, from their places in a tile."""
    block = types.UniTuple(Vector(zero), WIDTH)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, base, table, start = args
        loaded = [_load(builder, zero, base, _place(builder, table, start, c)) for c in range(WIDTH)]
        return context.make_tuple(builder, block, loaded)

    return block(zero, tile, places, column), lower


@intrinsic
def store_columns(typing: Any, tile: Any, places: Any, column: Any, block: Any) -> Any:
    """Store the vectors of ``WIDTH`` columns, from ``column`` on, to their places in a tile."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        base, table, start, values = args
        for c in range(WIDTH):
            value = builder.extract_value(values, c)
            _store(builder, block.dtype.dtype, base, _place(builder, table, start, c), value)
        return context.get_dummy_value()

    return types.void(tile, places, column, block), lower


# ---- arithmetic on blocks of ``WIDTH`` vectors -----------------------------------------------------------------------


@intrinsic
def subtract_blocks(typing: Any, a: Any, b: Any) -> Any:
    """The difference of two blocks."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = [[builder.extract_value(block, c) for block in args] for c in range(WIDTH)]
        return context.make_tuple(builder, a, [builder.fsub(*pair) for pair in pairs])

    return a(a, b), lower


@intrinsic
def zero_first(typing: Any, block: Any, count: Any) -> Any:
    """The block with its first ``count`` vectors set to zero."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        zeros = ir.Constant(_llvm_vector(block.dtype.dtype), None)
        values = [
            builder.select(
                builder.icmp_signed(">", args[1], ir.IntType(64)(c)), zeros, builder.extract_value(args[0], c)
            )
            for c in range(WIDTH)
        ]
        return context.make_tuple(builder, block, values)

    return block(block, count), lower


def _reduced(builder: Any, vectors: list[Any], combine: Any) -> Any:
    """Reduce vectors to one, pairwise, so that the steps do not depend on each other."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [combine(a, b) for a, b in zip(vectors[:half], vectors[half:], strict=True)]
    return vectors[0]


@intrinsic
def block_sum(typing: Any, block: Any) -> Any:
    """The sum of the vectors of a block."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _reduced(builder, [builder.extract_value(args[0], c) for c in range(WIDTH)], builder.fadd)

    return block.dtype(block), lower


@intrinsic
def block_min(typing: Any, block: Any) -> Any:
    """The minimum of a block in each lane; unspecified if there is NaN."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def smaller(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered("<", a, b), a, b)

        return _reduced(builder, [builder.extract_value(args[0], c) for c in range(WIDTH)], smaller)

    return block.dtype(block), lower


@intrinsic
def block_abs(typing: Any, block: Any) -> Any:
    """The absolute values of a block."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        positive = _elementwise("fabs")
        one = block.dtype(block.dtype)
        values = [builder.extract_value(args[0], c) for c in range(WIDTH)]
        return context.make_tuple(builder, block, [positive(context, builder, one, [value]) for value in values])

    return block(block), lower


@intrinsic
def convert_block(typing: Any, zero: Any, block: Any) -> Any:
    """The block, converted to the type of ``zero``."""
    result = types.UniTuple(Vector(zero), WIDTH)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [builder.extract_value(args[1], c) for c in range(WIDTH)]
        if zero.bitwidth > block.dtype.dtype.bitwidth:
            values = [builder.fpext(value, _llvm_vector(zero)) for value in values]
        return context.make_tuple(builder, result, values)

    return result(zero, block), lower


def _place(builder: Any, table: Any, start: Any, step: int) -> Any:
    index = builder.add(start, ir.IntType(64)(step))
    place = builder.load(_pointer(builder, ir.IntType(64), table, index))
    return builder.mul(place, ir.IntType(64)(WIDTH))
