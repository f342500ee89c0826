// Vectors of LANES numbers, one for each row of a tile, and exp, log and powers of them.
//
// A vector of floats is one register of the machine. A vector of doubles is a pair of registers: compilers lower vectors
// that are wider than the machine badly. All functions are inlined or have internal linkage, so that no build can end up
// with the code of another.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define EW_INLINE inline __attribute__((always_inline))
#define EW_ALWAYS __attribute__((always_inline)) // of lambdas

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
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

// What compilers do not make of vector operations: whether any bit is set, square roots, and floats as doubles.
typedef Register<float, LANES / 2> HalfFloats;
#if defined(__AVX512F__)
EW_INLINE bool any_bit(Register<int64_t> m) { return _mm512_test_epi64_mask((__m512i)m, (__m512i)m) != 0; }
EW_INLINE Register<float> root(Register<float> x) { return (Register<float>)_mm512_sqrt_ps((__m512)x); }
EW_INLINE Register<double> root(Register<double> x) { return (Register<double>)_mm512_sqrt_pd((__m512d)x); }
EW_INLINE Register<double> widened(HalfFloats x) { return (Register<double>)_mm512_cvtps_pd((__m256)x); }
#elif defined(__AVX2__)
EW_INLINE bool any_bit(Register<int64_t> m) { return !_mm256_testz_si256((__m256i)m, (__m256i)m); }
EW_INLINE Register<float> root(Register<float> x) { return (Register<float>)_mm256_sqrt_ps((__m256)x); }
EW_INLINE Register<double> root(Register<double> x) { return (Register<double>)_mm256_sqrt_pd((__m256d)x); }
EW_INLINE Register<double> widened(HalfFloats x) { return (Register<double>)_mm256_cvtps_pd((__m128)x); }
#else
EW_INLINE bool any_bit(Register<int64_t> m) { return (m[0] | m[1]) != 0; }
template <class V> EW_INLINE V root(V x) {
    for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i) x[i] = decltype(x[0] + x[0])(__builtin_sqrt(x[i]));
    return x;
}
EW_INLINE Register<double> widened(HalfFloats x) { return __builtin_convertvector(x, Register<double>); }
#endif

// ---- vectors --------------------------------------------------------------------------------------------------------

// Numbers, or integers. A comparison gives integers of which all bits are set or none.
template <class T> struct Vector {
    Register<T> part[PARTS<T>];

    EW_INLINE Vector() = default;
    EW_INLINE Vector(T x) : Vector(of([&] EW_ALWAYS { return x - Register<T>{}; })) {}

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

// Class indices as integers of another size.
template <class T> EW_INLINE Vector<T> indices(const int64_t *from) {
    T numbers[LANES];
    for (int i = 0; i < LANES; ++i) numbers[i] = T(from[i]);
    return load(numbers);
}

template <class T> EW_INLINE bool any(Vector<T> where) {
    return any_bit((Register<int64_t>)(where.part[0] | where.part[PARTS<T> - 1]));
}
template <class T> EW_INLINE Vector<T> square_root(Vector<T> x) {
    return Vector<T>::of([](auto a) EW_ALWAYS { return root(a); }, x);
}

EW_INLINE Double widen(Double x) { return x; }
EW_INLINE Double widen(Vector<float> x) {
    Double y;
    y.part[0] = widened(taken<0>(x.part[0], Count<LANES / 2>()));
    y.part[1] = widened(taken<LANES / 2>(x.part[0], Count<LANES / 2>()));
    return y;
}

// Rounded to the type of the data.
template <class T> EW_INLINE Vector<T> narrow(Double x) {
    Vector<T> y;
    if constexpr (sizeof(T) == 8)
        y = x;
    else
        y.part[0] = joined(__builtin_convertvector(x.part[0], HalfFloats), __builtin_convertvector(x.part[1], HalfFloats),
                           Count<LANES>());
    return y;
}

// ---- bits -----------------------------------------------------------------------------------------------------------

template <class T> struct Format;
template <> struct Format<float> {
    static constexpr int bits = 23;
    static constexpr int32_t half_root = 0x3F3504F3; // the bits of the square root of 1/2
    static constexpr int32_t sign = INT32_MIN;
    static constexpr float big = 0x1.8p23f; // added to a small number, its last bits are the nearest integer
    static constexpr float lowest = -87.0f, least_power = -126.0f, largest_power = 127.0f;
    // Of (exp(x) - 1 - x) / x^2 within +-log(2)/2: minimax (Cephes).
    static constexpr float exp[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                    4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    static constexpr int log1m_terms = 7;
};
template <> struct Format<double> {
    static constexpr int bits = 52;
    static constexpr int64_t half_root = 0x3FE6A09E667F3BCD;
    static constexpr int64_t sign = INT64_MIN;
    static constexpr double big = 0x1.8p52;
    static constexpr double lowest = -708.0, least_power = -1021.0, largest_power = 1023.0;
    // The Taylor series.
    static constexpr double exp[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                     1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                     1.0 / 120,        1.0 / 24,        1.0 / 6,        0.5};
    static constexpr int log1m_terms = 17;
};

template <class U, class T> EW_INLINE Vector<U> as(Vector<T> x) {
    return Vector<U>::of([](auto a) EW_ALWAYS { return (Register<U>)a; }, x);
}
template <class T> EW_INLINE Vector<T> absolute(Vector<T> x) { return as<T>(as<Bits<T>>(x) & ~Format<T>::sign); }
// `size` >= 0 with the sign of x.
template <class T> EW_INLINE Vector<T> with_sign(Vector<T> size, Vector<T> x) {
    return as<T>(as<Bits<T>>(size) | (as<Bits<T>>(x) & Format<T>::sign));
}
// x * 2^k if that is a normal number; k is an integer plus `Format::big`, which holds it in its last bits.
template <class T> EW_INLINE Vector<T> times_power_of_two(Vector<T> x, Vector<T> k) {
    return as<T>(as<Bits<T>>(x) + (as<Bits<T>>(k) << Format<T>::bits));
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

constexpr double LOG2_E = 1.4426950408889634074, LN2 = 0.69314718055994530942;
// log(2) in two parts; the first has so few bits that its product with a small integer is exact.
constexpr double LN2_HIGH = 0.693359375, LN2_LOW = -2.12194440054690583e-4;

template <class T> EW_INLINE Vector<T> exp_polynomial(Vector<T> r) { return polynomial(r, Format<T>::exp) * r * r + r + T(1); }

// e^x for x <= 0; 0 below the smallest normal number. NaN is propagated: comparisons with it are false.
template <class T> EW_INLINE Vector<T> exp(Vector<T> x) {
    typedef Vector<T> V;
    const V low = Format<T>::lowest, big = Format<T>::big;
    V kept = select(low > x, low, x);
    V k = kept * T(LOG2_E) + big;
    V whole = k - big;
    V r = whole * T(-LN2_LOW) + (whole * T(-LN2_HIGH) + kept);
    return select(low > x, T(0), times_power_of_two(exp_polynomial(r), k));
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

// log2 of positive numbers.
template <class T> EW_INLINE Vector<T> log2(Vector<T> x) {
    Vector<T> m, e = exponent(x, m);
    return log2_of_mantissa(m) + e;
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

// 1/x for numbers that are neither tiny nor huge.
template <class T> EW_INLINE Vector<T> reciprocal(Vector<T> x) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {
        const auto r = Vector<T>::of([](auto a) EW_ALWAYS { return (Register<T>)_mm512_rcp14_ps((__m512)a); }, x);
        return r + r * (T(1) - x * r);
    }
#endif
    return T(1) / x;
}

// -log(1 - v) for 0 <= v <= 1/2, and v / (1 - v): accurate also where v is tiny.
template <class T> EW_INLINE Vector<T> minus_log1m(Vector<T> v, Vector<T> &odds) {
    const Vector<T> rest = T(1) - v, twice = rest + T(1), r = reciprocal(twice * rest);
    odds = v * twice * r;
    return log_series<Format<T>::log1m_terms>(v * rest * r);
}

// The same for 0 <= v <= SMALL_MASS, by the series.
constexpr double SMALL_MASS = 1.0 / 32;
constexpr float LOG1M_SMALL[] = {0.2f, 0.25f, 1.0f / 3, 0.5f, 1.0f}, ODDS_SMALL[] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
EW_INLINE Vector<float> minus_log1m_of_small(Vector<float> v, Vector<float> &odds) {
    odds = polynomial(v, ODDS_SMALL) * v;
    return polynomial(v, LOG1M_SMALL) * v;
}
EW_INLINE Double minus_log1m_of_small(Double v, Double &odds) { return minus_log1m(v, odds); }

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

} // namespace
