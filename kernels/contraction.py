"""Forward ``U = Phi V`` and backward ``W += Phi^T G`` without Phi: compiled interpreters of a plan.

This file holds all that its kernels call: numba's disk cache does not see a change made in another file. The
micro-kernels are LLVM vector code, since the accumulators of a register tile must stay in registers.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic


def _vector_bytes() -> tuple[int, bool]:
    """Return the width of a vector register in bytes and whether there are 32 of them, not 16."""
    features = config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()
    have = set(str(features).split(","))
    if "+avx512f" in have:
        return 64, True
    if "+avx" in have:
        return 32, False
    return 16, "+neon" in have


VECTOR_BYTES, MANY_REGISTERS = _vector_bytes()
GROUP_VECTORS = 6 if MANY_REGISTERS else 3
"""Vectors of samples in the forward register tile; the tile is this by 4 vectors of the block."""
TILE_FEATURES = 12 if MANY_REGISTERS else 6
"""Features in the backward register tile that is two vectors wide."""
DOTS_OF_FOUR = 6 if MANY_REGISTERS else 3
"""Features in the backward register tile of vectors of samples by four columns."""

# Never nnan or ninf: a NaN in the data must come out as one.
_FMF = ("nsz", "arcp", "contract", "afn", "reassoc")
_CHUNK = 128
"""Rows of a run contracted before the next group of samples: they and V's rows stay in the L1 cache."""


def _address(context, builder, array_type, array, offset):
    """Return the pointer to element `offset` of a flat array."""
    struct = context.make_array(array_type)(context, builder, array)
    return builder.gep(struct.data, [offset])


def _load(builder, pointer, vector, align):
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=align)


def _store(builder, value, pointer, align):
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=align)


def _splat(builder, scalar, vector):
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)


def _vector_of(context, array_type):
    """Return the vector type for an array's elements, and the size of one element in bytes."""
    size = array_type.dtype.bitwidth // 8
    return ir.VectorType(context.get_value_type(array_type.dtype), VECTOR_BYTES // size), size


def _accumulators(builder, vector, keys):
    """Return a zeroed cell for each key; the optimiser keeps them in registers."""
    zero = ir.Constant(vector, [0.0] * vector.count)
    cells = {key: cgutils.alloca_once(builder, vector) for key in keys}
    for cell in cells.values():
        builder.store(zero, cell)
    return cells


def _sums_of_lanes(builder, vectors):
    """Return the vector of the sums of the lanes of each: a power of two of them, at most one a lane.

    Halves are added, those of two vectors packed into one, until there is one lane for each of them.
    """
    group = vectors[0].type.count  # lanes that belong to one sum
    while group > 1:
        group //= 2
        if len(vectors) > 1:
            pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
        else:
            pairs = [(vectors[0], ir.Constant(vectors[0].type, ir.Undefined))]
        n_lanes = vectors[0].type.count * min(len(vectors), 2)
        lower = [lane for lane in range(n_lanes) if lane // group % 2 == 0]
        masks = [
            ir.Constant(ir.VectorType(ir.IntType(32), len(lower)), lanes)
            for lanes in (lower, [lane + group for lane in lower])
        ]
        vectors = [builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks)) for a, b in pairs]
    return vectors[0]


def _fma(builder, vector):
    """Return the function ``a * b + c`` on vectors: fused where the processor can, else two operations."""
    name = f"llvm.fmuladd.v{vector.count}{'f32' if vector.element == ir.FloatType() else 'f64'}"
    function_type = ir.FunctionType(vector, [vector] * 3)
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return lambda a, b, c: builder.call(function, [a, b, c])


@intrinsic(prefer_literal=True)
def _forward_tile(_typing, F, f0, ldf, V, v0, ldv, n_rows, P, p0, U, u0, ldu, n_vectors, n_columns):
    """U[c, :] += P[:] * sum_r F[r, :] V[r, c], `n_vectors` vectors of samples by `n_columns` columns."""
    if not isinstance(n_vectors, types.IntegerLiteral) or not isinstance(n_columns, types.IntegerLiteral):
        return None
    signature = types.void(F, f0, ldf, V, v0, ldv, n_rows, P, p0, U, u0, ldu, n_vectors, n_columns)
    ns, nc = n_vectors.literal_value, n_columns.literal_value

    def codegen(context, builder, _signature, args):
        f_array, a_f0, a_ldf, v_array, a_v0, a_ldv, a_rows, p_array, a_p0, u_array, a_u0, a_ldu = args[:12]
        vector, size = _vector_of(context, F)
        fma = _fma(builder, vector)
        index = a_f0.type
        f_base = _address(context, builder, F, f_array, a_f0)
        v_base = _address(context, builder, V, v_array, a_v0)
        p_base = _address(context, builder, P, p_array, a_p0)
        u_base = _address(context, builder, U, u_array, a_u0)
        sets = max(1, 4 // nc)  # few columns: more rows at once, to cover the latency of the sums
        acc = _accumulators(
            builder, vector, [(i, c, j) for i in range(sets) for c in range(nc) for j in range(ns)]
        )

        def add_row(row, i):
            f_row = builder.gep(f_base, [builder.mul(row, a_ldf)])
            v_row = builder.gep(v_base, [builder.mul(row, a_ldv)])
            lanes = [
                _load(builder, builder.gep(f_row, [ir.Constant(index, j * vector.count)]), vector, size)
                for j in range(ns)
            ]
            for c in range(nc):
                value = builder.load(builder.gep(v_row, [ir.Constant(index, c)]), align=size)
                factor = _splat(builder, value, vector)
                for j in range(ns):
                    cell = acc[i, c, j]
                    builder.store(fma(lanes[j], factor, builder.load(cell)), cell)

        step, one = ir.Constant(index, sets), ir.Constant(index, 1)
        whole = builder.mul(builder.sdiv(a_rows, step), step)
        with cgutils.for_range_slice(builder, ir.Constant(index, 0), whole, step, index) as (row, _):
            for i in range(sets):
                add_row(builder.add(row, ir.Constant(index, i)), i)
        if sets > 1:
            with cgutils.for_range_slice(builder, whole, a_rows, one, index) as (row, _):
                add_row(row, 0)
        for j in range(ns):
            shift = ir.Constant(index, j * vector.count)
            prefix = _load(builder, builder.gep(p_base, [shift]), vector, size)
            for c in range(nc):
                row = builder.mul(a_ldu, ir.Constant(index, c))
                cell = builder.gep(u_base, [builder.add(row, shift)])
                value = builder.load(acc[0, c, j])
                for i in range(1, sets):
                    value = builder.fadd(value, builder.load(acc[i, c, j]))
                total = fma(prefix, value, _load(builder, cell, vector, size))
                _store(builder, total, cell, size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)
def _backward_tile(_typing, F, f0, ldf, G, g0, ldg, n_lanes, W, w0, ldw, n_features, n_vectors):
    """W[j, :] += sum_s F[j, s] G[s, :], `n_features` rows by `n_vectors` vectors of columns."""
    if not isinstance(n_features, types.IntegerLiteral) or not isinstance(n_vectors, types.IntegerLiteral):
        return None
    signature = types.void(F, f0, ldf, G, g0, ldg, n_lanes, W, w0, ldw, n_features, n_vectors)
    nf, nv = n_features.literal_value, n_vectors.literal_value

    def codegen(context, builder, _signature, args):
        f_array, a_f0, a_ldf, g_array, a_g0, a_ldg, a_lanes, w_array, a_w0, a_ldw = args[:10]
        vector, size = _vector_of(context, F)
        fma = _fma(builder, vector)
        index = a_f0.type
        f_base = _address(context, builder, F, f_array, a_f0)
        g_base = _address(context, builder, G, g_array, a_g0)
        w_base = _address(context, builder, W, w_array, a_w0)
        acc = _accumulators(builder, vector, [(j, v) for j in range(nf) for v in range(nv)])
        f_rows = [builder.gep(f_base, [builder.mul(a_ldf, ir.Constant(index, j))]) for j in range(nf)]
        with cgutils.for_range(builder, a_lanes) as loop:
            g_row = builder.gep(g_base, [builder.mul(loop.index, a_ldg)])
            columns = [
                _load(builder, builder.gep(g_row, [ir.Constant(index, v * vector.count)]), vector, size)
                for v in range(nv)
            ]
            for j in range(nf):
                value = builder.load(builder.gep(f_rows[j], [loop.index]), align=size)
                factor = _splat(builder, value, vector)
                for v in range(nv):
                    builder.store(fma(factor, columns[v], builder.load(acc[j, v])), acc[j, v])
        for j in range(nf):
            for v in range(nv):
                row = builder.mul(a_ldw, ir.Constant(index, j))
                cell = builder.gep(w_base, [builder.add(row, ir.Constant(index, v * vector.count))])
                total = builder.fadd(builder.load(acc[j, v]), _load(builder, cell, vector, size))
                _store(builder, total, cell, size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)
def _backward_dots(_typing, F, f0, ldf, G, g0, ldg, n_lanes, W, w0, ldw, n_features, n_columns):
    """W[j, c] += sum_s F[j, s] G[c, s] for few columns: vectors run along the samples; n_lanes in vectors."""
    if not isinstance(n_features, types.IntegerLiteral) or not isinstance(n_columns, types.IntegerLiteral):
        return None
    signature = types.void(F, f0, ldf, G, g0, ldg, n_lanes, W, w0, ldw, n_features, n_columns)
    nf, nc = n_features.literal_value, n_columns.literal_value

    def codegen(context, builder, _signature, args):
        f_array, a_f0, a_ldf, g_array, a_g0, a_ldg, a_lanes, w_array, a_w0, a_ldw = args[:10]
        vector, size = _vector_of(context, F)
        fma = _fma(builder, vector)
        index = a_f0.type
        f_base = _address(context, builder, F, f_array, a_f0)
        g_base = _address(context, builder, G, g_array, a_g0)
        w_base = _address(context, builder, W, w_array, a_w0)
        acc = _accumulators(builder, vector, [(j, v) for j in range(nf) for v in range(nc)])
        f_rows = [builder.gep(f_base, [builder.mul(a_ldf, ir.Constant(index, j))]) for j in range(nf)]
        g_rows = [builder.gep(g_base, [builder.mul(a_ldg, ir.Constant(index, c))]) for c in range(nc)]
        with cgutils.for_range(builder, a_lanes) as loop:
            shift = builder.mul(loop.index, ir.Constant(index, vector.count))
            columns = [_load(builder, builder.gep(g_rows[c], [shift]), vector, size) for c in range(nc)]
            for j in range(nf):
                lanes = _load(builder, builder.gep(f_rows[j], [shift]), vector, size)
                for c in range(nc):
                    builder.store(fma(lanes, columns[c], builder.load(acc[j, c])), acc[j, c])
        for j in range(nf):
            total = _sums_of_lanes(builder, [builder.load(acc[j, c]) for c in range(nc)])
            cell = builder.gep(w_base, [builder.mul(a_ldw, ir.Constant(index, j))])
            _store(builder, builder.fadd(_load(builder, cell, total.type, size), total), cell, size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)
def _scale_rows(_typing, work, dst, factor, src, n_rows, ld, n_vectors):
    """work[dst + j ld + s] = work[factor + s] work[src + j ld + s], s over `n_vectors` vectors of lanes."""
    if not isinstance(n_vectors, types.IntegerLiteral):
        return None
    signature = types.void(work, dst, factor, src, n_rows, ld, n_vectors)
    ns = n_vectors.literal_value

    def codegen(context, builder, _signature, args):
        data, to, by, of, rows, stride = args[:6]
        vector, size = _vector_of(context, work)
        index = to.type
        shifts = [ir.Constant(index, j * vector.count) for j in range(ns)]
        to, by, of = (_address(context, builder, work, data, at) for at in (to, by, of))
        factors = [_load(builder, builder.gep(by, [shift]), vector, size) for shift in shifts]
        with cgutils.for_range(builder, rows) as loop:
            step = builder.mul(loop.index, stride)
            source, target = builder.gep(of, [step]), builder.gep(to, [step])
            values = [_load(builder, builder.gep(source, [shift]), vector, size) for shift in shifts]
            for value, by_value, shift in zip(values, factors, shifts, strict=True):
                _store(builder, builder.fmul(value, by_value), builder.gep(target, [shift]), size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)
def _raise_rows(_typing, work, x, this, before, ld_before, after, a, b, n_rows, ld, n_vectors):
    """work[after] = a work[x] work[this] - b work[before], row by row: one step of the Hermite recurrence."""
    if not isinstance(n_vectors, types.IntegerLiteral):
        return None
    signature = types.void(work, x, this, before, ld_before, after, a, b, n_rows, ld, n_vectors)
    ns = n_vectors.literal_value

    def codegen(context, builder, _signature, args):
        data, at_x, at_this, at_before, stride_before, at_after, a_scalar, b_scalar, rows, stride = args[:10]
        vector, size = _vector_of(context, work)
        index = at_x.type
        base = [_address(context, builder, work, data, at) for at in (at_x, at_this, at_before, at_after)]
        a_vector, b_vector = _splat(builder, a_scalar, vector), _splat(builder, b_scalar, vector)
        with cgutils.for_range(builder, rows) as loop:
            step, step_before = builder.mul(loop.index, stride), builder.mul(loop.index, stride_before)
            for j in range(ns):
                shift = ir.Constant(index, j * vector.count)
                values = [
                    _load(builder, builder.gep(p, [builder.add(s, shift)]), vector, size)
                    for p, s in zip(base[:3], (step, step, step_before), strict=True)
                ]
                product = builder.fmul(builder.fmul(values[0], values[1]), a_vector)
                value = builder.fsub(product, builder.fmul(values[2], b_vector))
                _store(builder, value, builder.gep(base[3], [builder.add(step, shift)]), size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)
def _scale_columns(_typing, work, p0, raw, scaled, n_lanes, n_vectors):
    """scaled[s, :] = work[p0 + s] raw[s, :], rows of `n_vectors` vectors."""
    if not isinstance(n_vectors, types.IntegerLiteral):
        return None
    signature = types.void(work, p0, raw, scaled, n_lanes, n_vectors)
    nv = n_vectors.literal_value

    def codegen(context, builder, _signature, args):
        a_work, at, a_raw, a_scaled, lanes = args[:5]
        vector, size = _vector_of(context, work)
        index = at.type
        zero = ir.Constant(index, 0)
        factors = _address(context, builder, work, a_work, at)
        source = _address(context, builder, raw, a_raw, zero)
        target = _address(context, builder, scaled, a_scaled, zero)
        with cgutils.for_range(builder, lanes) as loop:
            value = builder.load(builder.gep(factors, [loop.index]), align=size)
            factor = _splat(builder, value, vector)
            row = builder.mul(loop.index, ir.Constant(index, nv * vector.count))
            for v in range(nv):
                at = builder.add(row, ir.Constant(index, v * vector.count))
                product = builder.fmul(factor, _load(builder, builder.gep(source, [at]), vector, size))
                _store(builder, product, builder.gep(target, [at]), size)
        return context.get_dummy_value()

    return signature, codegen


@njit(cache=True, nogil=True)
def _fill_powers(X, first, n_samples, degree, work, base, lanes):
    """Write 1 and h_m(x_i), m = 1..degree, of `n_samples` rows of X into a workspace; other lanes see x = 0.

    h_{m+1} = (x h_m - sqrt(m) h_{m-1}) / sqrt(m+1).
    """
    d = X.shape[1]
    x = base + lanes
    for s in range(lanes):
        work[base + s] = 1
    for s in range(n_samples):
        for i in range(d):
            work[x + i * lanes + s] = X[first + s, i]
    for s in range(n_samples, lanes):
        for i in range(d):
            work[x + i * lanes + s] = 0
    group = GROUP_VECTORS * (VECTOR_BYTES // X.itemsize)
    for m in range(1, degree):
        a = work.dtype.type(1 / np.sqrt(m + 1.0))
        b = work.dtype.type(np.sqrt(m / (m + 1.0)))
        this = x + (m - 1) * d * lanes
        before = x + (m - 2) * d * lanes if m > 1 else base
        for s in range(0, lanes, group):
            _raise_rows(
                work,
                x + s,
                this + s,
                before + s,
                lanes if m > 1 else 0,
                x + m * d * lanes + s,
                a,
                b,
                d,
                lanes,
                GROUP_VECTORS,
            )


@njit(cache=True, nogil=True)
def _multiply(work, base, dst, factor, src, length, lanes):
    """work[dst + j] = work[factor] * work[src + j] for `length` rows of `lanes` numbers."""
    group = GROUP_VECTORS * (VECTOR_BYTES // work.itemsize)
    for s in range(base, base + lanes, group):
        _scale_rows(work, dst * lanes + s, factor * lanes + s, src * lanes + s, length, lanes, GROUP_VECTORS)


@njit(cache=True, nogil=True)
def _forward_rows(work, base, lanes, f_row, V, v0, n_rows, factor, U, u0, k):
    """U[:, group] += factor * (rows of the workspace)^T (rows of V), all k columns, one group of samples."""
    f0, p0 = base + f_row * lanes, base + factor * lanes
    c = 0
    while c + 4 <= k:
        _forward_tile(
            work, f0, lanes, V, v0 + c, k, n_rows, work, p0, U, u0 + c * lanes, lanes, GROUP_VECTORS, 4
        )
        c += 4
    if c + 2 <= k:
        _forward_tile(
            work, f0, lanes, V, v0 + c, k, n_rows, work, p0, U, u0 + c * lanes, lanes, GROUP_VECTORS, 2
        )
        c += 2
    if c < k:
        _forward_tile(
            work, f0, lanes, V, v0 + c, k, n_rows, work, p0, U, u0 + c * lanes, lanes, GROUP_VECTORS, 1
        )


@njit(cache=True, nogil=True)
def forward_samples(X, V, k, program, n_rows, degree, lanes, n_groups, start, stop, out):
    """out[start:stop] = Phi V for these samples: `n_groups` groups of `lanes` samples at a time.

    X : (n, d), C order; V : flat (n_slots k,), row-major, one row a slot of the plan; out : (n, k) of the
    same dtype, overwritten.
    """
    size = n_rows * lanes
    work = np.empty(n_groups * size, X.dtype)
    U = np.empty(n_groups * k * lanes, X.dtype)
    for tile in range(start, stop, n_groups * lanes):
        groups = min(n_groups, (stop - tile + lanes - 1) // lanes)
        for g in range(groups):
            first = tile + g * lanes
            _fill_powers(X, first, min(lanes, stop - first), degree, work, g * size, lanes)
        U[:] = 0
        for step in range(program.shape[0]):
            a, row, length, e = program[step, 1], program[step, 2], program[step, 3], program[step, 4]
            if program[step, 0] == 0:
                for g in range(groups):
                    _multiply(work, g * size, a, row, length, e, lanes)
                continue
            for chunk in range(0, length, _CHUNK):
                rows = min(_CHUNK, length - chunk)
                for g in range(groups):
                    _forward_rows(
                        work, g * size, lanes, row + chunk, V, (e + chunk) * k, rows, a, U, g * k * lanes, k
                    )
        for s in range(min(groups * lanes, stop - tile)):
            u = s // lanes * k * lanes + s % lanes
            for c in range(k):
                out[tile + s, c] = U[u + c * lanes]


@njit(cache=True, nogil=True)
def _backward_few(work, lanes, f_row, n_rows, G, W, w0, ldw):
    """W rows += (rows of the workspace) G for 1, 2 or 4 columns of G, each contiguous over the samples."""
    steps = lanes // (VECTOR_BYTES // work.itemsize)
    j = 0
    while n_rows - j >= DOTS_OF_FOUR and ldw == 4:
        f0, w = (f_row + j) * lanes, w0 + 4 * j
        _backward_dots(work, f0, lanes, G, 0, lanes, steps, W, w, 4, DOTS_OF_FOUR, 4)
        j += DOTS_OF_FOUR
    while n_rows - j >= 1 and ldw == 4:
        _backward_dots(work, (f_row + j) * lanes, lanes, G, 0, lanes, steps, W, w0 + 4 * j, 4, 1, 4)
        j += 1
    while n_rows - j >= 6 and ldw == 2:
        _backward_dots(work, (f_row + j) * lanes, lanes, G, 0, lanes, steps, W, w0 + 2 * j, 2, 6, 2)
        j += 6
    while n_rows - j >= 1 and ldw == 2:
        _backward_dots(work, (f_row + j) * lanes, lanes, G, 0, lanes, steps, W, w0 + 2 * j, 2, 1, 2)
        j += 1
    while n_rows - j >= 8:
        _backward_dots(work, (f_row + j) * lanes, lanes, G, 0, lanes, steps, W, w0 + j, 1, 8, 1)
        j += 8
    while n_rows - j >= 1:
        _backward_dots(work, (f_row + j) * lanes, lanes, G, 0, lanes, steps, W, w0 + j, 1, 1, 1)
        j += 1


@njit(cache=True, nogil=True)
def _backward_rows(work, lanes, f_row, n_rows, G, W, w0, ldw, vectors):
    """W rows += (rows of the workspace) G, one tile of features after another.

    `vectors` is the width of G's rows; 0: G has `ldw` columns, each contiguous over the samples.
    """
    j = 0
    if vectors == 0:
        _backward_few(work, lanes, f_row, n_rows, G, W, w0, ldw)
    elif vectors == 1:
        while n_rows - j >= 12:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 12, 1)
            j += 12
        while n_rows - j >= 4:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 4, 1)
            j += 4
        while n_rows - j >= 1:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 1, 1)
            j += 1
    else:
        while n_rows - j >= TILE_FEATURES:
            _backward_tile(
                work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, TILE_FEATURES, 2
            )
            j += TILE_FEATURES
        while n_rows - j >= 3:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 3, 2)
            j += 3
        while n_rows - j >= 1:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 1, 2)
            j += 1


@njit(cache=True, nogil=True)
def _scale_block(work, factor, lanes, raw, scaled, vectors, k):
    """Write work[factor] times the columns of raw, in the layout that `vectors` means, to scaled."""
    if vectors == 2:
        _scale_columns(work, factor * lanes, raw, scaled, lanes, 2)
    elif vectors == 1:
        _scale_columns(work, factor * lanes, raw, scaled, lanes, 1)
    else:
        for c in range(k):
            for s in range(lanes):
                scaled[c * lanes + s] = work[factor * lanes + s] * raw[c * lanes + s]


@njit(cache=True, nogil=True)
def _fill_block(G, tile, samples, g0, k, lanes, raw, ldw, vectors):
    """Copy columns g0..g0+k-1 of some samples of G, zeros in the other lanes."""
    if vectors == 0:
        raw[:] = 0
        for c in range(k):
            for s in range(samples):
                raw[c * lanes + s] = G[tile + s, g0 + c]
    else:
        for s in range(samples):
            for c in range(k):
                raw[s * ldw + c] = G[tile + s, g0 + c]
        raw[samples * ldw :] = 0


@njit(cache=True, nogil=True)
def _flush(W, k, ldw, g0, scattered, lo, hi, out):
    """Add the sums of the working precision to the float64 ones and start them again."""
    for j in range(hi - lo):
        for c in range(k):
            out[lo + j, g0 + c] += W[j * ldw + c]
    for j in range(scattered.shape[0]):
        for c in range(k):
            out[lo + scattered[j], g0 + c] += W[(hi - lo + j) * ldw + c]
    W[:] = 0


@njit(cache=True, nogil=True)
def backward_features(X, G, g0, k, program, scattered, n_rows, degree, lanes, flush, lo, hi, out):
    """out[lo:hi, g0:g0+k] += the plan's rows of Phi^T G[:, g0:g0+k]; k at most two vectors wide.

    X : (n, d), C order; G : (n, ...) of the same dtype; out : (hi or more, ...) float64. Sums over
    `flush` samples are formed in the dtype of X, those of such chunks in float64.
    """
    n = X.shape[0]
    width = VECTOR_BYTES // X.itemsize
    few = min(4, max(2, width // 2))  # columns that would leave half of a vector empty, or more
    vectors = 0 if k <= few else (1 if k <= width else 2)
    ldw = vectors * width if vectors else (4 if k > 2 else k)
    work = np.empty(n_rows * lanes, X.dtype)
    raw = np.zeros(lanes * ldw, X.dtype)
    scaled = np.zeros(lanes * ldw, X.dtype)
    W = np.zeros((hi - lo + scattered.shape[0]) * ldw, X.dtype)
    pending = 0
    for tile in range(0, n, lanes):
        samples = min(lanes, n - tile)
        _fill_powers(X, tile, samples, degree, work, 0, lanes)
        _fill_block(G, tile, samples, g0, k, lanes, raw, ldw, vectors)
        for step in range(program.shape[0]):
            a, row, length, e = program[step, 1], program[step, 2], program[step, 3], program[step, 4]
            if program[step, 0] == 0:
                _multiply(work, 0, a, row, length, e, lanes)
            else:
                _scale_block(work, a, lanes, raw, scaled, vectors, k)
                _backward_rows(work, lanes, row, length, scaled, W, e * ldw, ldw, vectors)
        pending += samples
        if pending >= flush or tile + lanes >= n:
            _flush(W, k, ldw, g0, scattered, lo, hi, out)
            pending = 0
