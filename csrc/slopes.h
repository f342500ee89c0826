// The derivative of the cost of an edge: rho * w * sgn(flow) * |flow|^(rho - 1), 0 at flow = 0. Times the flow it is rho
// times the cost. The exponents 1, 1.5 and 2 have code of their own.
#pragma once

#include "simd.h"

namespace {

enum Rho { ANY, ONE, TWO, THREE_HALVES };

EW_INLINE Rho kind_of(double rho) { return rho == 2 ? TWO : rho == 1 ? ONE : rho == 1.5 ? THREE_HALVES : ANY; }

template <int RHO> struct Slope;

template <> struct Slope<TWO> {
    explicit Slope(double) {}
    template <class T> EW_INLINE Vector<T> operator()(Vector<T> flow, T cost) const { return flow * Vector<T>(cost + cost); }
};

template <> struct Slope<ONE> {
    explicit Slope(double) {}
    template <class T> EW_INLINE Vector<T> operator()(Vector<T> flow, T cost) const {
        // NaN is propagated.
        return select(absolute(flow) > Vector<T>(T(0)), with_sign(Vector<T>(cost), flow), flow * Vector<T>(T(0)));
    }
};

template <> struct Slope<THREE_HALVES> {
    explicit Slope(double) {}
    template <class T> EW_INLINE Vector<T> operator()(Vector<T> flow, T cost) const {
        return with_sign(square_root(absolute(flow)), flow) * Vector<T>(T(1.5) * cost);
    }
};

// Powers are computed in the type of the data.
template <> struct Slope<ANY> {
    Exponent<float> single;
    Exponent<double> exact;
    double rho;
    explicit Slope(double rho) : single(rho - 1), exact(rho - 1), rho(rho) {}
    EW_INLINE Vector<float> operator()(Vector<float> flow, float cost) const {
        return Vector<float>(float(rho) * cost) * with_sign(power(absolute(flow), single), flow);
    }
    EW_INLINE Double operator()(Double flow, double cost) const {
        return Double(rho * cost) * with_sign(power(absolute(flow), exact), flow);
    }
};

// Whether slopes take so long that those of leaves are kept.
template <int RHO> constexpr bool KEEPS_SLOPES = RHO == ANY || RHO == THREE_HALVES;

// The slope for a flow that is a sum, and thus a double.
template <class T, int RHO> EW_INLINE Double slope_of_sum(const Slope<RHO> &slope_of, Double flow, double cost) {
    if constexpr (KEEPS_SLOPES<RHO>) return widen(slope_of(narrow<T>(flow), T(cost)));
    return slope_of(flow, cost);
}

} // namespace
