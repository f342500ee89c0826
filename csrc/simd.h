// Vectors of LANES numbers, one for each row of a tile, and exp, log and powers of them.
//
// A vector of floats is one register of the machine. A vector of doubles is a pair of registers: compilers lower vectors
// that are wider than the machine badly. All functions are inlined or have internal linkage, so that no build can end up
// with the code of another.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define EW_INLINE inline __attribute__((always_inline))

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

constexpr int HALF = LANES / 2;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef double Doubles __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers32 __attribute__((vector_size(4 * LANES)));
typedef int64_t Integers64 __attribute__((vector_size(4 * LANES)));

// ---- registers ------------------------------------------------------------------------------------------------------

template <int N> using Count = std::make_integer_sequence<int, N>;
template <int... I> using Lanes = std::integer_sequence<int, I...>;
template <int SIZE> using Size = std::integral_constant<int, SIZE>;

// Two registers as one, and a part of a register.
template <class V, class W, int... I> EW_INLINE V joined(W a, W b, Lanes<I...>) { return __builtin_shufflevector(a, b, I...); }
template <class W, int FIRST, class V, int... I> EW_INLINE W taken(V v, Lanes<I...>) {
    return __builtin_shufflevector(v, v, FIRST + I...);
}

// What compilers do not make of loops or shuffles: whether any bit is set, square roots, and conversions.
struct TwoDoubles {
    Doubles a, b;
};
#if defined(__AVX512F__)
EW_INLINE bool any(Integers64 m) { return _mm512_test_epi64_mask((__m512i)m, (__m512i)m) != 0; }
EW_INLINE Floats root(Floats x) { return (Floats)_mm512_sqrt_ps((__m512)x); }
EW_INLINE Doubles root(Doubles x) { return (Doubles)_mm512_sqrt_pd((__m512d)x); }
EW_INLINE TwoDoubles widened(Floats x) {
    return {(Doubles)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)),
            (Doubles)_mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)x, 1)))};
}
EW_INLINE Floats narrowed(Doubles a, Doubles b) {
    const __m512d low = _mm512_castpd256_pd512(_mm256_castps_pd(_mm512_cvtpd_ps((__m512d)a)));
    return (Floats)_mm512_insertf64x4(low, _mm256_castps_pd(_mm512_cvtpd_ps((__m512d)b)), 1);
}
#elif defined(__AVX2__)
EW_INLINE bool any(Integers64 m) { return !_mm256_testz_si256((__m256i)m, (__m256i)m); }
EW_INLINE Floats root(Floats x) { return (Floats)_mm256_sqrt_ps((__m256)x); }
EW_INLINE Doubles root(Doubles x) { return (Doubles)_mm256_sqrt_pd((__m256d)x); }
EW_INLINE TwoDoubles widened(Floats x) {
    return {(Doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)),
            (Doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1))};
}
EW_INLINE Floats narrowed(Doubles a, Doubles b) {
    return (Floats)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)b), _mm256_cvtpd_ps((__m256d)a));
}
#else
EW_INLINE bool any(Integers64 m) { return (m[0] | m[1]) != 0; }
template <class V> EW_INLINE V root(V x) {
    for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i) x[i] = decltype(x[0] + x[0])(__builtin_sqrt(x[i]));
    return x;
}
EW_INLINE TwoDoubles widened(Floats x) { return {(Doubles){x[0], x[1]}, (Doubles){x[2], x[3]}}; }
EW_INLINE Floats narrowed(Doubles a, Doubles b) { return (Floats){float(a[0]), float(a[1]), float(b[0]), float(b[1])}; }
#endif

// ---- vectors --------------------------------------------------------------------------------------------------------

template <class T> struct Vector;

template <> struct Vector<float> {
    Floats a;
    EW_INLINE Vector() = default;
    EW_INLINE Vector(Floats a) : a(a) {}
    EW_INLINE Vector(float x) : a(x - Floats{}) {}
};

template <> struct Vector<double> {
    Doubles a, b;
    EW_INLINE Vector() = default;
    EW_INLINE Vector(Doubles a, Doubles b) : a(a), b(b) {}
    EW_INLINE Vector(TwoDoubles x) : a(x.a), b(x.b) {}
    EW_INLINE Vector(double x) : a(x - Doubles{}), b(x - Doubles{}) {}
};

typedef Vector<double> Double;

// Register by register: compilers copy a pair in pieces.
template <class V, class T> EW_INLINE V load_register(const T *from) {
    V v;
    memcpy(&v, from, sizeof v);
    return v;
}
EW_INLINE Vector<float> load(const float *from) { return load_register<Floats>(from); }
EW_INLINE Double load(const double *from) { return {load_register<Doubles>(from), load_register<Doubles>(from + HALF)}; }
EW_INLINE void store(Vector<float> v, float *to) { memcpy(to, &v.a, sizeof v.a); }
EW_INLINE void store(Double v, double *to) {
    memcpy(to, &v.a, sizeof v.a);
    memcpy(to + HALF, &v.b, sizeof v.b);
}

// Where a comparison holds; of lanes as wide as those that were compared.
struct Mask32 {
    Integers32 a;
};
struct Mask64 {
    Integers64 a, b;
};

#define EW_ARITHMETIC(op)                                                                                                      \
    EW_INLINE Vector<float> operator op(Vector<float> x, Vector<float> y) { return x.a op y.a; }                               \
    EW_INLINE Double operator op(Double x, Double y) { return {x.a op y.a, x.b op y.b}; }
EW_ARITHMETIC(+)
EW_ARITHMETIC(-)
EW_ARITHMETIC(*)
EW_ARITHMETIC(/)
#undef EW_ARITHMETIC

EW_INLINE Mask32 operator>(Vector<float> x, Vector<float> y) { return {x.a > y.a}; }
EW_INLINE Mask64 operator>(Double x, Double y) { return {x.a > y.a, x.b > y.b}; }
EW_INLINE Vector<float> select(Mask32 m, Vector<float> yes, Vector<float> no) { return m.a ? yes.a : no.a; }
EW_INLINE Double select(Mask64 m, Double yes, Double no) { return {m.a ? yes.a : no.a, m.b ? yes.b : no.b}; }
EW_INLINE bool any(Mask32 m) { return any((Integers64)m.a); }
EW_INLINE bool any(Mask64 m) { return any(m.a | m.b); }
EW_INLINE Vector<float> square_root(Vector<float> x) { return root(x.a); }
EW_INLINE Double square_root(Double x) { return {root(x.a), root(x.b)}; }

// Class indices, as integers in the lanes of a mask; where they are greater than j.
EW_INLINE Mask32 indices(const int64_t *from, float) {
    Mask32 m;
    for (int i = 0; i < LANES; ++i) m.a[i] = int32_t(from[i]);
    return m;
}
EW_INLINE Mask64 indices(const int64_t *from, double) {
    return {load_register<Integers64>(from), load_register<Integers64>(from + HALF)};
}
EW_INLINE Mask32 operator>(Mask32 x, int64_t j) { return {x.a > int32_t(j)}; }
EW_INLINE Mask64 operator>(Mask64 x, int64_t j) { return {x.a > j, x.b > j}; }

EW_INLINE Double widen(Vector<float> x) { return widened(x.a); }
EW_INLINE Double widen(Double x) { return x; }

// Rounded to the type of the data.
template <class T> EW_INLINE Vector<T> narrow(Double x) {
    if constexpr (sizeof(T) == 8)
        return x;
    else
        return narrowed(x.a, x.b);
}

// ---- bits -----------------------------------------------------------------------------------------------------------

template <class T> struct Format;
template <> struct Format<float> {
    typedef int32_t Integer;
    static constexpr int bits = 23;
    static constexpr Integer half_root = 0x3F3504F3; // the bits of the square root of 1/2
    static constexpr Integer sign = INT32_MIN;
    static constexpr float big = 0x1.8p23f; // added to a small number, its last bits are the nearest integer
    static constexpr float lowest = -87.0f, least_power = -126.0f, largest_power = 127.0f;
};
template <> struct Format<double> {
    typedef int64_t Integer;
    static constexpr int bits = 52;
    static constexpr Integer half_root = 0x3FE6A09E667F3BCD;
    static constexpr Integer sign = INT64_MIN;
    static constexpr double big = 0x1.8p52;
    static constexpr double lowest = -708.0, least_power = -1021.0, largest_power = 1023.0;
};

template <class F> EW_INLINE Vector<float> map_bits(Vector<float> x, Vector<float> y, F f) {
    return (Floats)f((Integers32)x.a, (Integers32)y.a);
}
template <class F> EW_INLINE Double map_bits(Double x, Double y, F f) {
    return {(Doubles)f((Integers64)x.a, (Integers64)y.a), (Doubles)f((Integers64)x.b, (Integers64)y.b)};
}

template <class T> EW_INLINE Vector<T> absolute(Vector<T> x) {
    return map_bits(x, x, [](auto a, auto) { return a & ~Format<T>::sign; });
}
// `size` >= 0 with the sign of x.
template <class T> EW_INLINE Vector<T> with_sign(Vector<T> size, Vector<T> x) {
    return map_bits(size, x, [](auto a, auto b) { return a | (b & Format<T>::sign); });
}
// x * 2^k if that is a normal number; k is an integer plus `Format::big`, which holds it in its last bits.
template <class T> EW_INLINE Vector<T> times_power_of_two(Vector<T> x, Vector<T> k) {
    return map_bits(x, k, [](auto a, auto b) { return a + (b << Format<T>::bits); });
}

// ---- exp, log and powers: range reduction and a polynomial ----------------------------------------------------------

template <class T, size_t N> EW_INLINE Vector<T> polynomial(Vector<T> x, const T (&coefficients)[N]) {
    Vector<T> y = coefficients[0];
#pragma GCC unroll 24
    for (size_t i = 1; i < N; ++i) y = y * x + Vector<T>(coefficients[i]);
    return y;
}

// Of (exp(x) - 1 - x) / x^2 within +-log(2)/2: minimax in single precision (Cephes), in double precision the Taylor series.
constexpr float EXP_FLOAT[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                               4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
constexpr double EXP_DOUBLE[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                 1.0 / 5040,       1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5};
// In single precision, of (log(1 + f) - f + f^2/2) / f^3: minimax (Cephes), which needs no division.
constexpr float LOG_FLOAT[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                               -1.6668057665e-1f, 2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
constexpr double LOG2_E = 1.4426950408889634074, LN2 = 0.69314718055994530942;
// log(2) in two parts; the first has so few bits that its product with a small integer is exact.
constexpr double LN2_HIGH = 0.693359375, LN2_LOW = -2.12194440054690583e-4;

EW_INLINE Vector<float> exp_polynomial(Vector<float> r) { return polynomial(r, EXP_FLOAT) * r * r + r + 1.0f; }
EW_INLINE Double exp_polynomial(Double r) { return polynomial(r, EXP_DOUBLE) * r * r + r + 1.0; }

// e^x for x <= 0; 0 below the smallest normal number. NaN is propagated: comparisons with it are false.
template <class T> EW_INLINE Vector<T> exp(Vector<T> x) {
    typedef Vector<T> V;
    const V low = Format<T>::lowest, big = Format<T>::big;
    V kept = select(low > x, low, x);
    V k = kept * V(T(LOG2_E)) + big;
    V whole = k - big;
    V r = whole * V(T(-LN2_LOW)) + (whole * V(T(-LN2_HIGH)) + kept);
    return select(low > x, V(T(0)), times_power_of_two(exp_polynomial(r), k));
}

// The power of two of a positive number that leaves a mantissa from sqrt(1/2) to sqrt(2), plus `Format::big`; the mantissa.
template <class T> EW_INLINE Vector<T> exponent(Vector<T> x, Vector<T> &mantissa) {
    typedef Format<T> F;
    mantissa = map_bits(x, x, [](auto a, auto) { return a - ((a - F::half_root) >> F::bits << F::bits); });
    return map_bits(x, Vector<T>(F::big), [](auto a, auto b) { return b + ((a - F::half_root) >> F::bits); });
}

// log((1 + s)/(1 - s)) = 2 * (s + s^3/3 + s^5/5 + ...), so many terms of it.
template <class T, int TERMS> EW_INLINE Vector<T> log_series(Vector<T> s, Size<TERMS>) {
    const Vector<T> square = s * s;
    Vector<T> y = T(2.0 / (2 * TERMS - 1));
#pragma GCC unroll 24
    for (int i = TERMS - 2; i >= 0; --i) y = y * square + Vector<T>(T(2.0 / (2 * i + 1)));
    return y * s;
}
EW_INLINE Vector<float> log2_of_mantissa(Vector<float> m) {
    const Vector<float> f = m - 1.0f, square = f * f;
    return (polynomial(f, LOG_FLOAT) * f * square - square * 0.5f + f) * float(LOG2_E);
}
EW_INLINE Double log2_of_mantissa(Double m) { return log_series((m - 1.0) / (m + 1.0), Size<11>()) * LOG2_E; }

// log2 of positive numbers.
template <class T> EW_INLINE Vector<T> log2(Vector<T> x) {
    Vector<T> m, e = exponent(x, m);
    return log2_of_mantissa(m) + (e - Vector<T>(Format<T>::big));
}

// -log(1 - v) with s = v/(2 - v) <= 1/3: accurate also where v is tiny.
EW_INLINE Vector<float> log1m_series(Vector<float> s) { return log_series(s, Size<7>()); }
EW_INLINE Double log1m_series(Double s) { return log_series(s, Size<17>()); }

// 1/x for numbers that are neither tiny nor huge.
#if defined(__AVX512F__)
EW_INLINE Vector<float> reciprocal(Vector<float> x) {
    const Vector<float> r = (Floats)_mm512_rcp14_ps((__m512)x.a);
    return r + r * (Vector<float>(1.0f) - x * r);
}
#else
EW_INLINE Vector<float> reciprocal(Vector<float> x) { return Vector<float>(1.0f) / x; }
#endif
EW_INLINE Double reciprocal(Double x) { return Double(1.0) / x; }

// -log(1 - v) for 0 <= v <= 1/2, and v / (1 - v).
template <class T> EW_INLINE Vector<T> minus_log1m(Vector<T> v, Vector<T> &odds) {
    const Vector<T> one = T(1), rest = one - v, twice = rest + one, r = reciprocal(twice * rest);
    odds = v * twice * r;
    return log1m_series(v * rest * r);
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
    V m, e = exponent(x, m) - big;
    V exact = e * V(y.high), rest = e * V(y.low) + log2_of_mantissa(m) * V(y.whole);
    V t = exact + rest;
    V clipped = select(low > t, low, select(t > high, high, t));
    V k = clipped + big;
    V r = ((exact - (k - big)) + rest) * V(T(LN2));
    V result = times_power_of_two(exp_polynomial(r), k);
    result = select(low > t, V(T(0)), select(t > high, V(T(__builtin_inf())), result));
    return select(x > V(T(0)), result, x * V(T(0)));
}

} // namespace
