// Which build of the kernels serves, and how its tiles are spread over threads.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "kernels.h"

#if defined(__x86_64__) || defined(_M_X64)
#define EW_X86
#include <cpuid.h>
extern const Build build_avx2, build_avx512;
#endif
extern const Build build_baseline; // on ARM with NEON
#ifndef _WIN32
#include <pthread.h>
#include <sys/mman.h>
#endif

namespace {

// Waking a thread and waiting for it takes a few microseconds, in which a kernel processes about this many elements.
constexpr int64_t ELEMENTS_PER_THREAD = 1 << 14;
std::atomic<int64_t> elements_per_thread{ELEMENTS_PER_THREAD};

// A tile of this size and the sums of its nodes fit into a level-2 cache.
constexpr int64_t MOST_TILE_BYTES = 1 << 20;

// A thread keeps this much scratch memory between calls.
constexpr size_t MOST_KEPT_BYTES = size_t(1) << 28;

// The builds that this machine can run, from the worst to the best: those whose instructions the processor has and whose
// registers the operating system saves.
const std::vector<const Build *> builds = [] {
    std::vector<const Build *> found{&build_baseline};
#ifdef EW_X86
    constexpr unsigned FMA = 1u << 12, XSAVE = 1u << 27, AVX2 = 1u << 5;
    constexpr unsigned AVX512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; // F, DQ, BW and VL
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & FMA) || !(c & XSAVE)) return found;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & AVX2) || (saved & 0x6) != 0x6) return found;
    found.push_back(&build_avx2);
    if ((b & AVX512) == AVX512 && (saved & 0xe6) == 0xe6) found.push_back(&build_avx512);
#endif
    return found;
}();

std::atomic<const Build *> chosen{nullptr};

const Build &build() {
    const Build *found = chosen.load(std::memory_order_relaxed);
    return found ? *found : *builds.back();
}

// The build for a call. Wide tiles are slower if there are fewer rows, or fewer tiles than threads, or if they do not fit into
// the cache; then the next build serves, with tiles of half the size.
const Build &build_for(const ew_call &call) {
    const Build &best = build();
    if (chosen.load(std::memory_order_relaxed) || builds.size() < 3) return best;
    const int64_t half = best.lanes / 2, bytes = best.lanes * call.bins * (call.type == EW_FLOAT ? 4 : 8);
    const bool few =
        call.rows <= half || (call.rows <= half * call.threads && call.rows * call.bins >= elements_per_thread * 2);
    return few || bytes > MOST_TILE_BYTES ? *builds[1] : best;
}

// With large pages, writing to fresh memory takes a fraction of the time, and visiting it in any order misses the TLB less
// often.
void use_large_pages([[maybe_unused]] void *memory, [[maybe_unused]] size_t size) {
#ifdef MADV_HUGEPAGE
    constexpr size_t PAGE = 4096, LARGE = size_t(1) << 22;
    const size_t start = (reinterpret_cast<size_t>(memory) + PAGE - 1) / PAGE * PAGE;
    if (size >= LARGE) madvise(reinterpret_cast<void *>(start), size - PAGE, MADV_HUGEPAGE);
#endif
}

// Memory that a thread keeps for its next call: allocating and freeing many megabytes can take longer than a kernel.
typedef char Line __attribute__((vector_size(64)));
thread_local struct Scratch {
    std::unique_ptr<Line[]> memory;
    size_t size = 0;
} kept;

// A queue of tiles that any number of threads take from, so it makes no difference how many take part or which is slow.
struct Queue {
    const Task task;
    const Kernel kernel;
    const size_t scratch_size;
    const int64_t tiles;
    std::atomic<int64_t> next{0};
    std::atomic<bool> invalid{false};

    // A thread without memory leaves its tiles to the others.
    void work() noexcept {
        if (kept.size < scratch_size) {
            kept = {};
            kept.memory.reset(new (std::nothrow) Line[scratch_size / sizeof(Line) + 1]);
            if (!kept.memory) return;
            kept.size = scratch_size;
            use_large_pages(kept.memory.get(), kept.size);
        }
        Task mine = task;
        mine.scratch = reinterpret_cast<char *>(kept.memory.get());
        while ((mine.tile = next.fetch_add(1, std::memory_order_relaxed)) < tiles)
            if (!kernel(mine)) invalid.store(true, std::memory_order_relaxed);
        if (kept.size > MOST_KEPT_BYTES) kept = {};
    }
};

typedef int32_t (*ParallelFor)(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void *), void *);
std::atomic<ParallelFor> parallel_for{nullptr};

#ifndef _WIN32
const int registered = pthread_atfork(nullptr, nullptr, [] { parallel_for.store(nullptr); });
#endif

// On torch's threads, or on threads of its own.
void work_on(int64_t threads, Queue &queue) {
    if (threads <= 1) return queue.work();
    if (const ParallelFor torch_threads = parallel_for.load()) {
        const auto work = [](int64_t, int64_t, void *queue) { static_cast<Queue *>(queue)->work(); };
        if (torch_threads(0, threads, 1, work, &queue)) queue.work();
        return;
    }
    std::vector<std::thread> started;
    try {
        started.reserve(size_t(threads - 1));
        for (int64_t i = 1; i < threads; ++i) started.emplace_back([&queue] { queue.work(); });
    } catch (const std::exception &) {} // no more threads, or no memory: those that there are do the work
    queue.work();
    for (std::thread &thread : started) thread.join();
}

bool is_valid(const ew_call &call) {
    const bool labelled = call.operation > EW_PAIRS && call.operation < EW_EXPECTED;
    const bool known = call.space && call.operation >= 0 && call.operation < EW_OPERATIONS && (labelled || !call.mean) &&
                       (call.type == EW_FLOAT || call.type == EW_DOUBLE);
    if (!known || call.bins != call.space->bins || call.rows < 0 || call.threads < 1) return false;
    const bool outputs = call.operation < EW_EXPECTED ? call.second && call.values : call.gradients != nullptr;
    return call.rows == 0 || (call.first && outputs);
}

// Add up the values of all rows, in parts that do not wait for each other.
template <class T> void add_up(ew_call &call) {
    double parts[8] = {};
    for (int64_t i = 0; i < call.rows; ++i) parts[i % 8] += double(static_cast<const T *>(call.values)[i]);
    for (double part : parts) call.sum += part;
    if (call.sum_to) *static_cast<T *>(call.sum_to) = T(call.sum);
}

} // namespace

int ew_run(ew_call *call) {
    call->invalid = 0, call->total = 1, call->sum = 0;
    if (!is_valid(*call)) return EW_WRONG_ARGUMENT;
    const ew_space &space = *call->space;
    const Build &best = build_for(*call);
    const Operation &operation = best.operations[call->operation][space.kind];
    const double rho = call->operation <= EW_LABELS ? call->option : 0;
    const Kernel kernel = operation.kernels[rho == 2 ? TWO : rho == 1 ? ONE : rho == 1.5 ? THREE_HALVES : ANY][call->type];
    if (!kernel) return EW_NOT_IMPLEMENTED;
    if (call->mean) {
        call->total = 0;
        for (int64_t i = 0; i < call->rows; ++i) call->total += read_label(*call, i).weight;
    }
    const size_t lanes = size_t(best.lanes), bins = size_t(space.bins), size = call->type == EW_FLOAT ? 4 : 8;
    const size_t sums = size_t(operation.sums) * size_t(space.kind == TREE ? space.nodes : space.bins + 1);
    const size_t scratch_size = lanes * (sums * 8 + size_t(operation.tiles) * bins * size);
    const int64_t tiles = (call->rows + best.lanes - 1) / best.lanes;
    Queue queue{{&space, call, call->total > 0 ? 1 / call->total : 0.0, nullptr, 0}, kernel, scratch_size, tiles};
    const int64_t threads = std::min({call->rows * space.bins / elements_per_thread.load(), tiles, call->threads});
    if (call->gradients) use_large_pages(call->gradients, size * bins * size_t(call->rows));
    work_on(threads, queue);
    call->invalid = queue.invalid.load();
    if (call->operation < EW_EXPECTED) (size == 4 ? add_up<float> : add_up<double>)(*call);
    return queue.next.load() < tiles ? EW_NO_MEMORY : EW_OK;
}

const char *ew_build(void) { return build().name; }
int ew_use_build(const char *name) {
    const Build *found = nullptr;
    for (const Build *known : builds)
        if (name && strcmp(known->name, name) == 0) found = known;
    if (name && !found) return 0;
    chosen.store(found);
    return 1;
}

void ew_use_parallel_for(void *function) { parallel_for.store(reinterpret_cast<ParallelFor>(function)); }
void ew_set_elements_per_thread(int64_t elements) { elements_per_thread.store(elements > 0 ? elements : ELEMENTS_PER_THREAD); }
