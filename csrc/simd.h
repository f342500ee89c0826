// Vectors of LANES numbers, one for each row of a tile, and exp, log and powers of them.
//
// A vector of floats is one register of the machine. A vector of doubles is a pair of registers: compilers lower vectors
// that are wider than the machine badly.

#define EW_INLINE inline __attribute__((always_inline))
#define EW_ALWAYS __attribute__((always_inline)) // of lambdas

// What differs between machines: the number of lanes, and what compilers do not make of vector operations, namely whether any
// number is above another and half a register of floats as doubles.
#if defined(__AVX512F__)
constexpr int LANES = 16;
EW_INLINE bool any_above(__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
EW_INLINE bool any_above(__m512d a, __m512d b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ) != 0; }
template <class V> EW_INLINE __m512d widened(V x) { return _mm512_cvtps_pd((__m256)x); }
#elif defined(__AVX2__)
constexpr int LANES = 8;
template <class V> EW_INLINE bool any_above(V a, V b) { return !_mm256_testz_si256((__m256i)(a > b), (__m256i)(a > b)); }
template <class V> EW_INLINE __m256d widened(V x) { return _mm256_cvtps_pd((__m128)x); }
#else
constexpr int LANES = 4;
typedef double TwoDoubles __attribute__((vector_size(16)));
typedef int64_t TwoIntegers __attribute__((vector_size(16)));
template <class V> EW_INLINE bool any_above(V a, V b) { return (((TwoIntegers)(a > b))[0] | ((TwoIntegers)(a > b))[1]) != 0; }
template <class V> EW_INLINE TwoDoubles widened(V x) { return __builtin_convertvector(x, TwoDoubles); }
#endif

// ---- registers ------------------------------------------------------------------------------------------------------

// How many numbers there are in a register, and how many registers make a vector.
template <class T> constexpr int WIDTH = int(4 * LANES / sizeof(T));
template <class T> constexpr int PARTS = LANES / WIDTH<T>;
template <class T, int N> struct RegisterOf { typedef T type __attribute__((vector_size(N * sizeof(T)))); };
template <class T, int N = WIDTH<T>> using Register = typename RegisterOf<T, N>::type;
// The integers of the same size.
template <class T> using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <int SIZE> using Size = std::integral_constant<int, SIZE>;
template <int N> using Count = std::make_integer_sequence<int, N>;
template <int... I> using Lanes = std::integer_sequence<int, I...>;

// Two registers as one, and a part of a register.
template <class V, int... I> EW_INLINE auto joined(V a, V b, Lanes<I...>) { return __builtin_shufflevector(a, b, I...); }
template <int FIRST, class V, int... I> EW_INLINE auto taken(V v, Lanes<I...>) {
    return __builtin_shufflevector(v, v, FIRST + I...);
}

// ---- vectors --------------------------------------------------------------------------------------------------------

// Numbers, or integers. A comparison gives integers of which all bits are set or none.
template <class T> struct Vector {
    Register<T> part[PARTS<T>];

    EW_INLINE Vector() = default;
    EW_INLINE Vector(T x) : Vector(of([&]() EW_ALWAYS { return x - Register<T>{}; })) {}

    // f of the registers of other vectors, without a loop, because compilers keep arrays in loops in memory.
    template <class F, class... V> static EW_INLINE Vector of(F f, V... v) {
        Vector y;
        y.part[0] = f(v.part[0]...);
        if constexpr (PARTS<T> == 2) y.part[1] = f(v.part[1]...);
        return y;
    }

#define EW_OPERATOR(op, Result)                                                                                                \
    friend EW_INLINE Vector<Result> operator op(Vector x, Vector y) {                                                          \
        return Vector<Result>::of([](auto a, auto b) EW_ALWAYS { return a op b; }, x, y);                                      \
    }
    EW_OPERATOR(+, T)
    EW_OPERATOR(-, T)
    EW_OPERATOR(*, T)
    EW_OPERATOR(/, T)
    EW_OPERATOR(&, T)
    EW_OPERATOR(|, T)
    EW_OPERATOR(<<, T)
    EW_OPERATOR(>>, T)
    EW_OPERATOR(>, Bits<T>)
#undef EW_OPERATOR

    friend EW_INLINE Vector select(Vector<Bits<T>> where, Vector yes, Vector no) {
        return of([](auto m, auto a, auto b) EW_ALWAYS { return m ? a : b; }, where, yes, no);
    }
};

typedef Vector<double> Double;

// Register by register: compilers copy a pair in pieces.
template <class T> EW_INLINE Vector<T> load(const T *from) {
    Vector<T> v;
    memcpy(&v.part[0], from, sizeof v.part[0]);
    if constexpr (PARTS<T> == 2) memcpy(&v.part[1], from + WIDTH<T>, sizeof v.part[1]);
    return v;
}
template <class T> EW_INLINE void store(Vector<T> v, T *to) {
    memcpy(to, &v.part[0], sizeof v.part[0]);
    if constexpr (PARTS<T> == 2) memcpy(to + WIDTH<T>, &v.part[1], sizeof v.part[1]);
}

// The numbers of a vector, to be used one by one.
template <class T> struct Scalars {
    T numbers[LANES];
    EW_INLINE explicit Scalars(Vector<T> v) { store(v, numbers); }
    EW_INLINE T operator[](int lane) const { return numbers[lane]; }
};

template <class T> EW_INLINE bool any_above(Vector<T> x, double bound) {
    const Vector<T> y = T(bound);
    return any_above(x.part[0], y.part[0]) || any_above(x.part[PARTS<T> - 1], y.part[PARTS<T> - 1]);
}
template <class T> EW_INLINE Vector<T> square_root(Vector<T> x) {
    Scalars<T> roots(x);
    for (T &y : roots.numbers) y = std::sqrt(y);
    return load(roots.numbers);
}

template <class T> EW_INLINE Double widen(Vector<T> x) {
    Double y;
    if constexpr (sizeof(T) == 8) return x;
    if constexpr (sizeof(T) == 4) {
        y.part[0] = widened(taken<0>(x.part[0], Count<LANES / 2>()));
        y.part[1] = widened(taken<LANES / 2>(x.part[0], Count<LANES / 2>()));
    }
    return y;
}

// Rounded to the type of the data.
template <class T, class U> EW_INLINE Vector<T> narrow(Vector<U> x) {
    typedef Register<T, LANES / 2> Half;
    Vector<T> y;
    if constexpr (sizeof(T) == sizeof(U)) return x;
    if constexpr (sizeof(T) < sizeof(U))
        y.part[0] = joined(__builtin_convertvector(x.part[0], Half), __builtin_convertvector(x.part[1], Half), Count<LANES>());
    return y;
}

// ---- bits -----------------------------------------------------------------------------------------------------------

constexpr double LOG2_E = 1.4426950408889634074, LN2 = 0.69314718055994530942;

template <class T> struct Format {
    typedef std::numeric_limits<T> Limits;
    static constexpr bool is_single = sizeof(T) == 4;
    static constexpr int bits = Limits::digits - 1;
    static constexpr Bits<T> sign = std::numeric_limits<Bits<T>>::min();
    static constexpr Bits<T> half_root = Bits<T>(is_single ? 0x3F3504F3 : 0x3FE6A09E667F3BCD); // the bits of sqrt(1/2)
    static constexpr T big = T(int64_t(3) << (bits - 1)); // added to a small number, its last bits are the nearest integer
    static constexpr T least_power = T(Limits::min_exponent - 1), largest_power = T(Limits::max_exponent - 1);
    static constexpr T lowest = T(int(LN2 * least_power)); // exp of it is a normal number
    static constexpr int log1m_terms = is_single ? 7 : 17;
};

template <class U, class T> EW_INLINE Vector<U> as(Vector<T> x) {
    return Vector<U>::of([](auto a) EW_ALWAYS { return (Register<U>)a; }, x);
}
template <class T> EW_INLINE Vector<T> absolute(Vector<T> x) { return as<T>(as<Bits<T>>(x) & ~Format<T>::sign); }
// `size` >= 0 with the sign of x.
template <class T> EW_INLINE Vector<T> with_sign(Vector<T> size, Vector<T> x) {
    return as<T>(as<Bits<T>>(size) | (as<Bits<T>>(x) & Format<T>::sign));
}
// x * 2^k if that is a normal number; k is an integer plus `Format::big`, which holds it in its last bits. Unsigned: may wrap.
template <class T, class U = std::make_unsigned_t<Bits<T>>> EW_INLINE Vector<T> times_power_of_two(Vector<T> x, Vector<T> k) {
    return as<T>(as<U>(x) + (as<U>(k) << U(Format<T>::bits)));
}
// The power of two of a positive number that leaves a mantissa from sqrt(1/2) to sqrt(2); the mantissa.
template <class T> EW_INLINE Vector<T> exponent(Vector<T> x, Vector<T> &mantissa) {
    typedef Format<T> F;
    const Vector<Bits<T>> bits = as<Bits<T>>(x), power = (bits - F::half_root) >> F::bits;
    mantissa = as<T>(bits - (power << F::bits));
    return as<T>(as<Bits<T>>(Vector<T>(F::big)) + power) - F::big;
}

// ---- exp, log and powers: range reduction and a polynomial ----------------------------------------------------------

template <class T, size_t N> EW_INLINE Vector<T> polynomial(Vector<T> x, const T (&coefficients)[N]) {
    Vector<T> y = coefficients[0];
#pragma GCC unroll 24
    for (size_t i = 1; i < N; ++i) y = y * x + coefficients[i];
    return y;
}

// log(2) in two parts; the first has so few bits that its product with a small integer is exact.
constexpr double LN2_HIGH = 0.693359375, LN2_LOW = -2.12194440054690583e-4;

// Of (exp(x) - 1 - x) / x^2 within +-log(2)/2: minimax in single precision, in double precision the Taylor series.
constexpr float EXP_FLOAT[] = {1.3814599e-3f, 8.3687167e-3f, 4.1668389e-2f, 1.6666521e-1f, 4.9999994e-1f};
constexpr double EXP_DOUBLE[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                 1.0 / 5040,       1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5};
EW_INLINE Vector<float> exp_polynomial(Vector<float> r) { return polynomial(r, EXP_FLOAT) * r * r + r + 1.0f; }
EW_INLINE Double exp_polynomial(Double r) { return polynomial(r, EXP_DOUBLE) * r * r + r + 1.0; }

// e^x for x <= 0; 0 below the smallest normal number. NaN is propagated: nothing may be added to its bits.
template <class T> EW_INLINE Vector<T> exp(Vector<T> x) {
    typedef Vector<T> V;
    const V low = Format<T>::lowest, big = Format<T>::big;
    V kept = V::of([](auto a, auto b) EW_ALWAYS { return a > b ? a : b; }, low, x);
    V k = kept * T(LOG2_E) + big;
    V whole = k - big;
    V r = whole * T(-LN2_LOW) + (whole * T(-LN2_HIGH) + kept);
    return select(kept > low, times_power_of_two(exp_polynomial(r), k), kept - low);
}

// log((1 + s)/(1 - s)) = 2 * (s + s^3/3 + s^5/5 + ...), so many terms of it.
template <int TERMS, class T> EW_INLINE Vector<T> log_series(Vector<T> s) {
    const Vector<T> square = s * s;
    Vector<T> y = T(2.0 / (2 * TERMS - 1));
#pragma GCC unroll 24
    for (int i = TERMS - 2; i >= 0; --i) y = y * square + T(2.0 / (2 * i + 1));
    return y * s;
}
// In single precision, of (log(1 + f) - f + f^2/2) / f^3: minimax (Cephes), which needs no division.
constexpr float LOG_FLOAT[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                               -1.6668057665e-1f, 2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
EW_INLINE Vector<float> log2_of_mantissa(Vector<float> m) {
    const Vector<float> f = m - 1.0f, square = f * f;
    return (polynomial(f, LOG_FLOAT) * f * square - square * 0.5f + f) * float(LOG2_E);
}
EW_INLINE Double log2_of_mantissa(Double m) { return log_series<11>((m - 1.0) / (m + 1.0)) * LOG2_E; }

// The logarithm of positive numbers.
EW_INLINE Double log(Double x) {
    Double m, e = exponent(x, m);
    return (log2_of_mantissa(m) + e) * LN2;
}

// -log(own) for own + other = 1, accurate where either is tiny; and other / own.
template <class T> EW_INLINE Vector<T> minus_log(Vector<T> own, Vector<T> other, Vector<T> &odds) {
    typedef Vector<T> V;
    const auto lighter = other > own;
    const V one = T(1), v = select(lighter, own, other);
    V m, e = exponent(own, m);
    // Either -log(1 - v), by s = v/(2 - v), or -log(v), by the mantissa m of v.
    V s = select(lighter, one - m, v) / select(lighter, one + m, one + (one - v));
    odds = other / own;
    return log_series<Format<T>::log1m_terms>(s) - select(lighter, e * T(LN2), T(0));
}

// -log(1 - v) and 1/(1 - v) for 0 <= v <= 1/2, accurate also where v is tiny.
template <class T> EW_INLINE Vector<T> minus_log1m(Vector<T> v, Vector<T> &inverse) {
    const Vector<T> rest = T(1) - v, twice = rest + T(1), r = T(1) / (twice * rest);
    inverse = twice * r;
    return log_series<Format<T>::log1m_terms>(v * rest * r);
}

// The same for 0 <= v <= SMALL_MASS, in single precision by minimax polynomials.
constexpr double SMALL_MASS = 1.0 / 32;
constexpr float LOG1M_SMALL[] = {0.26244628f, 0.33310521f, 0.50000119f, 1.0f};
constexpr float INVERSE_SMALL[] = {1.06263757f, 0.99885046f, 1.00000596f, 1.0f};
EW_INLINE Double inverse_of_small(Double v) { return 1.0 / (1.0 - v); }
EW_INLINE Vector<float> inverse_of_small(Vector<float> v) { return polynomial(v, INVERSE_SMALL); }
EW_INLINE Double minus_log1m_of_small(Double v, Double &inverse) { return minus_log1m(v, inverse); }
EW_INLINE Vector<float> minus_log1m_of_small(Vector<float> v, Vector<float> &inverse) {
    inverse = inverse_of_small(v);
    return polynomial(v, LOG1M_SMALL) * v;
}

// An exponent y > 0; `high` has so few bits that its product with the power of two of a number is exact.
template <class T> struct Exponent {
    T whole, high, low;
    explicit Exponent(double y) : whole(T(y)), high(T(float(int64_t(y * 2048)) / 2048)), low(T(y - high)) {}
};

// x^y for x >= 0: 0 at 0 and where the result is below the smallest normal number; NaN is propagated.
template <class T> EW_INLINE Vector<T> power(Vector<T> x, const Exponent<T> &y) {
    typedef Vector<T> V;
    const V low = Format<T>::least_power, high = Format<T>::largest_power, big = Format<T>::big;
    V m, e = exponent(x, m);
    V exact = e * y.high, rest = e * y.low + log2_of_mantissa(m) * y.whole;
    V t = exact + rest;
    V clipped = select(low > t, low, select(t > high, high, t));
    V k = clipped + big;
    V r = ((exact - (k - big)) + rest) * T(LN2);
    V result = times_power_of_two(exp_polynomial(r), k);
    result = select(low > t, T(0), select(t > high, T(__builtin_inf()), result));
    return select(x > T(0), result, x * T(0));
}
