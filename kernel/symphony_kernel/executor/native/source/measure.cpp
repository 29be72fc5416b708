// Single kernels, for tests, and the machine's limits, for benchmarks/floor.py.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <vector>

#include "exports.h"
#include "memory.h"
#include "product.h"
#include "team.h"

using namespace symphony;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// `weights` are [outputs][depth] in the inputs' type, or null: then `quantized` are multiplied.
struct Product {
    const void *inputs;  // [rows][depth]
    const void *weights;
    const QuantizedRows *quantized;
    const float *bias;  // [outputs] or null
    float *out;         // [rows][outputs]
    int32_t rows, depth, outputs, threads, wide;
    int32_t repeats;  // how often it is multiplied, to be measured
    double seconds;   // of the fastest; written
};

// Fills a matrix of `memory`.
template <class T>
void fill(const Product &given, Matrix &matrix, Mapped &memory) {
    if (given.weights) {
        matrix.panels = reinterpret_cast<uint32_t *>(memory.data());
        pack(matrix, given.weights, given.outputs, given.depth, sizeof(typename T::Element),
             [](int32_t row) { return row; });
        return;
    }
    matrix.format = given.quantized->format;
    matrix.quantized_panels = memory.data();
    for (int32_t row = 0; row < given.outputs; ++row) {
        pack_quantized(*given.quantized, row, given.depth, memory.data(), row);
    }
}

template <class T>
void compute(Product &given) {
    using Element = typename T::Element;
    Matrix matrix{};
    matrix.count = static_cast<int32_t>(rounded_up(given.outputs, PANEL) / PANEL);
    matrix.units = (given.depth + T::PER_UNIT - 1) / T::PER_UNIT;
    matrix.depth = given.depth;
    Mapped memory(static_cast<size_t>(matrix.count) *
                  (given.weights ? matrix.panel_units() * 4
                                 : given.quantized->format.panel_bytes(given.depth)));
    fill<T>(given, matrix, memory);
    std::vector<float> bias(static_cast<size_t>(matrix.count) * PANEL);
    if (given.bias) {
        std::copy(given.bias, given.bias + given.outputs, bias.begin());
        matrix.bias = bias.data();
    }
    Rows<typename T::Factors::Element> inputs(given.depth);
    inputs.reserve(given.rows);
    for (int32_t row = 0; row < given.rows; ++row) {
        const auto *from = static_cast<const Element *>(given.inputs);
        for (int32_t i = 0; i < given.depth; i += LANES) {
            const __mmask16 lanes = first_lanes(given.depth - i);
            T::Factors::store(inputs.row(row) + i,
                              load(from + static_cast<int64_t>(row) * given.depth + i, lanes), lanes);
        }
    }
    Team team(given.threads);
    team.begin();
    const Inputs rows{inputs.row(0), inputs.stride() * T::WORDS / T::PER_UNIT, given.rows};
    Rows<char> tiles(tile_bytes(given.depth));
    const auto out = [&](int32_t row, int32_t panel, __m512 left, __m512 right) {
        const int32_t at = panel * PANEL;
        float *to = given.out + static_cast<size_t>(row) * given.outputs + at;
        store(to, left, first_lanes(given.outputs - at));
        if (given.outputs - at > LANES) {
            store(to + LANES, right, first_lanes(given.outputs - at - LANES));
        }
    };
    for (int32_t repeat = 0; repeat < std::max(1, given.repeats); ++repeat) {
        const auto begin = Clock::now();
        multiply<T>(team, matrix, rows, tiles, out);
        const double seconds = seconds_since(begin);
        given.seconds = repeat ? std::min(given.seconds, seconds) : seconds;
    }
    team.end();
}

// Keeps the compiler from knowing what is in a register.
inline __attribute__((always_inline)) void hide(__m512i &x) {
#if SYMPHONY_AVX512
    asm volatile("" : "+v"(x));
#else
    asm volatile("" : "+x"(x.low), "+x"(x.high));
#endif
}

// Independent sums: enough of them to hide the latency of one.
template <class T>
float dots(int64_t count) {
    constexpr int CHAINS = MANY_REGISTERS ? 24 : 6;
    __m512 sums[CHAINS];
    for (__m512 &sum : sums) sum = _mm512_setzero_ps();
    __m512i x = _mm512_set1_epi32(0x3F803F80);
    for (int64_t i = 0; i < count; i += CHAINS) {
        hide(x);
#pragma GCC unroll 24
        for (int chain = 0; chain < CHAINS; ++chain) sums[chain] = T::dot(sums[chain], x, x);
    }
    __m512 sum = sums[0];
    for (int chain = 1; chain < CHAINS; ++chain) sum = _mm512_add_ps(sum, sums[chain]);
    return _mm512_reduce_add_ps(sum);
}

}  // namespace

// A product alone; returns 0, or 1 if there is no memory or no thread.
SYMPHONY_EXPORT int32_t symphony_product(Product *given, int32_t element_bytes) try {
    with_units(element_bytes, given->wide, [&](auto units) { compute<decltype(units)>(*given); });
    return 0;
} catch (const std::exception &) {
    return 1;
}

// Whether these kernels multiply bfloat16: the processor and the compiler support it.
SYMPHONY_EXPORT int32_t symphony_computes_bf16() { return COMPUTES_BF16; }

// Whether bfloat16 is faster multiplied as float32: two products of registers for each product of
// pairs, and a tenth for the widening. On the processors seen so far it takes half the time or
// twice the time, so that a disturbed measurement does not matter.
SYMPHONY_EXPORT int32_t symphony_widening_pays() {
    if (!COMPUTES_BF16) return 1;
    constexpr int64_t DOTS = 24 << 10;  // some 10 microseconds
    constexpr int ROUNDS = 10;
    const auto time = [](auto units, int64_t count) {
        const auto begin = Clock::now();
        volatile float sum = dots<decltype(units)>(count);
        static_cast<void>(sum);
        return seconds_since(begin);
    };
    double pairs = 1.0, wide = 1.0;
    for (int round = 0; round < ROUNDS; ++round) {
        with_units(2, false, [&](auto units) { pairs = std::min(pairs, time(units, DOTS)); });
        wide = std::min(wide, time(FloatUnits(), 2 * DOTS));
    }
    return wide * 1.1 < pairs;
}

// Seconds in which each thread multiplies and adds `dots` registers without touching memory.
SYMPHONY_EXPORT double symphony_dot_seconds(int32_t element_bytes, int32_t threads, int64_t count) {
    Team team(threads);
    std::vector<float> sums(static_cast<size_t>(threads));
    const auto work = [&](int32_t task, int32_t) {
        sums[static_cast<size_t>(task)] = with_units(
            element_bytes, false, [&](auto units) { return dots<decltype(units)>(count); });
    };
    team.begin();
    team.run(threads, [](int32_t, int32_t) {});  // all threads are awake
    const auto begin = Clock::now();
    team.run(threads, work);
    const double seconds = seconds_since(begin);
    team.end();
    return seconds;
}

// Seconds in which the threads read `bytes` of memory that is in no cache; below 0: no memory.
SYMPHONY_EXPORT double symphony_read_seconds(int32_t threads, int64_t bytes) try {
    constexpr int64_t TASK = 128 << 10;
    const Mapped memory(static_cast<size_t>(bytes));
    std::memset(memory.data(), 1, static_cast<size_t>(bytes));
    Team team(threads);
    std::vector<int32_t> sums(static_cast<size_t>(bytes / TASK));
    const auto work = [&](int32_t task, int32_t) {
        const char *from = memory.data() + task * TASK;
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = 0; i < TASK; i += 64) {
            _mm_prefetch(from + i + 4096, _MM_HINT_T0);
            sum = _mm512_add_epi32(sum, _mm512_load_si512(from + i));
        }
        sums[static_cast<size_t>(task)] = _mm512_reduce_add_epi32(sum);
    };
    team.begin();
    const auto begin = Clock::now();
    team.run(static_cast<int32_t>(bytes / TASK), work);
    const double seconds = seconds_since(begin);
    team.end();
    return seconds;
} catch (const std::exception &) {
    return -1.0;
}

// Moves the caller of a team of two, which has two cores, from one core to the other within a step.
// Returns 0 if the other thread avoids the caller's core in the next loop, 1 if it may run there,
// and -1 if the result is unclear: the system moved the caller, or delays the other thread.
SYMPHONY_EXPORT int32_t symphony_team_moved(int32_t from, int32_t to) {
    cpu_set_t before, both, others;
    if (sched_getaffinity(0, sizeof before, &before) != 0) return -1;
    CPU_ZERO(&both);
    CPU_SET(from, &both);
    CPU_SET(to, &both);
    const auto move = [&](int32_t core) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        sched_setaffinity(0, sizeof one, &one);
        sched_setaffinity(0, sizeof both, &both);  // it stays there, unless it is moved again
        return sched_getcpu() == core;
    };
    Team team(2);
    bool there = move(from);
    team.begin();
    there = move(to) && there;
    std::atomic<bool> taken{false};
    team.run(2, [&](int32_t, int32_t thread) {
        if (thread == 1) {
            pthread_getaffinity_np(pthread_self(), sizeof others, &others);
            taken.store(true);
            return;
        }
        const auto begin = Clock::now();
        while (!taken.load() && seconds_since(begin) < 1.0) sched_yield();
    });
    there = sched_getcpu() == to && there;
    team.end();
    sched_setaffinity(0, sizeof before, &before);
    if (!there || !taken.load()) return -1;
    return CPU_ISSET(to, &others) ? 1 : 0;
}

// A step's caller lends one of the two cores of a team of two, and asks for it back. Returns 0 if
// the other thread takes no task until then, and takes tasks as soon as the number is written, or,
// with `late`, if it is never written; 1 if not; -1 if the result is unclear: the machine was too
// busy.
SYMPHONY_EXPORT int32_t symphony_team_lent(int32_t first, int32_t second, int32_t late) {
    cpu_set_t before, both;
    if (sched_getaffinity(0, sizeof before, &before) != 0) return -1;
    CPU_ZERO(&both);
    CPU_SET(first, &both);
    CPU_SET(second, &both);
    sched_setaffinity(0, sizeof both, &both);
    Team team(2);
    std::atomic<bool> taken{false};
    // The caller's tasks each wait until the other thread has taken one, but not for long.
    const auto takes = [&](int32_t tasks, double seconds) {
        taken.store(false);
        team.run(tasks, [&](int32_t, int32_t thread) {
            if (thread == 1) taken.store(true);
            const auto begin = Clock::now();
            while (!taken.load() && seconds_since(begin) < seconds) sched_yield();
        });
        return taken.load();
    };
    int32_t word = 0;
    team.begin();
    const bool awake = takes(2, 1.0);
    team.end();
    team.lend(&word);
    const auto lent = Clock::now();
    team.begin();
    const bool early = takes(100, 10e-6);
    const bool soon = seconds_since(lent) < 1.9e-3;
    if (!late) __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    while (late && seconds_since(lent) < 2.1e-3) sched_yield();
    const bool back = takes(2, 1.0);
    team.end();
    sched_setaffinity(0, sizeof before, &before);
    if (!awake || !soon || !back) return awake && soon ? 1 : -1;
    return early ? 1 : 0;
}
