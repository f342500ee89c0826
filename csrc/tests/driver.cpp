// Every operation of the core on random spaces and batches, for the sanitizers: `make sanitize`.
//
// Buffers have exactly the size that a call may use, and NaN between the rows. Besides memory errors and data races, which
// sanitizers detect, this checks that all builds agree, that the number of threads makes no difference, that gradients sum to
// 0, and that out-of-range labels and tables, masses < 0 and sums that differ are refused.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../earthwork.h"

namespace {

typedef std::mt19937_64 Random;

long calls = 0;

int64_t below(Random &random, int64_t end) { return int64_t(random() % uint64_t(end)); }
int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }
double uniform(Random &random) { return double(random() >> 11) * 0x1p-53; }

void require(bool holds, const char *what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::abort();
}

struct Free {
    void operator()(ew_space *space) const { ew_free(space); }
};
typedef std::unique_ptr<ew_space, Free> Space;

std::vector<double> random_costs(Random &random, int64_t count) {
    std::vector<double> costs(static_cast<size_t>(count));
    for (double &cost : costs) cost = below(random, 5) ? uniform(random) : 0.0;
    return costs;
}

Space random_ring(Random &random, int64_t bins) {
    std::vector<double> costs = random_costs(random, bins), positions{0.0}, signs;
    for (double cost : costs) positions.push_back(positions.back() + cost);
    std::vector<int64_t> far;
    const double length = positions.back();
    for (int64_t i = 0; i < bins; ++i) {
        const double x = positions[size_t(i)], opposite = x < length / 2 ? x + length / 2 : x - length / 2;
        int64_t j = 0;
        while (j < bins && positions[size_t(j)] <= opposite) ++j;
        far.push_back(j);
        signs.push_back(x < length / 2 ? 1.0 : -1.0);
    }
    return Space(ew_ring(bins, positions.data(), far.data(), signs.data()));
}

// A tree whose nodes are numbered level by level: node k has the children and leaves that come next.
Space random_tree(Random &random, int64_t bins, bool broken = false) {
    const int64_t nodes = 1 + below(random, bins + 3);
    std::vector<int64_t> leaves{0}, children{1}, places;
    for (int64_t k = 0; k < nodes; ++k) {
        const bool last = k == nodes - 1;
        const int64_t rest = nodes - children.back();
        // Every node so far needs a successor, or the numbering would end here.
        const int64_t least = rest > 0 && children.back() == k + 1 ? 1 : 0;
        children.push_back(last ? nodes
                                : children.back() + (rest > 0 ? least + below(random, smaller_of(rest, 4) - least + 1) : 0));
        leaves.push_back(last ? bins : leaves.back() + below(random, smaller_of(bins - leaves.back(), 4) + 1));
    }
    for (int64_t i = 0; i < bins; ++i) places.push_back(i);
    for (size_t i = places.size(); i-- > 1;) std::swap(places[i], places[size_t(below(random, int64_t(i) + 1))]);
    if (broken) {
        std::vector<int64_t> *tables[] = {&leaves, &children, &places};
        std::vector<int64_t> &table = *tables[below(random, 3)];
        const int64_t values[] = {-1, bins + nodes + 1, INT64_MAX, INT64_MIN};
        table[size_t(below(random, int64_t(table.size())))] = values[below(random, 4)];
    }
    const std::vector<double> costs = random_costs(random, bins), node_costs = random_costs(random, nodes);
    return Space(ew_tree(bins, nodes, places.data(), leaves.data(), children.data(), costs.data(), node_costs.data()));
}

template <class T> struct Batch {
    std::vector<T> first, second, values, gradients;
    std::vector<int64_t> labels;
    std::vector<double> weights;
    bool valid = true;
    T sum = 0;
};

bool close(double a, double b, double tolerance) {
    return a == b || (a != a && b != b) || std::fabs(a - b) <= tolerance * (1 + std::fabs(a));
}

template <class T> int run(ew_call call, Batch<T> &batch, const ew_space *space, bool labelled, bool weighted, bool gradient) {
    call.space = space;
    call.type = sizeof(T) == 4 ? EW_FLOAT : EW_DOUBLE;
    call.first = batch.first.data();
    call.second = labelled ? static_cast<const void *>(batch.labels.data()) : batch.second.data();
    call.weights = weighted ? batch.weights.data() : nullptr;
    call.values = batch.values.data();
    call.gradients = gradient ? batch.gradients.data() : nullptr;
    call.sum_to = &batch.sum;
    const int error = ew_run(&call);
    ++calls;
    batch.valid = !call.invalid;
    if (error == EW_OK && call.operation < EW_EXPECTED) {
        double sum = 0;
        for (const T value : batch.values) sum += double(value);
        require(close(sum, call.sum, 1e-9) && close(double(batch.sum), double(T(call.sum)), 0), "sum");
    }
    return error;
}

// Random masses that add up to `sum`; some are 0.
template <class T> void fill_masses(Random &random, T *row, int64_t bins, double sum) {
    double total = 0;
    for (int64_t j = 0; j < bins; ++j) total += double(row[j] = T(j && !below(random, 4) ? 0.0 : 0.01 + uniform(random)));
    for (int64_t j = 0; j < bins; ++j) row[j] = T(double(row[j]) * sum / total);
}

template <class T> void one_case(Random &random, const std::vector<const char *> &builds) {
    const int64_t bins = 1 + below(random, 45), rows = 1 + below(random, 40), operation = below(random, EW_OPERATIONS);
    const int64_t kind = operation == EW_HIERARCHY  ? 1
                         : operation == EW_POWERS   ? 0
                         : operation == EW_EXPECTED ? below(random, 3)
                                                    : below(random, 2);
    Space space;
    if (kind == 0)
        space.reset(ew_chain(bins, random_costs(random, bins - 1).data()));
    else
        space = kind == 1 ? random_tree(random, bins) : random_ring(random, bins);
    require(space != nullptr, "a space");
    const bool labelled = operation >= EW_LABELS && operation < EW_EXPECTED;
    const bool weighted = labelled && below(random, 2), gradient = operation >= EW_EXPECTED || below(random, 4);
    const double rhos[] = {1.0, 1.3, 1.5, 2.0, 3.0};
    ew_call call = {};
    call.operation = operation;
    call.rows = rows;
    call.bins = bins;
    call.threads = 1;
    call.first_stride = bins + below(random, 20);
    call.second_stride = bins + below(random, 20);
    call.ignore = -100;
    call.mean = labelled && below(random, 2);
    call.option = operation == EW_SOFT_LABELS ? 0.1 * double(below(random, 2)) : rhos[below(random, 5)];
    if (operation == EW_POWERS && below(random, 2)) call.option = 0;
    call.tolerance = 1e-3;
    Batch<T> batch;
    batch.first.assign(size_t((rows - 1) * call.first_stride + bins), T(NAN));
    batch.second.assign(size_t((rows - 1) * call.second_stride + bins), T(NAN));
    const double scale = std::pow(10.0, 3 * uniform(random) - 1);
    bool valid = true;
    for (int64_t i = 0; i < rows; ++i) {
        T *first = batch.first.data() + i * call.first_stride, *second = batch.second.data() + i * call.second_stride;
        if (labelled) {
            // Now and then of few values, so that many classes are tied.
            const bool tied = !below(random, 4);
            for (int64_t j = 0; j < bins; ++j)
                first[j] = T(tied ? -30.0 * double(below(random, 2)) : scale * (uniform(random) - 0.5));
        } else {
            // Sums differ by nothing, by less than the tolerance, and now and then by more.
            const double sums[] = {1.0, 1.0, 1.0003, 1.5}, sum = sums[below(random, i ? 3 : 4)];
            fill_masses(random, first, bins, 1.0);
            fill_masses(random, second, bins, sum);
            if (!below(random, 4)) std::copy(first, first + bins, second);
            const bool negative = operation == EW_PAIRS && !below(random, 100);
            if (negative) second[below(random, bins)] = T(-0.1);
            double total = 0;
            for (int64_t j = 0; j < bins; ++j) total += double(second[j]);
            valid = valid && !negative && std::fabs(total - 1) < 0.1;
        }
        const int64_t odd[] = {-100, -1, bins, INT64_MAX, INT64_MIN};
        const int64_t label = below(random, 8) ? below(random, bins) : odd[below(random, 5)];
        batch.labels.push_back(label);
        valid = valid && (!labelled || label == -100 || (label >= 0 && label < bins));
    }
    for (int64_t i = 0; i < bins; ++i) batch.weights.push_back(uniform(random));
    batch.values.assign(size_t(operation >= EW_EXPECTED ? 0 : rows), T(7));
    batch.gradients.assign(size_t(gradient ? rows * bins : 0), T(7));
    if (operation >= EW_EXPECTED) batch.values.resize(1); // not NULL, and not used
    std::vector<Batch<T>> found;
    for (const char *build : builds) {
        require(ew_use_build(build), build);
        for (int64_t threads = 1; threads <= 3; threads += 2) {
            Batch<T> other = batch;
            call.threads = threads;
            const int error = run(call, other, space.get(), labelled, weighted, gradient);
            if (error == EW_NOT_IMPLEMENTED) return;
            require(error == EW_OK, "a call");
            require(other.valid == (operation < EW_EXPECTED ? valid : true), "labels out of range, or other masses");
            found.push_back(std::move(other));
            if (threads > 1) {
                const Batch<T> &alone = found[found.size() - 2], &together = found.back();
                const size_t size = alone.gradients.size() * sizeof(T);
                require(!size || memcmp(alone.gradients.data(), together.gradients.data(), size) == 0, "threads");
            }
        }
    }
    const double tolerance = sizeof(T) == 4 ? 1e-3 : 1e-9;
    for (const Batch<T> &other : found) {
        for (size_t i = 0; i < other.values.size(); ++i) {
            const double a = double(found[0].values[i]), b = double(other.values[i]);
            if (!close(a, b, tolerance))
                std::fprintf(stderr, "operation %d, kind %d, type %d, %d bins: %g %g\n", int(operation), int(kind),
                             int(sizeof(T)), int(bins), a, b);
            require(close(a, b, tolerance), "builds agree");
            // Near the least probability that counts, builds may disagree about whether it does.
            if (a != a || b != b || operation >= EW_EXPECTED || !gradient) continue;
            double sum = 0, size = 0, difference = 0;
            for (size_t j = i * size_t(bins); j < (i + 1) * size_t(bins); ++j) {
                sum += double(other.gradients[j]);
                size += std::fabs(double(other.gradients[j]));
                difference += std::fabs(double(other.gradients[j]) - double(found[0].gradients[j]));
            }
            require(std::fabs(sum) <= tolerance * (1e-3 + size), "gradients sum to 0");
            // Below an exponent of 2 the slope is steep where the flow is 0 but for rounding.
            const bool steep = operation <= EW_LABELS && call.option < 2;
            require(steep || difference <= tolerance * (1e-3 + size), "gradients of builds agree");
        }
    }
    call.bins = bins + 1;
    require(run(call, batch, space.get(), labelled, weighted, gradient) == EW_WRONG_ARGUMENT, "another number of bins");
}

} // namespace

int main(int count, char **arguments) {
    const long cases = count > 1 ? std::atol(arguments[1]) : 1000;
    std::vector<const char *> builds;
    for (const char *name : {"avx512", "avx2", "neon", "baseline"})
        if (ew_use_build(name)) builds.push_back(name);
    ew_set_elements_per_thread(1);
    Random random(count > 2 ? uint64_t(std::atol(arguments[2])) : 0);
    long refused = 0;
    for (long i = 0; i < cases; ++i) {
        one_case<float>(random, builds);
        one_case<double>(random, builds);
        refused += !random_tree(random, 1 + below(random, 20), true);
    }
    // Several threads call the core at once, which starts threads of its own, while another one changes the labels.
    ew_use_build(nullptr);
    const int64_t bins = 40, rows = 200;
    const Space space(ew_chain(bins, random_costs(random, bins - 1).data()));
    std::vector<int64_t> labels(size_t(rows), 3);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
            Batch<float> batch;
            batch.first.assign(size_t(rows * bins), 0.5f);
            batch.values.resize(size_t(rows));
            batch.gradients.resize(size_t(rows * bins));
            ew_call call = {};
            call.space = space.get();
            call.operation = EW_LABELS;
            call.rows = rows;
            call.bins = call.first_stride = bins;
            call.threads = 3;
            call.first = batch.first.data();
            call.second = labels.data();
            call.values = batch.values.data();
            call.gradients = batch.gradients.data();
            call.option = 2;
            for (int j = 0; j < 20; ++j) require(ew_run(&call) == EW_OK, "a call of a thread");
        });
    }
    for (int j = 0; j < 1000; ++j)
        for (int64_t &label : labels) __atomic_store_n(&label, j % 2 ? 3 : INT64_MAX, __ATOMIC_RELAXED);
    for (std::thread &thread : threads) thread.join();
    std::printf("%ld cases of each type, %ld calls, builds:", cases, calls);
    for (const char *name : builds) std::printf(" %s", name);
    std::printf("; %ld broken trees refused\n", refused);
    return 0;
}
