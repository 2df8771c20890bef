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

# Never nnan or ninf: a NaN in the data must come out as one.
_FMF = ("nsz", "arcp", "contract", "afn", "reassoc")
_CHUNK = 128
"""Rows of a run contracted before the next group of samples: they and the block's rows stay in the L1 cache."""


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


def _scalar_and_vector(context, array_type):
    scalar = context.get_value_type(array_type.dtype)
    size = array_type.dtype.bitwidth // 8
    return scalar, ir.VectorType(scalar, VECTOR_BYTES // size), size


def _fma(builder, vector):
    """Return the function ``a * b + c`` on vectors: fused where the processor can, else two operations."""
    name = f"llvm.fmuladd.v{vector.count}{'f32' if vector.element == ir.FloatType() else 'f64'}"
    function_type = ir.FunctionType(vector, [vector] * 3)
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return lambda a, b, c: builder.call(function, [a, b, c])


@intrinsic(prefer_literal=True)
def _forward_tile(typingctx, F, f0, ldf, V, v0, ldv, n_rows, P, p0, U, u0, ldu, n_vectors, n_columns):  # noqa: ANN001
    """U[c, :] += P[:] * sum_r F[r, :] V[r, c], `n_vectors` vectors of samples by `n_columns` columns."""
    if not isinstance(n_vectors, types.IntegerLiteral) or not isinstance(n_columns, types.IntegerLiteral):
        return None
    signature = types.void(F, f0, ldf, V, v0, ldv, n_rows, P, p0, U, u0, ldu, n_vectors, n_columns)
    ns, nc = n_vectors.literal_value, n_columns.literal_value

    def codegen(context, builder, sig, args):
        a_F, a_f0, a_ldf, a_V, a_v0, a_ldv, a_rows, a_P, a_p0, a_U, a_u0, a_ldu = args[:12]
        scalar, vector, size = _scalar_and_vector(context, F)
        fma = _fma(builder, vector)
        index = a_f0.type
        f_base = _address(context, builder, F, a_F, a_f0)
        v_base = _address(context, builder, V, a_V, a_v0)
        p_base = _address(context, builder, P, a_P, a_p0)
        u_base = _address(context, builder, U, a_U, a_u0)
        zero = ir.Constant(vector, [0.0] * vector.count)
        acc = [[cgutils.alloca_once_value(builder, zero) for _ in range(ns)] for _ in range(nc)]
        for column in acc:
            for cell in column:
                builder.store(zero, cell)
        with cgutils.for_range(builder, a_rows) as loop:
            f_row = builder.gep(f_base, [builder.mul(loop.index, a_ldf)])
            v_row = builder.gep(v_base, [builder.mul(loop.index, a_ldv)])
            lanes = [
                _load(builder, builder.gep(f_row, [ir.Constant(index, j * vector.count)]), vector, size)
                for j in range(ns)
            ]
            for c in range(nc):
                value = builder.load(builder.gep(v_row, [ir.Constant(index, c)]), align=size)
                factor = _splat(builder, value, vector)
                for j in range(ns):
                    builder.store(fma(lanes[j], factor, builder.load(acc[c][j])), acc[c][j])
        for j in range(ns):
            shift = ir.Constant(index, j * vector.count)
            prefix = _load(builder, builder.gep(p_base, [shift]), vector, size)
            for c in range(nc):
                row = builder.mul(a_ldu, ir.Constant(index, c))
                cell = builder.gep(u_base, [builder.add(row, shift)])
                total = fma(prefix, builder.load(acc[c][j]), _load(builder, cell, vector, size))
                _store(builder, total, cell, size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)
def _backward_tile(typingctx, F, f0, ldf, G, g0, ldg, n_lanes, W, w0, ldw, n_features, n_vectors):  # noqa: ANN001
    """W[j, :] += sum_s F[j, s] G[s, :], `n_features` rows by `n_vectors` vectors of columns."""
    if not isinstance(n_features, types.IntegerLiteral) or not isinstance(n_vectors, types.IntegerLiteral):
        return None
    signature = types.void(F, f0, ldf, G, g0, ldg, n_lanes, W, w0, ldw, n_features, n_vectors)
    nf, nv = n_features.literal_value, n_vectors.literal_value

    def codegen(context, builder, sig, args):
        a_F, a_f0, a_ldf, a_G, a_g0, a_ldg, a_lanes, a_W, a_w0, a_ldw = args[:10]
        scalar, vector, size = _scalar_and_vector(context, F)
        fma = _fma(builder, vector)
        index = a_f0.type
        f_base = _address(context, builder, F, a_F, a_f0)
        g_base = _address(context, builder, G, a_G, a_g0)
        w_base = _address(context, builder, W, a_W, a_w0)
        zero = ir.Constant(vector, [0.0] * vector.count)
        acc = [[cgutils.alloca_once_value(builder, zero) for _ in range(nv)] for _ in range(nf)]
        for row in acc:
            for cell in row:
                builder.store(zero, cell)
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
                    builder.store(fma(factor, columns[v], builder.load(acc[j][v])), acc[j][v])
        for j in range(nf):
            for v in range(nv):
                row = builder.mul(a_ldw, ir.Constant(index, j))
                cell = builder.gep(w_base, [builder.add(row, ir.Constant(index, v * vector.count))])
                total = builder.fadd(builder.load(acc[j][v]), _load(builder, cell, vector, size))
                _store(builder, total, cell, size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)
def _backward_dots(typingctx, F, f0, ldf, G, g0, ldg, n_lanes, W, w0, ldw, n_features, n_columns):  # noqa: ANN001
    """W[j, c] += sum_s F[j, s] G[c, s] for few columns: vectors run along the samples; n_lanes in vectors."""
    if not isinstance(n_features, types.IntegerLiteral) or not isinstance(n_columns, types.IntegerLiteral):
        return None
    signature = types.void(F, f0, ldf, G, g0, ldg, n_lanes, W, w0, ldw, n_features, n_columns)
    nf, nc = n_features.literal_value, n_columns.literal_value

    def codegen(context, builder, sig, args):
        a_F, a_f0, a_ldf, a_G, a_g0, a_ldg, a_lanes, a_W, a_w0, a_ldw = args[:10]
        scalar, vector, size = _scalar_and_vector(context, F)
        fma = _fma(builder, vector)
        index = a_f0.type
        f_base = _address(context, builder, F, a_F, a_f0)
        g_base = _address(context, builder, G, a_G, a_g0)
        w_base = _address(context, builder, W, a_W, a_w0)
        zero = ir.Constant(vector, [0.0] * vector.count)
        acc = [[cgutils.alloca_once_value(builder, zero) for _ in range(nc)] for _ in range(nf)]
        for row in acc:
            for cell in row:
                builder.store(zero, cell)
        f_rows = [builder.gep(f_base, [builder.mul(a_ldf, ir.Constant(index, j))]) for j in range(nf)]
        g_rows = [builder.gep(g_base, [builder.mul(a_ldg, ir.Constant(index, c))]) for c in range(nc)]
        with cgutils.for_range(builder, a_lanes) as loop:
            shift = builder.mul(loop.index, ir.Constant(index, vector.count))
            columns = [_load(builder, builder.gep(g_rows[c], [shift]), vector, size) for c in range(nc)]
            for j in range(nf):
                lanes = _load(builder, builder.gep(f_rows[j], [shift]), vector, size)
                for c in range(nc):
                    builder.store(fma(lanes, columns[c], builder.load(acc[j][c])), acc[j][c])
        for j in range(nf):
            for c in range(nc):
                total = builder.load(acc[j][c])
                width = vector.count
                while width > 1:  # fold the upper half onto the lower one
                    width //= 2
                    mask = [(i + width) % vector.count for i in range(vector.count)]
                    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), mask)
                    total = builder.fadd(total, builder.shuffle_vector(total, total, mask))
                value = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
                row = builder.mul(a_ldw, ir.Constant(index, j))
                cell = builder.gep(w_base, [builder.add(row, ir.Constant(index, c))])
                builder.store(builder.fadd(builder.load(cell, align=size), value), cell, align=size)
        return context.get_dummy_value()

    return signature, codegen


@njit(cache=True, nogil=True, fastmath={"nsz", "arcp", "contract", "afn", "reassoc"})
def _fill_powers(X, first, n_samples, degree, work, base, lanes):
    """Write 1 and h_m(x_i), m = 1..degree, of `n_samples` rows of X into a workspace; other lanes see x = 0.

    h_{m+1} = (x h_m - sqrt(m) h_{m-1}) / sqrt(m+1).
    """
    d = X.shape[1]
    one = work.dtype.type(1)
    for s in range(lanes):
        work[base + s] = one
    for i in range(d):
        row = base + (1 + i) * lanes
        for s in range(n_samples):
            work[row + s] = X[first + s, i]
        for s in range(n_samples, lanes):
            work[row + s] = 0
    for m in range(1, degree):
        a = work.dtype.type(1 / np.sqrt(m + 1.0))
        b = work.dtype.type(np.sqrt(m / (m + 1.0)))
        for i in range(d):
            x = base + (1 + i) * lanes
            this = base + (1 + (m - 1) * d + i) * lanes
            before = base + (1 + (m - 2) * d + i) * lanes if m > 1 else base
            after = base + (1 + m * d + i) * lanes
            for s in range(lanes):
                work[after + s] = work[x + s] * work[this + s] * a - work[before + s] * b


@njit(cache=True, nogil=True, fastmath={"nsz", "arcp", "contract", "afn", "reassoc"})
def _multiply(work, base, dst, factor, src, length, lanes):
    """work[dst + j] = work[factor] * work[src + j] for `length` rows of `lanes` numbers."""
    f = base + factor * lanes
    for j in range(length):
        d0 = base + (dst + j) * lanes
        s0 = base + (src + j) * lanes
        for s in range(lanes):
            work[d0 + s] = work[f + s] * work[s0 + s]


@njit(cache=True, nogil=True)
def _forward_rows(work, base, lanes, f_row, V, v0, ldv, n_rows, factor, U, u0, k):
    """U[:, group] += factor * (rows of the workspace)^T (rows of V), all k columns of one group of samples."""
    f0 = base + f_row * lanes
    p0 = base + factor * lanes
    c = 0
    while c + 4 <= k:
        _forward_tile(
            work, f0, lanes, V, v0 + c, ldv, n_rows, work, p0, U, u0 + c * lanes, lanes, GROUP_VECTORS, 4
        )
        c += 4
    if k - c == 3:
        _forward_tile(
            work, f0, lanes, V, v0 + c, ldv, n_rows, work, p0, U, u0 + c * lanes, lanes, GROUP_VECTORS, 3
        )
    elif k - c == 2:
        _forward_tile(
            work, f0, lanes, V, v0 + c, ldv, n_rows, work, p0, U, u0 + c * lanes, lanes, GROUP_VECTORS, 2
        )
    elif k - c == 1:
        _forward_tile(
            work, f0, lanes, V, v0 + c, ldv, n_rows, work, p0, U, u0 + c * lanes, lanes, GROUP_VECTORS, 1
        )


@njit(cache=True, nogil=True)
def forward_samples(X, V, k, program, scattered, n_rows, degree, lanes, n_groups, start, stop, out):
    """out[start:stop] = Phi V for these samples: `n_groups` groups of `lanes` samples at a time.

    X : (n, d), C order; V : flat (D k,), row-major; out : (n, k) of the same dtype, overwritten.
    """
    work = np.empty(n_groups * n_rows * lanes, X.dtype)
    U = np.empty(n_groups * k * lanes, X.dtype)
    packed = np.empty(_CHUNK * k, X.dtype)
    tile = start
    while tile < stop:
        groups = min(n_groups, (stop - tile + lanes - 1) // lanes)
        for g in range(groups):
            first = tile + g * lanes
            _fill_powers(X, first, min(lanes, stop - first), degree, work, g * n_rows * lanes, lanes)
        U[: groups * k * lanes] = 0
        for step in range(program.shape[0]):
            if program[step, 0] == 0:
                for g in range(groups):
                    _multiply(
                        work,
                        g * n_rows * lanes,
                        program[step, 1],
                        program[step, 2],
                        program[step, 3],
                        program[step, 4],
                        lanes,
                    )
                continue
            factor, row, length, first = (
                program[step, 1],
                program[step, 2],
                program[step, 3],
                program[step, 4],
            )
            for chunk in range(0, length, _CHUNK):
                rows = min(_CHUNK, length - chunk)
                if program[step, 0] == 1:
                    for g in range(groups):
                        _forward_rows(
                            work,
                            g * n_rows * lanes,
                            lanes,
                            row + chunk,
                            V,
                            (first + chunk) * k,
                            k,
                            rows,
                            factor,
                            U,
                            g * k * lanes,
                            k,
                        )
                else:
                    for j in range(rows):
                        v = scattered[first + chunk + j] * k
                        for c in range(k):
                            packed[j * k + c] = V[v + c]
                    for g in range(groups):
                        _forward_rows(
                            work,
                            g * n_rows * lanes,
                            lanes,
                            row + chunk,
                            packed,
                            0,
                            k,
                            rows,
                            factor,
                            U,
                            g * k * lanes,
                            k,
                        )
        for g in range(groups):
            first = tile + g * lanes
            for s in range(min(lanes, stop - first)):
                for c in range(k):
                    out[first + s, c] = U[(g * k + c) * lanes + s]
        tile += groups * lanes


@njit(cache=True, nogil=True)
def _backward_rows(work, lanes, f_row, n_rows, G, W, w0, ldw, two):
    """W rows += (rows of the workspace) G, one tile of features after another."""
    j = 0
    if two:
        while n_rows - j >= TILE_FEATURES:
            _backward_tile(
                work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, TILE_FEATURES, 2
            )
            j += TILE_FEATURES
        if MANY_REGISTERS and n_rows - j >= 6:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 6, 2)
            j += 6
        left = n_rows - j
        f0, at = (f_row + j) * lanes, w0 + j * ldw
        if left == 5:
            _backward_tile(work, f0, lanes, G, 0, ldw, lanes, W, at, ldw, 5, 2)
        elif left == 4:
            _backward_tile(work, f0, lanes, G, 0, ldw, lanes, W, at, ldw, 4, 2)
        elif left == 3:
            _backward_tile(work, f0, lanes, G, 0, ldw, lanes, W, at, ldw, 3, 2)
        elif left == 2:
            _backward_tile(work, f0, lanes, G, 0, ldw, lanes, W, at, ldw, 2, 2)
        elif left == 1:
            _backward_tile(work, f0, lanes, G, 0, ldw, lanes, W, at, ldw, 1, 2)
    else:
        while n_rows - j >= 12:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 12, 1)
            j += 12
        while n_rows - j >= 4:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 4, 1)
            j += 4
        while n_rows - j >= 1:
            _backward_tile(work, (f_row + j) * lanes, lanes, G, 0, ldw, lanes, W, w0 + j * ldw, ldw, 1, 1)
            j += 1


@njit(cache=True, nogil=True)
def backward_features(X, G, g0, k, program, scattered, n_rows, degree, lanes, flush, lo, hi, out):
    """out[lo:hi, g0:g0+k] += rows lo..hi-1 of Phi^T G[:, g0:g0+k]; k at most two vectors wide.

    X : (n, d), C order; G : (n, ...) of the same dtype; out : (D, ...) float64. Sums over `flush` samples are
    formed in the dtype of X, those of such chunks in float64.
    """
    n = X.shape[0]
    width = VECTOR_BYTES // X.itemsize
    two = k > width
    ldw = 2 * width if two else width
    work = np.empty(n_rows * lanes, X.dtype)
    raw = np.zeros(lanes * ldw, X.dtype)
    scaled = np.zeros(lanes * ldw, X.dtype)
    W = np.zeros((hi - lo) * ldw, X.dtype)
    packed = np.zeros(_CHUNK * ldw, X.dtype)
    pending = 0
    for tile in range(0, n, lanes):
        samples = min(lanes, n - tile)
        _fill_powers(X, tile, samples, degree, work, 0, lanes)
        for s in range(samples):
            for c in range(k):
                raw[s * ldw + c] = G[tile + s, g0 + c]
        raw[samples * ldw :] = 0
        for step in range(program.shape[0]):
            if program[step, 0] == 0:
                _multiply(
                    work, 0, program[step, 1], program[step, 2], program[step, 3], program[step, 4], lanes
                )
                continue
            factor, row, length, first = (
                program[step, 1],
                program[step, 2],
                program[step, 3],
                program[step, 4],
            )
            p0 = factor * lanes
            for s in range(lanes):
                p = work[p0 + s]
                for c in range(ldw):
                    scaled[s * ldw + c] = p * raw[s * ldw + c]
            if program[step, 0] == 1:
                _backward_rows(work, lanes, row, length, scaled, W, (first - lo) * ldw, ldw, two)
                continue
            for chunk in range(0, length, _CHUNK):
                rows = min(_CHUNK, length - chunk)
                packed[: rows * ldw] = 0
                _backward_rows(work, lanes, row + chunk, rows, scaled, packed, 0, ldw, two)
                for j in range(rows):
                    w = (scattered[first + chunk + j] - lo) * ldw
                    for c in range(ldw):
                        W[w + c] += packed[j * ldw + c]
        pending += samples
        if pending >= flush or tile + lanes >= n:
            for j in range(hi - lo):
                for c in range(k):
                    out[lo + j, g0 + c] += W[j * ldw + c]
            W[:] = 0
            pending = 0
