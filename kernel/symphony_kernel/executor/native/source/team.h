// The threads that compute a step.
//
// Whoever calls `run` takes part. A loop ends when its tasks have ended, not when each thread has
// come by: a thread that the machine has taken away holds nobody up unless it holds a task, and tasks
// are small. Between two loops of a step the others spin for a while; between two steps they do so
// for as long as the next one takes when it is at hand, and then sleep, because the cores are shared
// with other processes.
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

    // Wakes the others before the first loop of a step, and lets them sleep after its last. Loops
    // outside of a step are the caller's alone.
    void begin();
    void end();

    // In the next step, leave a core to whoever writes a number other than 0 here, until he has done
    // so or 2 ms are over. Where each core has a thread of the team's one of them sleeps meanwhile,
    // and the others do its part: if its core were taken from it each loop of the step would wait for
    // the task in its hand. Null: nobody.
    void lend(const int32_t *until) { lent_until_ = until; }

    // In the next step, write to an eventfd: one of the others does, with no task in its hand. Who is
    // woken up takes the core of who wakes, and the rest of the team goes on.
    void ring(int bell) { bell_.store(bell, std::memory_order_relaxed); }

    // Calls work(task, thread) for each task in [0, tasks), each once, and returns when all have
    // ended; thread is in [0, threads()), the caller's own is 0. Whatever came before the call is
    // seen by the tasks, and what they did by the caller after it.
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

    // The loop's number above, the tasks that nobody has taken below: one word, so that nobody takes
    // a task of one loop with the description of another.
    alignas(LINE_BYTES) std::atomic<uint64_t> open_{0};
    alignas(LINE_BYTES) std::atomic<int32_t> unfinished_{0};
    // Written only while no task is open.
    alignas(LINE_BYTES) std::atomic<int32_t> tasks_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<const void *> work_{nullptr};
    // What the others sleep on: odd while a step is being computed.
    alignas(LINE_BYTES) std::atomic<uint32_t> step_{0};
    std::atomic<bool> stopped_{false};
    unsigned callers_control_ = 0;  // of its floating point, outside of a step
    std::vector<std::thread> others_;
    std::atomic<int32_t> asleep_{0};  // of the others
    std::atomic<int> bell_{-1};
    // What one of the others sleeps on: 1 while its core is lent.
    alignas(LINE_BYTES) std::atomic<uint32_t> lent_{0};
    const int32_t *lent_until_ = nullptr;  // the caller's
    Clock::time_point lent_since_;
    int core_ = -1;                   // of the caller, when it was looked at last
    bool tight_ = false;              // the others have no core to spare but the caller's
};

// Waits, for as long as threads of a team spin, until somebody has written a number other than 0;
// returns whether that has come to be. What was written before it is seen then.
bool comes_soon(const int32_t *word);

// Keeps a team awake as long as it lives.
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
