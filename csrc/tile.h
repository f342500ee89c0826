// Tiles: LANES rows of a matrix, transposed so that each bin is one vector, with the bins in the order of the space.
// The last tile is filled up with copies of the last row, so that no kernel needs a special case for it.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace {

EW_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- transposes -----------------------------------------------------------------------------------------------------

// A register of floats, or of doubles.
template <class T> struct Register;
template <> struct Register<float> {
    typedef Floats Type;
    typedef float Quarter __attribute__((vector_size(16)));
};
template <> struct Register<double> {
    typedef Doubles Type;
    typedef double Quarter __attribute__((vector_size(16)));
};
// How many numbers there are in a register, and in 16 bytes.
template <class T> constexpr int WIDTH = int(4 * LANES / sizeof(T));
template <class T> constexpr int SHORT = int(16 / sizeof(T));

template <int... I> struct Lanes {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Lanes<I...> Type; };

// Of a pair of registers, swap the second half of each block of 2 * STEP lanes of `a` with the first half of `b`.
template <int STEP, class V, int... I> EW_INLINE void swap_lanes(V &a, V &b, Lanes<I...>) {
    constexpr int N = sizeof...(I);
    V low = __builtin_shufflevector(a, b, ((I & STEP) ? N + (I ^ STEP) : I)...);
    b = __builtin_shufflevector(a, b, ((I & STEP) ? N + I : (I | STEP))...);
    a = low;
}

// Transpose blocks of SIZE x SIZE numbers in SIZE registers.
template <int SIZE, int N, class V> EW_INLINE void transpose(V *v) {
#define EW_STEP(STEP)                                                                                                    \
    if constexpr (SIZE > STEP) {                                                                                         \
        _Pragma("GCC unroll 16") for (int i = 0; i < SIZE; ++i) if (!(i & STEP))                                         \
            swap_lanes<STEP>(v[i], v[i | STEP], typename Count<N>::Type());                                              \
    }
    EW_STEP(8) EW_STEP(4) EW_STEP(2) EW_STEP(1)
#undef EW_STEP
}

template <class V, class T> EW_INLINE V load_register(const T *from) {
    V v;
    memcpy(&v, from, sizeof v);
    return v;
}

EW_INLINE Floats &part(Vector<float> &v, int) { return v.a; }
EW_INLINE Doubles &part(Double &v, int i) { return i ? v.b : v.a; }
template <class T> constexpr int PARTS = int(sizeof(T) / 4);

// Columns j : j + WIDTH of the rows at these offsets.
template <class T> EW_INLINE void load_columns(const T *matrix, const int64_t *rows, int64_t j, Vector<T> *columns) {
    typedef typename Register<T>::Type V;
    constexpr int N = WIDTH<T>;
#pragma GCC unroll 2
    for (int h = 0; h < PARTS<T>; ++h) {
        V v[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) v[i] = load_register<V>(matrix + rows[h * N + i] + j);
        transpose<N, N>(v);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) part(columns[i], h) = v[i];
    }
}

template <class T> EW_INLINE void store_columns(T *matrix, const int64_t *rows, int64_t j, Vector<T> *columns) {
    typedef typename Register<T>::Type V;
    constexpr int N = WIDTH<T>;
#pragma GCC unroll 2
    for (int h = 0; h < PARTS<T>; ++h) {
        V v[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) v[i] = part(columns[i], h);
        transpose<N, N>(v);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) memcpy(matrix + rows[h * N + i] + j, &v[i], sizeof(V));
    }
}

// Two registers as one, and parts of a register.
template <class V, class W, int... I> EW_INLINE V joined(W a, W b, Lanes<I...>) { return __builtin_shufflevector(a, b, I...); }
template <class W, int FIRST, class V, int... I> EW_INLINE W taken(V v, Lanes<I...>) { return __builtin_shufflevector(v, v, FIRST + I...); }

// Numbers 16 bytes at a time, from the rows of a stride; `count` of them fill a register.
template <int COUNT, class T> EW_INLINE auto gather(const T *matrix, const int64_t *rows, int64_t j) {
    constexpr int S = SHORT<T>;
    if constexpr (COUNT == 1) {
        return load_register<typename Register<T>::Quarter>(matrix + rows[0] + j);
    } else {
        typedef T V __attribute__((vector_size(16 * COUNT)));
        auto a = gather<COUNT / 2>(matrix, rows, j), b = gather<COUNT / 2>(matrix, rows + COUNT / 2 * S, j);
        return joined<V>(a, b, typename Count<COUNT * S>::Type());
    }
}
template <int COUNT, class T, class V> EW_INLINE void scatter(T *matrix, const int64_t *rows, int64_t j, V v) {
    constexpr int S = SHORT<T>;
    if constexpr (COUNT == 1) {
        memcpy(matrix + rows[0] + j, &v, 16);
    } else {
        typedef T W __attribute__((vector_size(8 * COUNT)));
        typedef typename Count<COUNT * S / 2>::Type Half;
        scatter<COUNT / 2>(matrix, rows, j, taken<W, 0>(v, Half()));
        scatter<COUNT / 2>(matrix, rows + COUNT / 2 * S, j, taken<W, COUNT * S / 2>(v, Half()));
    }
}

// The same for SHORT columns: for rows that are shorter than a register.
template <class T> EW_INLINE void load_short(const T *matrix, const int64_t *rows, int64_t j, Vector<T> *columns) {
    typedef typename Register<T>::Type V;
    constexpr int N = WIDTH<T>, S = SHORT<T>;
#pragma GCC unroll 2
    for (int h = 0; h < PARTS<T>; ++h) {
        V v[S];
#pragma GCC unroll 4
        for (int i = 0; i < S; ++i) v[i] = gather<N / S>(matrix, rows + h * N + i, j);
        transpose<S, N>(v);
#pragma GCC unroll 4
        for (int i = 0; i < S; ++i) part(columns[i], h) = v[i];
    }
}

template <class T> EW_INLINE void store_short(T *matrix, const int64_t *rows, int64_t j, Vector<T> *columns) {
    typedef typename Register<T>::Type V;
    constexpr int N = WIDTH<T>, S = SHORT<T>;
#pragma GCC unroll 2
    for (int h = 0; h < PARTS<T>; ++h) {
        V v[S];
#pragma GCC unroll 4
        for (int i = 0; i < S; ++i) v[i] = part(columns[i], h);
        transpose<S, N>(v);
#pragma GCC unroll 4
        for (int i = 0; i < S; ++i) scatter<N / S>(matrix, rows + h * N + i, j, v[i]);
    }
}

template <class T> EW_INLINE Vector<T> load_column(const T *matrix, const int64_t *rows, int64_t j) {
    T v[LANES];
    for (int i = 0; i < LANES; ++i) v[i] = matrix[rows[i] + j];
    return Vector<T>::load(v);
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

// The rows of a tile, and their offsets in a matrix.
struct Rows {
    int64_t first, count;
    int64_t offsets[LANES];

    Rows(int64_t tile, int64_t count, int64_t stride) : first(tile * LANES), count(count) {
        for (int i = 0; i < LANES; ++i) offsets[i] = index(i) * stride;
    }
    EW_INLINE int64_t index(int lane) const { return smaller(first + lane, count - 1); }
};

// Where the vector of a bin is in a tile.
EW_INLINE int64_t offset_of(const ew_space &space, int64_t bin) {
    return (space.places ? int64_t(space.places[bin]) : bin) * LANES;
}

// Call f(j, n, repeated) for blocks of n columns that cover all: of `wide`, if there are as many, or else of `narrow`, or
// of 1. The last block overlaps the one before in `repeated` columns.
template <int WIDE, int NARROW, class F> EW_INLINE void each_block(int64_t bins, F f) {
    if (bins >= WIDE) {
        for (int64_t j = 0; j + WIDE <= bins; j += WIDE) f.template operator()<WIDE>(j, 0);
        if (bins % WIDE) f.template operator()<WIDE>(bins - WIDE, WIDE - bins % WIDE);
    } else if (bins >= NARROW) {
        for (int64_t j = 0; j + NARROW <= bins; j += NARROW) f.template operator()<NARROW>(j, 0);
        if (bins % NARROW) f.template operator()<NARROW>(bins - NARROW, NARROW - bins % NARROW);
    } else {
        for (int64_t j = 0; j < bins; ++j) f.template operator()<1>(j, 0);
    }
}

template <int N, class T> EW_INLINE void load_block(const T *matrix, const int64_t *rows, int64_t j, Vector<T> *block) {
    if constexpr (N == WIDTH<T>)
        load_columns(matrix, rows, j, block);
    else if constexpr (N == SHORT<T>)
        load_short(matrix, rows, j, block);
    else
        block[0] = load_column(matrix, rows, j);
}

template <int N, class T> EW_INLINE void store_block(T *matrix, const int64_t *rows, int64_t j, Vector<T> *block) {
    if constexpr (N == WIDTH<T>)
        store_columns(matrix, rows, j, block);
    else if constexpr (N == SHORT<T>)
        store_short(matrix, rows, j, block);
    else {
        T v[LANES];
        block[0].store(v);
        for (int i = 0; i < LANES; ++i) matrix[rows[i] + j] = v[i];
    }
}

// Load rows into a tile; returns the largest number of each row.
template <class T> struct TileLoader {
    const ew_space &space;
    const T *matrix;
    const Rows &rows;
    T *tile;
    Vector<T> largest;

    template <int N> EW_INLINE void operator()(int64_t j, int64_t) {
        Vector<T> block[N];
        load_block<N>(matrix, rows.offsets, j, block);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
            block[i].store(tile + offset_of(space, j + i));
            largest = select(block[i] > largest, block[i], largest);
        }
    }
};

template <class T> EW_INLINE Vector<T> load_tile(const ew_space &space, const T *matrix, const Rows &rows, T *tile) {
    TileLoader<T> loader{space, matrix, rows, tile, Vector<T>(T(-__builtin_inf()))};
    each_block<WIDTH<T>, SHORT<T>, TileLoader<T> &>(space.bins, loader);
    return loader.largest;
}

// Store f(offset in the tile) of every bin to the rows of a matrix.
template <class T, class F> struct TileStorer {
    const ew_space &space;
    const Rows &rows;
    T *matrix;
    F f;

    template <int N> EW_INLINE void operator()(int64_t j, int64_t) {
        Vector<T> block[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) block[i] = f(offset_of(space, j + i));
        store_block<N>(matrix, rows.offsets, j, block);
    }
};

template <class T, class F> EW_INLINE void store_tile(const ew_space &space, const Rows &rows, void *matrix, F f) {
    TileStorer<T, F> storer{space, rows, static_cast<T *>(matrix), f};
    each_block<WIDTH<T>, SHORT<T>, TileStorer<T, F> &>(space.bins, storer);
}

// ---- tables ---------------------------------------------------------------------------------------------------------

template <class T> EW_INLINE const T *numbers(const Numbers &table);
template <> EW_INLINE const float *numbers<float>(const Numbers &table) { return table.floats; }
template <> EW_INLINE const double *numbers<double>(const Numbers &table) { return table.doubles; }

// The sums of the nodes less `mean`, times `factor`, in the type of the data; they are moved to the front of the same memory.
template <class T> EW_INLINE const T *narrowed(const ew_space &space, double *sums, Double mean = 0.0, Double factor = 1.0) {
    T *result = reinterpret_cast<T *>(sums);
    for (int64_t k = 0; k < space.nodes; ++k) narrow<T>((Double::load(sums + k * LANES) - mean) * factor).store(result + k * LANES);
    return result;
}

// The sum of terms in the type of the data: a few of them, then all in double precision.
template <class T> struct Sum;
template <> struct Sum<float> {
    Double total = 0.0;
    Vector<float> few = 0.0f;
    int count = 0;
    EW_INLINE void add(Vector<float> x) {
        few = few + x;
        if (++count == 4) flush();
    }
    EW_INLINE void flush() {
        total = total + widen(few);
        few = 0.0f;
        count = 0;
    }
    EW_INLINE Double value() {
        flush();
        return total;
    }
};
template <> struct Sum<double> {
    Double total = 0.0;
    EW_INLINE void add(Double x) { total = total + x; }
    EW_INLINE Double value() { return total; }
};

} // namespace
