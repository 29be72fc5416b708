// The threads that compute a step.
//
// The caller of `run` takes part. A loop ends when its tasks have ended, not when every thread has
// come: a thread that the system has descheduled delays the others only if it holds a task, and
// tasks are small. Between two loops of a step the other threads spin for a while. Between two
// steps they spin as long as the next step takes to arrive if it is queued, and then sleep, because
// other processes share the cores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "types.h"

namespace symphony {

class Team {
  public:
    // `threads` counts the caller of `run`.
    explicit Team(int threads);
    ~Team();
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    int threads() const { return static_cast<int>(others_.size()) + 1; }

    // Wakes the other threads before the first loop of a step, and lets them sleep after its last.
    // Loops outside of a step run on the caller's thread alone.
    void begin();
    void end();

    // In the next step, lend a core to the thread that writes a number other than 0 here, until it
    // has done so or 2 ms have passed. If each core has a thread of the team, one of them sleeps
    // meanwhile and the others compute its share: if it lost its core while it held a task, each
    // loop of the step would wait for that task. Null: lend none.
    void lend(const int32_t *until) { lent_until_ = until; }

    // In the next step, write to an eventfd. One of the other threads does so while it holds no
    // task. A woken thread takes the waker's core, and the rest of the team continues.
    void ring(int bell) { bell_.store(bell, std::memory_order_relaxed); }

    // Calls work(task, thread) for each task in [0, tasks), each once, and returns when all have
    // ended. thread is in [0, threads()); the caller's is 0. Tasks see all writes before the call,
    // and the caller sees the tasks' writes after it.
    template <class Work>
    void run(int32_t tasks, const Work &work) {
        if (tasks <= 1 || others_.empty()) {
            for (int32_t task = 0; task < tasks; ++task) work(task, 0);
            return;
        }
        auto call = [](const void *given, int32_t task, int32_t thread) {
            (*static_cast<const Work *>(given))(task, thread);
        };
        run_tasks(tasks, call, &work);
    }

  private:
    using Clock = std::chrono::steady_clock;
    using Call = void (*)(const void *, int32_t, int32_t);

    void run_tasks(int32_t tasks, Call call, const void *work);
    void take_tasks(int32_t thread);
    void serve(int32_t thread);
    void keep_apart();
    void rest(uint32_t step);
    void ring_now();
    void lend_now();
    void look_at_lent();
    void take_back();

    // The loop's number in the upper half, the number of free tasks in the lower: one word, so that
    // no thread takes a task of one loop with the description of another.
    alignas(LINE_BYTES) std::atomic<uint64_t> open_{0};
    alignas(LINE_BYTES) std::atomic<int32_t> unfinished_{0};
    // Written only while no task is open.
    alignas(LINE_BYTES) std::atomic<int32_t> tasks_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<const void *> work_{nullptr};
    // The other threads sleep on this: odd during a step.
    alignas(LINE_BYTES) std::atomic<uint32_t> step_{0};
    std::atomic<bool> stopped_{false};
    unsigned callers_control_ = 0;  // of its floating point, outside of a step
    std::vector<std::thread> others_;
    std::atomic<int32_t> asleep_{0};  // of the others
    std::atomic<int> bell_{-1};
    // The thread of a lent core sleeps on this: 1 while the core is lent.
    alignas(LINE_BYTES) std::atomic<uint32_t> lent_{0};
    const int32_t *lent_until_ = nullptr;  // the caller's
    Clock::time_point lent_since_;
    int core_ = -1;                   // the caller's, when last read
    bool tight_ = false;              // the other threads have no core to spare but the caller's
};

// Waits, as long as threads of a team spin, for a number other than 0; returns whether it came. The
// caller then sees all that was written before it.
bool comes_soon(const int32_t *word);

// Keeps a team awake during its lifetime.
class Awake {
  public:
    explicit Awake(Team &team) : team_(team) { team_.begin(); }
    ~Awake() { team_.end(); }
    Awake(const Awake &) = delete;
    Awake &operator=(const Awake &) = delete;

  private:
    Team &team_;
};

}  // namespace symphony
