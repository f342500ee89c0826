// The derivative of the cost of an edge: rho * w * sgn(flow) * |flow|^(rho - 1), 0 at flow = 0. Times the flow it is rho
// times the cost. The exponents 1 and 2 have code of their own.
#pragma once

#include "simd.h"

namespace {

template <int RHO> struct Slope;

template <> struct Slope<2> {
    explicit Slope(double) {}
    template <class T> EW_INLINE Vector<T> operator()(Vector<T> flow, T cost) const { return flow * Vector<T>(cost + cost); }
};

template <> struct Slope<1> {
    explicit Slope(double) {}
    template <class T> EW_INLINE Vector<T> operator()(Vector<T> flow, T cost) const {
        // NaN is propagated.
        return select(absolute(flow) > Vector<T>(T(0)), with_sign(Vector<T>(cost), flow), flow * Vector<T>(T(0)));
    }
};

template <> struct Slope<0> {
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

} // namespace
