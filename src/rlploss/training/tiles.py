"""Multiply small matrices fast: sums stay in registers, and every operation is a vector
instruction.

BLAS first packs its operands and is built for large matrices. Here a product is one pass over small
ones. Each number of a result is summed in the order of its terms, so it does not depend on its
place in the matrix.
"""

from typing import Any

import numba
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from rlploss.training.compiling import compiled

# The bits of a vector register of this processor, or of the one that NUMBA_CPU_FEATURES names.
_ASKED: str | None = numba.config.CPU_FEATURES  # type: ignore[attr-defined]  # made at run time
_THERE = (
    [name for name, there in get_host_cpu_features().items() if there]
    if _ASKED is None
    else _ASKED.split(",")
)
BITS = 512 if {"avx512f", "+avx512f"} & {*_THERE} else 256 if {"avx2", "+avx2"} & {*_THERE} else 128
# Rows of a tile: two vectors of each, and the operands, fill the registers.
TALL = 8 if BITS == 512 else 6
# What becomes of a sum: itself, 0 if negative, 0 where h is not positive.
PLAIN, RELU, WHERE_POSITIVE = range(3)

_intrinsic: Any = intrinsic
_WHOLE, _SHORT = ir.IntType(64), ir.IntType(32)


class _Emit:
    """Writes vector instructions into a function during its compilation."""

    def __init__(self, context: Any, builder: Any, kind: Any) -> None:
        builder.function.attributes.add("noinline")  # one copy, however often it is called
        number = context.get_data_type(kind.dtype)
        self.context, self.builder = context, builder
        self.size = context.get_abi_sizeof(number)
        self.lanes = BITS // (8 * self.size)
        self.vector = ir.VectorType(number, self.lanes)
        self.zero = ir.Constant(self.vector, [0.0] * self.lanes)

    def array(self, kind: Any, value: Any) -> tuple[Any, list[Any]]:
        """Return the address of an array, and its shape."""
        array = make_array(kind)(self.context, self.builder, value)
        return array.data, cgutils.unpack_tuple(self.builder, array.shape)

    def sum(self, a: Any, b: Any | int) -> Any:
        return self.builder.add(a, ir.Constant(_WHOLE, b) if isinstance(b, int) else b)

    def rows(self, tall: int, last: Any) -> list[Any]:
        """Return the numbers of `tall` rows; rows beyond the last are replaced by the last."""
        numbers = [ir.Constant(_WHOLE, r) for r in range(tall)]
        return [
            self.builder.select(self.builder.icmp_signed("<", r, last), r, last) for r in numbers
        ]

    def spread(self, value: Any) -> Any:
        """Return a vector filled with one number."""
        kind = ir.VectorType(value.type, self.lanes)
        filled = self.builder.insert_element(
            ir.Constant(kind, ir.Undefined), value, ir.Constant(_SHORT, 0)
        )
        first = ir.Constant(ir.VectorType(_SHORT, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(filled, filled, first)

    def first(self, n: Any) -> Any:
        """Return a mask of the first n lanes."""
        lanes = ir.Constant(ir.VectorType(_WHOLE, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", lanes, self.spread(n))

    def load(self, pointer: Any, mask: Any = None) -> Any:
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=self.size)
        align = ir.Constant(_SHORT, self.size)
        return self._call("masked.load", self.vector, [pointer, align, mask, self.zero], ".p0")

    def store(self, value: Any, pointer: Any, mask: Any = None) -> None:
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            self.builder.store(value, pointer, align=self.size)
        else:
            self._call(
                "masked.store",
                ir.VoidType(),
                [value, pointer, ir.Constant(_SHORT, self.size), mask],
                ".p0",
            )

    def multiply_add(self, total: Any, a: Any, b: Any) -> None:
        """Add a·b to a variable, in one instruction if the processor has it."""
        product = self.builder.fmul(a, b, flags=("contract",))
        self.builder.store(
            self.builder.fadd(self.builder.load(total), product, flags=("contract",)), total
        )

    def total(self, vector: Any) -> Any:
        """Return the sum of the lanes."""
        zero = ir.Constant(self.vector.element, -0.0)
        return self._call(
            "vector.reduce.fadd", self.vector.element, [zero, vector], fastmath=("reassoc",)
        )

    def variables(self, n: int) -> list[Any]:
        """Return variables for vectors, initially zero, which the compiler keeps in registers."""
        return [cgutils.alloca_once_value(self.builder, self.zero) for _ in range(n)]

    def where(self, sign: str, a: Any, b: int | Any) -> Any:
        """Return a context whose instructions run only if the comparison holds."""
        b = ir.Constant(_WHOLE, b) if isinstance(b, int) else b
        return self.builder.if_then(self.builder.icmp_signed(sign, a, b))

    def _call(
        self, name: str, result: Any, arguments: list[Any], suffix: str = "", **options: Any
    ) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        name = f"llvm.{name}.v{self.lanes}f{8 * self.size}{suffix}"
        return self.builder.call(
            cgutils.get_or_insert_function(self.builder.module, kind, name), arguments, **options
        )


def _make_tile(tall: int, wide: int, masked: bool) -> Any:
    """Generate code for `tall` rows and `wide` vectors of a result; `masked` if the result has
    fewer columns.
    """

    @_intrinsic
    def tile(typing, a, first, row_step, term_step, b, out, row, column, start, after, h):
        def build(context, builder, signature, arguments):
            emit = _Emit(context, builder, signature.args[0])
            _, first, row_step, term_step, _, _, row, column, _, after, _ = arguments
            (left, _), (right, (k, _)), (to, (m, n)), (begin, (n_begin,)), (sign, _) = (
                emit.array(signature.args[i], arguments[i]) for i in (0, 4, 5, 8, 10)
            )
            mask = [
                emit.first(emit.sum(n, -v * emit.lanes)) if masked else None for v in range(wide)
            ]

            # Addresses of the tile's vectors in row r of a matrix with n columns.
            def places(pointer, r):
                base = emit.sum(builder.mul(r, n), column)
                return [builder.gep(pointer, [emit.sum(base, v * emit.lanes)]) for v in range(wide)]

            def load(pointer, r):
                return list(map(emit.load, places(pointer, r), mask))

            last = emit.sum(builder.sub(m, row), -1)
            factors = [
                builder.gep(left, [emit.sum(first, builder.mul(r, row_step))])
                for r in emit.rows(tall, last)
            ]
            sums = [emit.variables(wide) for _ in range(tall)]
            with emit.where(">", n_begin, 0):
                values = load(begin, ir.Constant(_WHOLE, 0))
                for each in sums:
                    list(map(builder.store, values, each))
            with cgutils.for_range(builder, k) as term:
                values, step = load(right, term.index), builder.mul(term.index, term_step)
                for r in range(tall):
                    factor = emit.spread(builder.load(builder.gep(factors[r], [step])))
                    for v in range(wide):
                        emit.multiply_add(sums[r][v], factor, values[v])
            with emit.where("==", after, RELU):
                for each in sums:
                    for place in each:
                        x = builder.load(place)
                        builder.store(
                            builder.select(builder.fcmp_ordered("<", x, emit.zero), emit.zero, x),
                            place,
                        )
            for r in range(tall):
                with emit.where(">=", last, r):
                    place_row = emit.sum(row, r)
                    with emit.where("==", after, WHERE_POSITIVE):
                        for v, value in enumerate(load(sign, place_row)):
                            on = builder.fcmp_ordered(">", value, emit.zero)
                            builder.store(
                                builder.select(on, builder.load(sums[r][v]), emit.zero), sums[r][v]
                            )
                    list(map(emit.store, map(builder.load, sums[r]), places(to, place_row), mask))
            return context.get_dummy_value()

        return (
            types.void(a, first, row_step, term_step, b, out, row, column, start, after, h),
            build,
        )

    return tile


_TILE, _ROW = _make_tile(TALL, 2, False), _make_tile(1, 2, False)
_NARROW, _NARROWER = _make_tile(TALL, 2, True), _make_tile(TALL, 1, True)


@compiled
def product(a, row_step, term_step, b, out, start, after, h):
    """Put start [n] + Σ_k a[m, k]·b[k, n] into out [m, n], and apply `after`. An empty start is
    zero; h is [m, n].

    a[m, k] is number m·row_step + k·term_step of the array, so it can be read transposed. Callers
    must pass steps and `after` as variables, because numba would compile again for every literal.
    """
    m, n = out.shape
    lanes = BITS // (8 * out.itemsize)
    if n < 2 * lanes:
        for row in range(0, m, TALL):
            if n > lanes:
                _NARROW(a, row * row_step, row_step, term_step, b, out, row, 0, start, after, h)
            else:
                _NARROWER(a, row * row_step, row_step, term_step, b, out, row, 0, start, after, h)
        return
    for column in range(0, n, 2 * lanes):
        # If the last columns do not fill two vectors, some are computed twice.
        at = min(column, n - 2 * lanes)
        if m == 1:
            _ROW(a, 0, row_step, term_step, b, out, 0, at, start, after, h)
        for row in range(0, m if m > 1 else 0, TALL):
            _TILE(a, row * row_step, row_step, term_step, b, out, row, at, start, after, h)


@_intrinsic
def _four_dots(typing, a, row, b, out):
    """Compute numbers row to row + 4 of out [m] = a [m, k] times b [k]."""

    def build(context, builder, signature, arguments):
        emit, row = _Emit(context, builder, signature.args[0]), arguments[1]
        (left, _), (right, (k,)), (to, (m,)) = (
            emit.array(signature.args[i], arguments[i]) for i in (0, 2, 3)
        )
        last, sums = emit.sum(builder.sub(m, row), -1), emit.variables(4)
        rows = [builder.gep(left, [builder.mul(emit.sum(row, r), k)]) for r in emit.rows(4, last)]

        def take(at, mask=None):
            vector = emit.load(builder.gep(right, [at]), mask)
            for start, each in zip(rows, sums, strict=True):
                emit.multiply_add(each, emit.load(builder.gep(start, [at]), mask), vector)

        full = builder.sdiv(k, ir.Constant(_WHOLE, emit.lanes))  # vectors
        whole = builder.mul(full, ir.Constant(_WHOLE, emit.lanes))
        with cgutils.for_range(builder, full) as step:
            take(builder.mul(step.index, ir.Constant(_WHOLE, emit.lanes)))
        with emit.where("<", whole, k):
            take(whole, emit.first(builder.sub(k, whole)))
        for r, each in enumerate(sums):
            with emit.where(">=", last, r):
                builder.store(emit.total(builder.load(each)), builder.gep(to, [emit.sum(row, r)]))
        return context.get_dummy_value()

    return types.void(a, row, b, out), build


@compiled
def dots(a, b, out):
    """Put a [m, k] times b [k] into out [m]."""
    for row in range(0, out.size, 4):
        _four_dots(a, row, b, out)


@_intrinsic
def power_of_two(typing, k):
    """Return 2ᵏ in float32 for a whole k in float32, by writing the exponent's bits."""

    def build(context, builder, signature, arguments):
        exponent = builder.add(builder.fptosi(arguments[0], _SHORT), ir.Constant(_SHORT, 127))
        return builder.bitcast(builder.shl(exponent, ir.Constant(_SHORT, 23)), arguments[0].type)

    return types.float32(types.float32), build
