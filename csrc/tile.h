// Tiles: LANES rows of a matrix, transposed so that each bin is one vector, with the bins in the order of the space.
// The last tile is filled up with copies of the last row, so that no kernel needs a special case for it.

// Vectors in the memory of a task, one for each bin or node.
template <class T> struct Tile {
    T *data;
    EW_INLINE Tile(Task &task, int64_t count) : data(reinterpret_cast<T *>(task.scratch)) {
        task.scratch += count * LANES * int64_t(sizeof(T));
    }
    EW_INLINE Vector<T> operator[](int64_t j) const { return load(data + j * LANES); }
    EW_INLINE void set(int64_t j, Vector<T> v) const { store(v, data + j * LANES); }
    EW_INLINE T &at(int64_t j, int lane) const { return data[j * LANES + lane]; }
};

// The rows of a tile, and their offsets in a matrix.
struct Rows {
    int64_t index[LANES], offsets[LANES];
    Rows(const Task &task, int64_t stride) {
        for (int64_t i = 0, last = task.call->rows - 1; i < LANES; ++i) {
            index[i] = task.tile * LANES + i < last ? task.tile * LANES + i : last;
            offsets[i] = index[i] * stride;
        }
    }
};

// ---- transposes -----------------------------------------------------------------------------------------------------

// Of a pair of registers, swap the second half of each block of 2 * STEP lanes of `a` with the first half of `b`.
template <int STEP, class V, int... I> EW_INLINE void swap_lanes(V &a, V &b, Lanes<I...>) {
    constexpr int N = sizeof...(I);
    V low = __builtin_shufflevector(a, b, ((I & STEP) ? N + (I ^ STEP) : I)...);
    b = __builtin_shufflevector(a, b, ((I & STEP) ? N + I : (I | STEP))...);
    a = low;
}

// Transpose blocks of SIZE x SIZE numbers in the registers of SIZE vectors.
template <int SIZE, int STEP = SIZE / 2, class T> EW_INLINE void transpose(Vector<T> *v) {
    if constexpr (STEP > 0) {
#pragma GCC unroll 32
        for (int i = 0; i < SIZE * PARTS<T>; ++i)
            if (!(i & STEP)) swap_lanes<STEP>(v[i % SIZE].part[i / SIZE], v[i % SIZE | STEP].part[i / SIZE], Count<WIDTH<T>>());
        transpose<SIZE, STEP / 2>(v);
    }
}

// A register of N numbers: SIZE columns of every SIZE-th row.
template <int N, int SIZE, class T> EW_INLINE Register<T, N> gather(Size<SIZE> size, const T *column, const int64_t *rows) {
    Register<T, N> v;
    if constexpr (N == SIZE)
        memcpy(&v, column + rows[0], sizeof v);
    else
        v = joined(gather<N / 2>(size, column, rows), gather<N / 2>(size, column, rows + N / 2), Count<N>());
    return v;
}
template <int N, int SIZE, class T, class V> EW_INLINE void scatter(Size<SIZE> size, V v, T *column, const int64_t *rows) {
    if constexpr (N == SIZE) {
        memcpy(column + rows[0], &v, sizeof v);
    } else {
        scatter<N / 2>(size, taken<0>(v, Count<N / 2>()), column, rows);
        scatter<N / 2>(size, taken<N / 2>(v, Count<N / 2>()), column, rows + N / 2);
    }
}

// Call f(size, j, repeated) for blocks of `size` columns that cover all: as many as fit into a register, or into 16 bytes,
// or 1. The last block overlaps the one before in `repeated` columns.
template <class T, class F> EW_INLINE void each_block(int64_t bins, F f) {
    constexpr int SHORT = int(16 / sizeof(T));
    const auto walk = [&](auto size) EW_ALWAYS {
        const int64_t rest = bins % size, whole = bins - rest;
        for (int64_t j = 0; j < whole; j += size) f(size, j, 0);
        if (rest) f(size, bins - size, size - rest);
    };
    if (bins >= WIDTH<T>)
        walk(Size<WIDTH<T>>());
    else if (bins >= SHORT)
        walk(Size<SHORT>());
    else
        walk(Size<1>());
}

// Call f(j, column) for every bin in turn; read(size, j, i) gathers `size` columns, from bin j on, of row i. Unless ONCE, f may
// be called again for some bins, which saves branches.
template <class T, bool ONCE, class R, class F> EW_INLINE void load_columns(int64_t bins, R read, F f) {
    each_block<T>(bins, [&](auto size, int64_t j, int64_t repeated) EW_ALWAYS {
        constexpr int SIZE = size;
        Vector<T> columns[SIZE];
#pragma GCC unroll 32
        for (int i = 0; i < SIZE * PARTS<T>; ++i)
            columns[i % SIZE].part[i / SIZE] = read(size, j, i / SIZE * WIDTH<T> + i % SIZE);
        transpose<SIZE>(columns);
#pragma GCC unroll 16
        for (int i = 0; i < SIZE; ++i)
            if (!ONCE || i >= repeated) f(j + i, columns[i]);
    });
}

// Store f(j) of every bin to the rows of a matrix; f may be called again for some bins.
template <class T, class F> EW_INLINE void store_columns(int64_t bins, const Rows &rows, void *matrix, F f) {
    each_block<T>(bins, [&](auto size, int64_t j, int64_t) EW_ALWAYS {
        constexpr int SIZE = size;
        T *column = static_cast<T *>(matrix) + j;
        Vector<T> columns[SIZE];
#pragma GCC unroll 16
        for (int i = 0; i < SIZE; ++i) columns[i] = f(j + i);
        transpose<SIZE>(columns);
#pragma GCC unroll 32
        for (int i = 0; i < SIZE * PARTS<T>; ++i)
            scatter<WIDTH<T>>(size, columns[i % SIZE].part[i / SIZE], column, rows.offsets + i / SIZE * WIDTH<T> + i % SIZE);
    });
}

// ---- tiles ----------------------------------------------------------------------------------------------------------

EW_INLINE int64_t leaf_of(const int32_t *places, int64_t bin) { return places ? places[bin] : bin; }

// Load rows into a tile; returns the largest number of each row.
template <class T> EW_INLINE Vector<T> load_tile(const ew_space &space, const void *matrix, const Rows &rows, Tile<T> tile) {
    Vector<T> largest = T(-__builtin_inf());
    const int32_t *places = space.places;
    const auto read = [&](auto size, int64_t j, int i)
                          EW_ALWAYS { return gather<WIDTH<T>>(size, static_cast<const T *>(matrix) + j, rows.offsets + i); };
    load_columns<T, false>(space.bins, read, [&](int64_t j, Vector<T> x) EW_ALWAYS {
        tile.set(leaf_of(places, j), x);
        largest = select(x > largest, x, largest);
    });
    return largest;
}

// Store a tile to the rows of a matrix.
template <class T> EW_INLINE void store_tile(const ew_space &space, Tile<T> tile, const Rows &rows, void *matrix) {
    const int32_t *places = space.places;
    store_columns<T>(space.bins, rows, matrix, [&](int64_t j) EW_ALWAYS { return tile[leaf_of(places, j)]; });
}

// ---- tables ---------------------------------------------------------------------------------------------------------

template <class T> EW_INLINE const T *numbers(const Numbers &table) {
    return std::get<const T *>(std::pair(table.floats, table.doubles));
}

// Call f for every leaf, or every node, right below a node: for those of its range.
template <class F> EW_INLINE void each_in(const int64_t *ranges, int64_t k, F f) {
    for (int64_t j = ranges[k]; j < ranges[k + 1]; ++j) f(j);
}

// Add to the number of each node those of the nodes above it; calls f(j, sum) for every leaf with the sum of its node.
template <class T, class F> EW_INLINE void sum_from_root(const ew_space &space, Tile<double> slopes, F f) {
    for (int64_t k = 0; k < space.nodes; ++k) {
        const Double above = slopes[k];
        const Vector<T> here = narrow<T>(above);
        each_in(space.children, k, [&](int64_t c) EW_ALWAYS { slopes.set(c, slopes[c] + above); });
        each_in(space.leaves, k, [&](int64_t j) EW_ALWAYS { f(j, here); });
    }
}

// The sum of numbered terms in the type of the data: of floats a few, then all in double precision.
template <class T> struct Sum {
    Double total = 0.0;
    Vector<T> few = T(0);
    EW_INLINE void add(int64_t number, Vector<T> x) {
        few = few + x;
        if (sizeof(T) == 8 || (number & 3) == 3) value();
    }
    EW_INLINE Double value() {
        total = total + widen(few);
        few = T(0);
        return total;
    }
};
