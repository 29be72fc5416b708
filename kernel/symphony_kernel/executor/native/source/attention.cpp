#include "attention.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "attention_block.h"
#include "attention_plan.h"
#include "attention_pool.h"

namespace symphony {

namespace {

constexpr double LOG2_E = 1.4426950408889634;

// A head rotated by a position's angles, after a norm if there is one, times `scale`.
struct Rotation {
    int head_dim;
    float norm_epsilon;
    const float *cosines, *sines;  // [head_dim / 2] of the position

    // Calls sink(d, 16 numbers, their count) for each part. WHOLE: half a head is a multiple of 16.
    template <bool WHOLE, class Sink>
    void turn(const float *from, const float *norm, float scale, Sink sink) const {
        const int half = head_dim / 2;
        const __m512 factor = _mm512_set1_ps(norm ? scale * root<WHOLE>(from) : scale);
        for (int i = 0; i < half; i += LANES) {
            const int left = half - i;
            __m512 x = _mm512_mul_ps(load_part<WHOLE>(from + i, left), factor);
            __m512 y = _mm512_mul_ps(load_part<WHOLE>(from + half + i, left), factor);
            if (norm) {
                x = _mm512_mul_ps(x, load_part<WHOLE>(norm + i, left));
                y = _mm512_mul_ps(y, load_part<WHOLE>(norm + half + i, left));
            }
            const __m512 cosine = load_part<WHOLE>(cosines + i, left);
            const __m512 sine = load_part<WHOLE>(sines + i, left);
            sink(i, _mm512_fmsub_ps(x, cosine, _mm512_mul_ps(y, sine)), left);
            sink(half + i, _mm512_fmadd_ps(y, cosine, _mm512_mul_ps(x, sine)), left);
        }
    }

  private:
    template <bool WHOLE>
    float root(const float *from) const {
        __m512 squares = _mm512_setzero_ps();
        for (int i = 0; i < head_dim; i += LANES) {
            const __m512 x = load_part<WHOLE>(from + i, head_dim - i);
            squares = _mm512_fmadd_ps(x, x, squares);
        }
        return 1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(head_dim) + norm_epsilon);
    }
};

// The queries of one kv head, and their state so far.
struct State {
    explicit State(const PoolLayout &layout)
        : queries(size_t(QUERIES_MAX) * layout.query_words), sums(size_t(QUERIES_MAX) * layout.width) {}

    Aligned<uint32_t> queries;  // [rows][query_words]
    Aligned<float> sums;        // [rows][width]
    Totals so_far;
};

// The work memory of one thread's task.
struct Scratch {
    Scratch(const PoolLayout &layout)
        : turned(size_t(layout.head_dim) + LANES),
          scores(size_t(QUERIES_MAX) * SCORES_STRIDE),
          last_pair(size_t(layout.width)) {
        for (int head = 0; head < layout.kv_heads; ++head)
            states.push_back(std::make_unique<State>(layout));
    }

    std::vector<std::unique_ptr<State>> states;  // of the kv heads of a task
    Aligned<float> turned;
    Aligned<float> scores;        // [rows][SCORES_STRIDE], then weights in place
    Aligned<uint32_t> last_pair;  // [width]: a token without its neighbour
    Totals block;
    Factors factors;
};

}  // namespace

struct Attention::Impl {
    Impl(const AttentionShape &given, void *memory)
        : layout(given),
          planner(given, layout),
          pool(static_cast<uint32_t *>(memory)),
          norm_epsilon(given.norm_epsilon),
          query_scale(float(given.score_scale > 0.0f ? LOG2_E * double(given.score_scale)
                                                     : LOG2_E / std::sqrt(double(given.head_dim)))),
          score_cap(float(LOG2_E * double(given.score_cap))) {
        for (int i = 0; i < given.threads; ++i) scratch.push_back(std::make_unique<Scratch>(layout));
    }

    const PoolLayout layout;
    Planner planner;
    uint32_t *const pool;
    const float norm_epsilon;
    const float query_scale, score_cap;  // of scores in powers of two
    std::vector<std::unique_ptr<Scratch>> scratch;

    template <class Work>
    void with_units(Work work) const {
        symphony::with_units(4 / layout.per_unit, layout.wide, work);
    }

    Rotation rotation(const AttentionLayer &layer, int32_t token) const {
        const size_t at = size_t(planner.rows.positions[token]) * (layout.head_dim / 2);
        return {layout.head_dim, norm_epsilon, layer.cosines + at, layer.sines + at};
    }

    template <class T>
    void enter_token(const AttentionLayer &layer, int32_t token, int kv_head, float *turned) const {
        const int head_dim = layout.head_dim;
        const float *keys = layer.qkv + token * layer.qkv_stride +
                            size_t(layout.heads + kv_head) * head_dim;
        const float *values = keys + size_t(layout.kv_heads) * head_dim;
        const int64_t slot = planner.slots[size_t(token)];
        uint32_t *page = layout.page(pool, layer.layer, slot / PAGE_TOKENS, kv_head);
        const int lane = int(slot % PAGE_TOKENS);
        turn<T>(rotation(layer, token), keys, layer.k_norm, 1.0f, turned,
                [&](int d, __m512 x, int) { write_key<T>(layout, page, lane, d, x); });
        write_value<T>(layout, page, lane, values);
    }

    // Rotates a head and passes it on in parts that begin at multiples of 16.
    template <class T, class Sink>
    void turn(const Rotation &rotation, const float *from, const float *norm, float scale,
              float *turned, Sink sink) const {
        const int head_dim = layout.head_dim;
        if (head_dim % (2 * LANES) == 0) {
            rotation.turn<true>(from, norm, scale, sink);
            return;
        }
        rotation.turn<false>(from, norm, scale, [&](int d, __m512 x, int left) {
            store_part<FloatUnits, false>(turned + d, x, left);
        });
        for (int d = 0; d < head_dim; d += LANES)
            sink(d, load_part<false>(turned + d, head_dim - d), head_dim - d);
    }

    // The queries of a task as its rows, scaled so that weights are powers of two.
    template <class T>
    void enter_queries(const AttentionLayer &layer, const Task &task, int head, int heads,
                       State &state, Scratch &my) const {
        auto *to = reinterpret_cast<typename T::Factors::Element *>(state.queries.data());
        for (int i = 0; i < task.count; ++i) {
            const int32_t token = planner.members[size_t(task.first + i)];
            const Rotation rotation = this->rotation(layer, token);
            const float *from = layer.qkv + token * layer.qkv_stride + size_t(head) * layout.head_dim;
            for (int h = 0; h < heads; ++h, from += layout.head_dim, to += layout.head_dim)
                turn<T>(rotation, from, layer.q_norm, query_scale, my.turned.data(),
                        [&](int d, __m512 x, int left) { write_part<T>(to + d, x, left); });
        }
    }

    template <class T>
    static void write_part(typename T::Factors::Element *place, __m512 x, int left) {
        if (left >= LANES)
            T::Factors::store(place, x);
        else
            store_part<typename T::Factors, false>(place, x, left);
    }

    // Finds block `index` of a task's pages; copies the last token if it has no pair.
    template <class T>
    Block find_block(const Task &task, int layer, int index, Scratch &my) const {
        Block block;
        const int begin = index * BLOCK_TOKENS;
        block.entries = std::min(task.high - begin, BLOCK_TOKENS);
        block.first_page = std::max(task.low - begin, 0) / PAGE_TOKENS;
        block.last_page = (block.entries + PAGE_TOKENS - 1) / PAGE_TOKENS;
        const int32_t *table = planner.rows.tables + task.table + index * BLOCK_PAGES;
        for (int page = block.first_page; page < block.last_page; ++page) {
            block.keys[page] = layout.page(pool, layer, table[page], task.kv_head);
            block.values[page] = block.keys[page] + layout.values_at;
        }
        if (T::PER_UNIT == 2 && block.entries % 2) {
            const int unit = block.entries % PAGE_TOKENS / 2;
            const uint32_t *pair = block.values[block.last_page - 1] + size_t(unit) * layout.width;
            for (int d = 0; d < layout.width; ++d) my.last_pair.data()[d] = pair[d] & 0xFFFF;
        }
        return block;
    }

    template <class T>
    void weigh_block(const Task &task, int32_t window, int index, const Block &block, int heads,
                      State &state, Scratch &my) const {
        const int rows = task.count * heads;
        const uint32_t *queries = state.queries.data();
        float *scores = my.scores.data();
        const bool few = rows <= 2 * TILE_QUERIES;
        for_tiles(rows, [&](int row, auto size) {
            const uint32_t *from = queries + size_t(row) * layout.query_words;
            float *to = scores + size_t(row) * SCORES_STRIDE;
            if (few && row == 0)
                score_rows<T, size(), true>(layout.key_units, from, block, to);
            else
                score_rows<T, size(), false>(layout.key_units, from, block, to);
        });
        for (int i = 0; i < task.count; ++i) {
            const Visible visible = planner.visible(planner.members[size_t(task.first + i)], window,
                                                    index * BLOCK_TOKENS, block);
            for (int row = i * heads; row < (i + 1) * heads; ++row) {
                float *mine = scores + size_t(row) * SCORES_STRIDE;
                if (score_cap > 0.0f) cap_scores(mine, block);
                my.block.maxima[row] = weigh<T>(mine, block, visible, my.block.totals + row);
            }
        }
    }

    void cap_scores(float *scores, const Block &block) const {
        for (int page = block.first_page; page < block.last_page; ++page) {
            float *mine = scores + page * LANES;
            _mm512_store_ps(mine, capped(_mm512_load_ps(mine), score_cap));
        }
    }

    // Adds a block's weighted values to sums, by the factors.
    template <class T>
    void add_values(const Block &block, int rows, float *sums, const Scratch &my) const {
        for_tiles(rows, [&](int row, auto size) {
            value_rows<T, size()>(block, layout.width, my.last_pair.data(),
                                  my.scores.data() + size_t(row) * SCORES_STRIDE, my.factors, row,
                                  sums + size_t(row) * layout.width);
        });
    }

    // A part's blocks stay separate: each joins only itself.
    static void put_totals(int rows, float *totals, Scratch &my) {
        for (int row = 0; row < rows; ++row) {
            totals[2 * row] = my.block.maxima[row];
            totals[2 * row + 1] = my.block.totals[row];
        }
        std::fill_n(my.factors.keep, rows, 0.0f);
        std::fill_n(my.factors.take, rows, 1.0f);
    }

    static void take_totals(int rows, const float *totals, Scratch &my) {
        for (int row = 0; row < rows; ++row) {
            my.block.maxima[row] = totals[2 * row];
            my.block.totals[row] = totals[2 * row + 1];
        }
    }

    template <class T>
    void begin_heads(const AttentionLayer &layer, const Task &task, int head, int heads,
                     State &state, Scratch &my) const {
        enter_queries<T>(layer, task, head, heads, state, my);
        state.so_far.clear();
        std::fill_n(state.sums.data(), size_t(task.count * heads) * layout.width, 0.0f);
    }

    // One block for some heads of a kv head, joined with the blocks before, or kept as a part.
    template <class T>
    void attend_block(const AttentionLayer &layer, const Task &task, int index, int head, int heads,
                      State &state, Scratch &my) {
        const int rows = task.count * heads;
        const Block block = find_block<T>(task, layer.layer, index, my);
        weigh_block<T>(task, planner.of(layer.layer).window, index, block, heads, state, my);
        if (task.partial < 0 || task.joined) {
            join(my.block, state.so_far, rows, my.factors);
            add_values<T>(block, rows, state.sums.data(), my);
            return;
        }
        const size_t at = planner.partial(task, index) + first_of(task, head);
        float *sums = planner.sums() + at * layout.width;
        std::fill_n(sums, size_t(rows) * layout.width, 0.0f);
        put_totals(rows, planner.partial_totals.data() + 2 * at, my);
        add_values<T>(block, rows, sums, my);
    }

    // Keeps the sums of all blocks so far as one block's: a merge that begins with them is exact.
    void keep(const Task &task, int head, int heads, const State &state) {
        const int rows = task.count * heads;
        const size_t at = planner.partial(task, task.block_begin) + first_of(task, head);
        std::copy_n(state.sums.data(), size_t(rows) * layout.width, planner.sums() + at * layout.width);
        float *totals = planner.partial_totals.data() + 2 * at;
        for (int row = 0; row < rows; ++row) {
            totals[2 * row] = state.so_far.maxima[row];
            totals[2 * row + 1] = state.so_far.totals[row];
        }
    }

    // All of a task's kv heads, block by block: their entries follow each other in memory.
    template <class T>
    void attend_together(const AttentionLayer &layer, Task task, Scratch &my) {
        const int first = task.kv_head, shared = layout.shared;
        auto each = [&](auto work) {
            for (int i = 0; i < task.kv_heads; ++i) {
                task.kv_head = first + i;
                work(task.kv_head * shared, *my.states[size_t(i)]);
            }
        };
        each([&](int head, State &state) { begin_heads<T>(layer, task, head, shared, state, my); });
        for (int index = task.block_begin; index < task.block_end; ++index)
            each([&](int head, State &state) {
                attend_block<T>(layer, task, index, head, shared, state, my);
            });
        each([&](int head, State &state) { finish<T>(layer, task, head, shared, state); });
    }

    // Divides a task's sums by their totals and writes them out.
    template <class T>
    void finish(const AttentionLayer &layer, const Task &task, int head, int heads,
                const State &state) const {
        auto *out = static_cast<typename T::Factors::Element *>(layer.out);
        for (int i = 0; i < task.count; ++i) {
            const int32_t token = planner.members[size_t(task.first + i)];
            for (int h = 0; h < heads; ++h) {
                const int row = i * heads + h;
                const float *sums = state.sums.data() + size_t(row) * layout.width;
                auto *place = out + token * layer.out_stride + size_t(head + h) * layout.head_dim;
                if (layer.sinks) {
                    write_with_sink<T>(place, sums, layer.sinks[head + h], state.so_far, row);
                    continue;
                }
                const __m512 total = _mm512_set1_ps(state.so_far.totals[row]);
                for (int d = 0; d < layout.head_dim; d += LANES)
                    write_part<T>(place + d, _mm512_div_ps(_mm512_load_ps(sums + d), total),
                                   layout.head_dim - d);
            }
        }
    }

    // The same with a score that has no value: it takes a part of the total only.
    template <class T>
    void write_with_sink(typename T::Factors::Element *place, const float *sums, float sink,
                         const Totals &so_far, int row) const {
        const float score = sink * float(LOG2_E), maximum = so_far.maxima[row];
        const float top = std::max(score, maximum), keep = std::exp2(maximum - top);
        const float total = so_far.totals[row] * keep + std::exp2(score - top);
        const __m512 share = _mm512_set1_ps(keep / total);
        for (int d = 0; d < layout.head_dim; d += LANES)
            write_part<T>(place + d, _mm512_mul_ps(_mm512_load_ps(sums + d), share),
                          layout.head_dim - d);
    }

    size_t first_of(const Task &task, int head) const {
        return size_t(head - task.kv_head * layout.shared);
    }

    // The heads that share a kv head, as many at a time as a block takes.
    template <class Work>
    void for_heads(const Task &task, Work work) const {
        for (int h = 0; h < layout.shared; h += QUERIES_MAX)
            work(task.kv_head * layout.shared + h, std::min(layout.shared - h, QUERIES_MAX));
    }

    template <class T>
    void attend(const AttentionLayer &layer, const Task &task, Scratch &my) {
        for (int i = 0; task.entering && i < task.kv_heads; ++i)
            enter_token<T>(layer, planner.members[size_t(task.first)], task.kv_head + i,
                           my.turned.data());
        if (task.kv_heads > 1) {
            attend_together<T>(layer, task, my);
            return;
        }
        State &state = *my.states[0];
        for_heads(task, [&](int head, int heads) {
            begin_heads<T>(layer, task, head, heads, state, my);
            for (int index = task.block_begin; index < task.block_end; ++index)
                attend_block<T>(layer, task, index, head, heads, state, my);
            if (task.joined)
                keep(task, head, heads, state);
            else if (task.partial < 0)
                finish<T>(layer, task, head, heads, state);
        });
    }

    template <class T>
    void merge(const AttentionLayer &layer, const Task &task, Scratch &my) const {
        State &state = *my.states[0];
        for_heads(task, [&](int head, int heads) {
            const int rows = task.count * heads;
            state.so_far.clear();
            std::fill_n(state.sums.data(), size_t(rows) * layout.width, 0.0f);
            for (int index = task.block_begin; index < task.block_end; ++index) {
                const int64_t source = planner.source(task, index);
                if (source < 0) continue;
                const size_t at = size_t(source) + first_of(task, head);
                take_totals(rows, planner.partial_totals.data() + 2 * at, my);
                join(my.block, state.so_far, rows, my.factors);
                for (int row = 0; row < rows; ++row)
                    merge_row(planner.sums() + (at + size_t(row)) * layout.width,
                              state.sums.data() + size_t(row) * layout.width,
                              my.factors.keep[row], my.factors.take[row]);
            }
            finish<T>(layer, task, head, heads, state);
        });
    }

    void merge_row(const float *from, float *sums, float keep, float take) const {
        for (int d = 0; d < layout.width; d += LANES) {
            const __m512 kept = _mm512_mul_ps(_mm512_load_ps(sums + d), _mm512_set1_ps(keep));
            const __m512 taken = _mm512_set1_ps(take);
            _mm512_store_ps(sums + d, _mm512_fmadd_ps(_mm512_load_ps(from + d), taken, kept));
        }
    }
};

Attention::Attention(const AttentionShape &shape, void *pool)
    : impl_(std::make_unique<Impl>(shape, pool)) {}

Attention::~Attention() = default;

void Attention::plan(const StepRows &rows) { impl_->planner.plan(rows); }

int32_t Attention::enter_tasks() const { return impl_->planner.enter_tasks(); }

int32_t Attention::attend_tasks(int32_t layer) const {
    return int32_t(impl_->planner.of(layer).tasks.size());
}

int32_t Attention::merge_tasks(int32_t layer) const {
    return int32_t(impl_->planner.of(layer).merges.size());
}

void Attention::enter(const AttentionLayer &layer, int32_t task, int32_t thread) {
    Impl &impl = *impl_;
    float *turned = impl.scratch[size_t(thread)]->turned.data();
    impl.with_units([&](auto units) {
        impl.planner.for_entering(task, [&](int32_t token) {
            for (int kv_head = 0; kv_head < impl.layout.kv_heads; ++kv_head)
                impl.enter_token<decltype(units)>(layer, token, kv_head, turned);
        });
    });
}

void Attention::attend(const AttentionLayer &layer, int32_t task, int32_t thread) {
    const Task &mine = impl_->planner.of(layer.layer).tasks[size_t(task)];
    Scratch &my = *impl_->scratch[size_t(thread)];
    impl_->with_units([&](auto units) { impl_->attend<decltype(units)>(layer, mine, my); });
}

void Attention::merge(const AttentionLayer &layer, int32_t task, int32_t thread) {
    const Task &mine = impl_->planner.of(layer.layer).merges[size_t(task)];
    Scratch &my = *impl_->scratch[size_t(thread)];
    impl_->with_units([&](auto units) { impl_->merge<decltype(units)>(layer, mine, my); });
}

}  // namespace symphony
