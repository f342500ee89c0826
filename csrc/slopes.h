// The derivative of the cost of an edge: rho * w * sgn(flow) * |flow|^(rho - 1), 0 at flow = 0. Times the flow it is rho
// times the cost. The exponents 1, 1.5 and 2 have code of their own.
#pragma once

#include "simd.h"

namespace {

enum Rho { ANY, ONE, TWO, THREE_HALVES };

EW_INLINE Rho kind_of(double rho) { return rho == 2 ? TWO : rho == 1 ? ONE : rho == 1.5 ? THREE_HALVES : ANY; }

// Whether slopes take so long that those of leaves are kept, and powers are computed in the type of the data.
template <int RHO> constexpr bool KEEPS_SLOPES = RHO == ANY || RHO == THREE_HALVES;

template <class T, int RHO> struct Slope {
    const double rho;
    const Exponent<float> single;
    const Exponent<double> exact;
    EW_INLINE explicit Slope(double rho) : rho(rho), single(rho - 1), exact(rho - 1) {}
    EW_INLINE Vector<float> powers(Vector<float> x) const { return power(x, single); }
    EW_INLINE Double powers(Double x) const { return power(x, exact); }

    template <class U> EW_INLINE Vector<U> operator()(Vector<U> flow, U cost) const {
        typedef Vector<U> V;
        if constexpr (RHO == TWO) return flow * V(cost + cost);
        // NaN is propagated.
        if constexpr (RHO == ONE) return select(absolute(flow) > V(U(0)), with_sign(V(cost), flow), flow * V(U(0)));
        if constexpr (RHO == THREE_HALVES) return with_sign(square_root(absolute(flow)), flow) * V(U(1.5) * cost);
        if constexpr (RHO == ANY) return V(U(rho) * cost) * with_sign(powers(absolute(flow)), flow);
    }

    // The slope for a flow that is a sum, and thus a double.
    EW_INLINE Double of_sum(Double flow, double cost) const {
        if constexpr (KEEPS_SLOPES<RHO>)
            return widen((*this)(narrow<T>(flow), T(cost)));
        else
            return (*this)(flow, cost);
    }
};

} // namespace
