#include "team.h"

#include <immintrin.h>

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace symphony {

namespace {

constexpr int SPINS = 4000;  // of about 10 ns: longer than the gap between a step's loops
// Waking a thread takes longer than the start of a step that follows at once: 0.1 ms where a pause
// was measured, twice the gap between two steps.
constexpr int REST_SPINS = 4000;

// The longest time that a core is lent. A step's masks, and the event loop meanwhile, take half.
constexpr std::chrono::milliseconds LENT_MAX{2};

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void sleep_while(std::atomic<uint32_t> &word, uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t> &word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Spins for a while, then yields the core to other threads.
class Patience {
  public:
    void wait() {
        if (turns_ < SPINS) {
            ++turns_;
            _mm_pause();
        } else {
            sched_yield();
        }
    }

  private:
    int turns_ = 0;
};

}  // namespace

bool comes_soon(const int32_t *word) {
    for (int turn = 0; turn < SPINS; ++turn) {
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 0) return true;
        _mm_pause();
    }
    return false;
}

// A product with a denormal number takes a hundred times as long, and a tenant that uploads a KV
// file chooses its numbers. So in a step they are read and written as 0 (flush to zero, denormals
// are zero).
constexpr unsigned SUBNORMALS_ARE_ZERO = 0x8040;

Team::Team(int threads) {
    for (int thread = 1; thread < threads; ++thread) {
        others_.emplace_back([this, thread] { serve(thread); });
    }
}

Team::~Team() {
    stopped_.store(true);
    step_.fetch_add(2);
    wake_all(step_);
    for (std::thread &other : others_) other.join();
}

// A thread that wakes on its waker's core, which happens if no core is idle, waits there until it
// is moved: longer than a step. So the others avoid the caller's core.
void Team::keep_apart() {
    const int core = sched_getcpu();
    if (core == core_ || core < 0) return;
    core_ = core;
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) return;
    CPU_CLR(core, &cores);
    const int left = CPU_COUNT(&cores);
    tight_ = left <= static_cast<int>(others_.size());
    if (left == 0) return;
    for (std::thread &other : others_) {
        // optional: if refused, threads run anywhere
        pthread_setaffinity_np(other.native_handle(), sizeof cores, &cores);
    }
}

void Team::begin() {
    callers_control_ = _mm_getcsr();
    _mm_setcsr(callers_control_ | SUBNORMALS_ARE_ZERO);
    if (others_.empty()) {
        ring_now();
        return;
    }
    keep_apart();
    lend_now();
    step_.fetch_add(1);
    if (asleep_.load() != 0) wake_all(step_);
}

void Team::end() {
    _mm_setcsr(callers_control_);
    if (others_.empty()) return;
    step_.fetch_add(1);
    take_back();
}

void Team::lend_now() {
    if (!lent_until_ || !tight_ || __atomic_load_n(lent_until_, __ATOMIC_ACQUIRE) != 0) {
        lent_until_ = nullptr;
        return;
    }
    lent_since_ = Clock::now();
    lent_.store(1);
}

void Team::take_back() {
    lent_until_ = nullptr;
    if (lent_.load(std::memory_order_relaxed) == 0) return;
    lent_.store(0);
    wake_all(lent_);
}

void Team::look_at_lent() {
    if (lent_until_ && (__atomic_load_n(lent_until_, __ATOMIC_ACQUIRE) != 0 ||
                        Clock::now() - lent_since_ > LENT_MAX)) {
        take_back();
    }
}

void Team::run_tasks(int32_t tasks, Call call, const void *work) {
    // The system may have moved the caller, within the step, to a core where the other threads must
    // stay. Then the core that it left is idle for as long as they do.
    if (tight_) keep_apart();
    look_at_lent();
    tasks_.store(tasks, std::memory_order_relaxed);
    call_.store(call, std::memory_order_relaxed);
    work_.store(work, std::memory_order_relaxed);
    unfinished_.store(tasks, std::memory_order_relaxed);
    uint64_t number = (open_.load(std::memory_order_relaxed) >> 32) + 1;
    open_.store(number << 32 | static_cast<uint32_t>(tasks), std::memory_order_release);
    take_tasks(0);
    Patience patience;
    while (unfinished_.load(std::memory_order_acquire) != 0) patience.wait();
}

// Takes tasks of the open loop until none is left, then adds the number of done ones: no other loop
// can open before that.
void Team::take_tasks(int32_t thread) {
    int32_t finished = 0;
    for (;;) {
        uint64_t open = open_.load(std::memory_order_acquire);
        uint32_t left = static_cast<uint32_t>(open);
        if (left == 0) break;
        int32_t tasks = tasks_.load(std::memory_order_relaxed);
        Call call = call_.load(std::memory_order_relaxed);
        const void *work = work_.load(std::memory_order_relaxed);
        // If the loop is still the same, so were the three values.
        if (!open_.compare_exchange_weak(open, open - 1, std::memory_order_acq_rel)) continue;
        call(work, tasks - static_cast<int32_t>(left), thread);
        ++finished;
        if (thread == 0) look_at_lent();  // a prompt's loop takes longer than a core is lent
    }
    if (finished != 0) unfinished_.fetch_sub(finished, std::memory_order_acq_rel);
}

// Returns when another step has begun, or may have. A thread that begins a step sees which threads
// sleep by then, and a thread about to sleep sees that the step has begun.
void Team::rest(uint32_t step) {
    for (int turn = 0; turn < REST_SPINS; ++turn) {
        if (step_.load(std::memory_order_relaxed) != step) return;
        _mm_pause();
    }
    asleep_.fetch_add(1);
    sleep_while(step_, step);
    asleep_.fetch_sub(1);
}

void Team::ring_now() {
    if (bell_.load(std::memory_order_relaxed) < 0) return;
    const int bell = bell_.exchange(-1);
    // If it fails, the caller rings after the step.
    if (bell >= 0) [[maybe_unused]] const int rung = eventfd_write(bell, 1);
}

// The main function of the other threads.
void Team::serve(int32_t thread) {
    _mm_setcsr(_mm_getcsr() | SUBNORMALS_ARE_ZERO);
    for (;;) {
        // In this order: a team that stops changes the step last, and a thread that has seen the
        // last step must not sleep on it.
        uint32_t step = step_.load();
        if (stopped_.load()) return;
        if ((step & 1) == 0) {
            rest(step);
            continue;
        }
        if (thread == 1 && lent_.load() != 0) {
            ring_now();
            sleep_while(lent_, 1);
            continue;
        }
        Patience patience;
        while (static_cast<uint32_t>(open_.load(std::memory_order_relaxed)) == 0 &&
               step_.load(std::memory_order_relaxed) == step) {
            patience.wait();
        }
        if (step_.load(std::memory_order_relaxed) != step) continue;
        ring_now();
        take_tasks(thread);
    }
}

}  // namespace symphony
