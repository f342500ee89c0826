// Tiles: LANES rows of a matrix, transposed so that each bin is one vector, with the bins in the order of the space.
// The last tile is filled up with copies of the last row, so that no kernel needs a special case for it.
#pragma once

#include "kernels.h"
#include "simd.h"

#define EW_ALWAYS __attribute__((always_inline))

namespace {

EW_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Vectors in memory, one for each bin or node.
template <class T> struct Tile {
    T *data;
    EW_INLINE Vector<T> operator[](int64_t j) const { return load(data + j * LANES); }
    EW_INLINE void set(int64_t j, Vector<T> v) const { store(v, data + j * LANES); }
    EW_INLINE T &at(int64_t j, int lane) const { return data[j * LANES + lane]; }
};

// The memory of a task, from which tiles are taken; those of doubles first.
struct Memory {
    char *next;
    EW_INLINE explicit Memory(const Task &task) : next(static_cast<char *>(task.scratch)) {}
    template <class T> EW_INLINE Tile<T> take(int64_t count) {
        T *data = reinterpret_cast<T *>(next);
        next += count * LANES * int64_t(sizeof(T));
        return {data};
    }
};

// The rows of a tile, and their offsets in a matrix.
struct Rows {
    int64_t first, count;
    int64_t offsets[LANES];

    Rows(int64_t tile, int64_t count, int64_t stride) : first(tile * LANES), count(count) {
        for (int i = 0; i < LANES; ++i) offsets[i] = index(i) * stride;
    }
    EW_INLINE int64_t index(int lane) const { return smaller(first + lane, count - 1); }
};

// ---- transposes -----------------------------------------------------------------------------------------------------

// How many numbers there are in a register, and how many registers make a vector.
template <class T> constexpr int WIDTH = int(4 * LANES / sizeof(T));
template <class T> constexpr int PARTS = LANES / WIDTH<T>;
template <class T> using Register = decltype(Vector<T>::a);

EW_INLINE Floats &part(Vector<float> &v, int) { return v.a; }
EW_INLINE Doubles &part(Double &v, int i) { return i ? v.b : v.a; }

// Of a pair of registers, swap the second half of each block of 2 * STEP lanes of `a` with the first half of `b`.
template <int STEP, class V, int... I> EW_INLINE void swap_lanes(V &a, V &b, Lanes<I...>) {
    constexpr int N = sizeof...(I);
    V low = __builtin_shufflevector(a, b, ((I & STEP) ? N + (I ^ STEP) : I)...);
    b = __builtin_shufflevector(a, b, ((I & STEP) ? N + I : (I | STEP))...);
    a = low;
}

// Transpose blocks of SIZE x SIZE numbers in SIZE registers.
template <int SIZE, int STEP = SIZE / 2, class V> EW_INLINE void transpose(V *v) {
    if constexpr (STEP > 0) {
#pragma GCC unroll 16
        for (int i = 0; i < SIZE; ++i)
            if (!(i & STEP)) swap_lanes<STEP>(v[i], v[i | STEP], Count<sizeof(V) / sizeof(v[0][0])>());
        transpose<SIZE, STEP / 2>(v);
    }
}

// A register of PIECES times SIZE numbers, from every SIZE-th of some rows.
template <int SIZE, int PIECES, class T> EW_INLINE auto gather(const T *column, const int64_t *rows) {
    typedef T V __attribute__((vector_size(SIZE * PIECES * sizeof(T))));
    V v;
    if constexpr (PIECES == 1) {
        memcpy(&v, column + rows[0], sizeof v);
    } else {
        const auto a = gather<SIZE, PIECES / 2>(column, rows), b = gather<SIZE, PIECES / 2>(column, rows + PIECES / 2 * SIZE);
        v = joined<V>(a, b, Count<SIZE * PIECES>());
    }
    return v;
}

template <int SIZE, int PIECES, class T, class V> EW_INLINE void scatter(T *column, const int64_t *rows, V v) {
    if constexpr (PIECES == 1) {
        memcpy(column + rows[0], &v, sizeof v);
    } else {
        constexpr int N = SIZE * PIECES / 2;
        typedef T Half __attribute__((vector_size(N * sizeof(T))));
        scatter<SIZE, PIECES / 2>(column, rows, taken<Half, 0>(v, Count<N>()));
        scatter<SIZE, PIECES / 2>(column, rows + PIECES / 2 * SIZE, taken<Half, N>(v, Count<N>()));
    }
}

// SIZE columns of all rows, from registers that each hold a part of a row, or parts of every SIZE-th row: `read(row)`.
template <int SIZE, class T, class F> EW_INLINE void load_columns(Vector<T> *columns, F read) {
#pragma GCC unroll 2
    for (int h = 0; h < PARTS<T>; ++h) {
        Register<T> v[SIZE];
#pragma GCC unroll 16
        for (int i = 0; i < SIZE; ++i) v[i] = read(h * WIDTH<T> + i);
        transpose<SIZE>(v);
#pragma GCC unroll 16
        for (int i = 0; i < SIZE; ++i) part(columns[i], h) = v[i];
    }
}

template <int SIZE, class T> EW_INLINE void store_columns(T *column, const int64_t *rows, Vector<T> *columns) {
#pragma GCC unroll 2
    for (int h = 0; h < PARTS<T>; ++h) {
        Register<T> v[SIZE];
#pragma GCC unroll 16
        for (int i = 0; i < SIZE; ++i) v[i] = part(columns[i], h);
        transpose<SIZE>(v);
#pragma GCC unroll 16
        for (int i = 0; i < SIZE; ++i) scatter<SIZE, WIDTH<T> / SIZE>(column, rows + h * WIDTH<T> + i, v[i]);
    }
}

// Call f with the number of columns that are transposed at once: as many as fit into a register, or into 16 bytes, or 1.
template <class T, class F> EW_INLINE void with_block_size(int64_t bins, F f) {
    constexpr int SHORT = int(16 / sizeof(T));
    if (bins >= WIDTH<T>)
        f(Size<WIDTH<T>>());
    else if (bins >= SHORT)
        f(Size<SHORT>());
    else
        f(Size<1>());
}

// Call f(j, repeated) for blocks of SIZE columns that cover all. The last one overlaps the one before in `repeated` columns.
template <int SIZE, class F> EW_INLINE void each_block(int64_t bins, F f) {
    for (int64_t j = 0; j + SIZE <= bins; j += SIZE) f(j, 0);
    if (bins % SIZE) f(bins - SIZE, SIZE - bins % SIZE);
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

EW_INLINE int64_t leaf_of(const int32_t *places, int64_t bin) { return places ? places[bin] : bin; }

// Load rows into a tile; returns the largest number of each row.
template <class T> EW_INLINE Vector<T> load_tile(const ew_space &space, const void *matrix, const Rows &rows, Tile<T> tile) {
    Vector<T> largest = T(-__builtin_inf());
    const int32_t *places = space.places;
    with_block_size<T>(space.bins, [&](auto size) EW_ALWAYS {
        constexpr int SIZE = decltype(size)::value;
        each_block<SIZE>(space.bins, [&](int64_t j, int64_t) EW_ALWAYS {
            const T *column = static_cast<const T *>(matrix) + j;
            Vector<T> block[SIZE];
            load_columns<SIZE>(block,
                               [&](int row) EW_ALWAYS { return gather<SIZE, WIDTH<T> / SIZE>(column, rows.offsets + row); });
#pragma GCC unroll 16
            for (int i = 0; i < SIZE; ++i) {
                tile.set(leaf_of(places, j + i), block[i]);
                largest = select(block[i] > largest, block[i], largest);
            }
        });
    });
    return largest;
}

// Store a tile to the rows of a matrix.
template <class T> EW_INLINE void store_tile(const ew_space &space, Tile<T> tile, const Rows &rows, void *matrix) {
    const int32_t *places = space.places;
    with_block_size<T>(space.bins, [&](auto size) EW_ALWAYS {
        constexpr int SIZE = decltype(size)::value;
        each_block<SIZE>(space.bins, [&](int64_t j, int64_t) EW_ALWAYS {
            Vector<T> block[SIZE];
#pragma GCC unroll 16
            for (int i = 0; i < SIZE; ++i) block[i] = tile[leaf_of(places, j + i)];
            store_columns<SIZE>(static_cast<T *>(matrix) + j, rows.offsets, block);
        });
    });
}

// Store f(j, sum) of every bin of a chain to the rows of a matrix, from the last bin to the first; f may change the sum.
template <class T, class F> EW_INLINE void store_from_end(int64_t bins, const Rows &rows, void *matrix, Double sum, F f) {
    with_block_size<T>(bins, [&](auto size) EW_ALWAYS {
        constexpr int SIZE = decltype(size)::value;
        const auto store_block = [&](int64_t j, Double &running) EW_ALWAYS {
            Vector<T> block[SIZE];
#pragma GCC unroll 16
            for (int i = SIZE - 1; i >= 0; --i) block[i] = f(j + i, running);
            store_columns<SIZE>(static_cast<T *>(matrix) + j, rows.offsets, block);
        };
        int64_t j = bins;
        if (bins % SIZE) {
            // Overlaps the next block, which continues where the last whole number of blocks ends.
            Double ahead = sum;
            store_block(bins - SIZE, ahead);
            while (j % SIZE) f(--j, sum);
        }
        while ((j -= SIZE) >= 0) store_block(j, sum);
    });
}

// ---- tables ---------------------------------------------------------------------------------------------------------

template <class T> EW_INLINE const T *numbers(const Numbers &table) {
    if constexpr (sizeof(T) == 4)
        return table.floats;
    else
        return table.doubles;
}

// Call f for every leaf, or every node, right below a node.
template <class F> EW_INLINE void each_leaf(const ew_space &space, int64_t k, F f) {
    for (int64_t j = space.leaves[k]; j < space.leaves[k + 1]; ++j) f(j);
}
template <class F> EW_INLINE void each_child(const ew_space &space, int64_t k, F f) {
    for (int64_t c = space.children[k]; c < space.children[k + 1]; ++c) f(c);
}

// Add to the number of each node those of the nodes above it; calls f(node, sum) of every node.
template <class F> EW_INLINE void sum_from_root(const ew_space &space, Tile<double> slopes, F f) {
    for (int64_t k = 0; k < space.nodes; ++k) {
        const Double above = slopes[k];
        each_child(space, k, [&](int64_t c) EW_ALWAYS { slopes.set(c, slopes[c] + above); });
        f(k, above);
    }
}

// The sum of terms in the type of the data: of floats a few, then all in double precision.
template <class T> struct Sum {
    Double total = 0.0;
    Vector<T> few = T(0);
    int count = 0;
    EW_INLINE void add(Vector<T> x) {
        few = few + x;
        if (sizeof(T) == 8 || ++count == 4) flush();
    }
    EW_INLINE void flush() {
        total = total + widen(few);
        few = T(0);
        count = 0;
    }
    EW_INLINE Double value() {
        flush();
        return total;
    }
};

} // namespace
