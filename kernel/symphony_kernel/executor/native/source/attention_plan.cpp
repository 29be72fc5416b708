#include "attention_plan.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace symphony {

namespace {

// Costs are in units of one query's page of one head of 64 dimensions: about 12 ns. A page that
// comes from memory costs as much as so many queries:
constexpr float PAGE_COST = 12.0f;
// One more stage, with its merges:
constexpr float MERGE_COST = 250.0f;
// Unevenness of the threads' ends that is not worth a cut.
constexpr float UNEVEN = 1.15f;
constexpr int PARTS_A_THREAD = 4;
constexpr int ENTER_TOKENS_MAX = 16;

inline int32_t blocks_of(int32_t entries) { return (entries + BLOCK_TOKENS - 1) / BLOCK_TOKENS; }

// The lowest `count` bits of a page's mask, none if `count` is below 0.
inline uint16_t lowest(int64_t count) {
    return count >= 16 ? uint16_t(0xFFFF) : uint16_t((1u << std::max<int64_t>(count, 0)) - 1);
}

inline uint16_t bits_at(const uint64_t *words, int32_t count, int32_t bit) {
    const int32_t word = bit / 64, shift = bit % 64;
    if (word >= count) return 0;
    uint64_t bits = words[word] >> shift;
    if (shift > 48 && word + 1 < count) bits |= words[word + 1] << (64 - shift);
    return uint16_t(bits);
}

// The time until the last of `threads` ends if each takes the next task, most expensive first.
float time_of(std::vector<float> costs, int threads) {
    std::sort(costs.begin(), costs.end(), std::greater<float>());
    std::vector<float> busy(size_t(threads), 0.0f);
    for (float cost : costs) *std::min_element(busy.begin(), busy.end()) += cost;
    return *std::max_element(busy.begin(), busy.end());
}

}  // namespace

Planner::Planner(const AttentionShape &shape, const PoolLayout &layout)
    : shared_(layout.shared),
      kv_heads_(layout.kv_heads),
      threads_(shape.threads),
      width_(layout.width),
      head_cost_(float(layout.head_dim) / 64.0f) {
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
        const int32_t window = shape.windows[layer];
        size_t work = 0;
        while (work < works_.size() && works_[work].window != window) ++work;
        if (work == works_.size()) works_.push_back({window, {}, {}});
        work_of_.push_back(int32_t(work));
    }
}

float *Planner::sums() const {
    const auto address = reinterpret_cast<uintptr_t>(partial_sums.data());
    return reinterpret_cast<float *>((address + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
}

int32_t Planner::length(int32_t row) const {
    return rows.starts[row] + rows.offsets[row + 1] - rows.offsets[row];
}

void Planner::plan(const StepRows &step) {
    rows = step;
    read_rows();
    members.clear();
    sources_.clear();
    partial_rows_ = 0;
    for (Work &work : works_) {
        work.tasks.clear();
        work.merges.clear();
        make_spans(work.window);
        const int32_t blocks = part_blocks();
        together_ = together();
        for (Span &span : spans_) cut(span, blocks, work);
        make_merges(work);
        arrange(work.tasks);
    }
    partial_sums.resize(std::max(partial_sums.size(), size_t(partial_rows_) * size_t(width_) + LANES));
    partial_totals.resize(std::max(partial_totals.size(), 2 * size_t(partial_rows_)));
}

// ---- The rows' tokens ------------------------------------------------------------------------

void Planner::read_rows() {
    const size_t tokens = size_t(rows.tokens);
    slots.resize(tokens);
    high_.resize(tokens);
    path_.resize(tokens);
    tree_start_.assign(tokens, -1);
    tree_begin_.resize(tokens);
    related_at_.resize(tokens);
    tree_words_.resize(tokens);
    related_.clear();
    entering_.clear();
    decodes_.clear();
    for (int32_t row = 0; row < rows.rows; ++row) {
        const int32_t begin = rows.offsets[row], count = rows.offsets[row + 1] - begin;
        const int32_t *pages = table(row);
        for (int32_t i = 0; i < count; ++i) {
            const int32_t entry = rows.starts[row] + i;
            slots[size_t(begin + i)] =
                int64_t(pages[entry / PAGE_TOKENS]) * PAGE_TOKENS + entry % PAGE_TOKENS;
            high_[size_t(begin + i)] = path_[size_t(begin + i)] = entry + 1;
            if (count > 1) entering_.push_back(begin + i);
        }
        if (count == 1) decodes_.push_back(row);
        if (count > 1 && rows.trees && rows.trees[row]) read_tree(row);
    }
    const int32_t each = (int32_t(entering_.size()) + 2 * threads_ - 1) / (2 * threads_);
    enter_tokens_ = std::min(std::max(each, 1), ENTER_TOKENS_MAX);
}

void Planner::read_tree(int32_t row) {
    const int32_t begin = rows.offsets[row], count = rows.offsets[row + 1] - begin;
    const int32_t words = (count + 63) / 64;
    const size_t base = related_.size();
    related_.resize(base + size_t(count) * size_t(words), 0);
    for (int32_t i = 0; i < count; ++i) {
        uint64_t *mine = related_.data() + base + size_t(i) * size_t(words);
        const int32_t parent = rows.parents[begin + i];
        if (parent >= 0)
            std::memcpy(mine, related_.data() + base + size_t(parent) * size_t(words),
                        size_t(words) * sizeof(uint64_t));
        mine[i / 64] |= uint64_t(1) << (i % 64);
        path_[size_t(begin + i)] =
            parent >= 0 ? path_[size_t(begin + parent)] + 1 : rows.starts[row] + 1;
        tree_start_[size_t(begin + i)] = rows.starts[row];
        tree_begin_[size_t(begin + i)] = begin;
        related_at_[size_t(begin + i)] = int64_t(base + size_t(i) * size_t(words));
        tree_words_[size_t(begin + i)] = words;
    }
}

int32_t Planner::enter_tasks() const {
    return (int32_t(entering_.size()) + enter_tokens_ - 1) / enter_tokens_;
}

int32_t Planner::low(int32_t token, int32_t window) const {
    return window ? std::max(path_[size_t(token)] - window, 0) : 0;
}

const uint64_t *Planner::related(int32_t token) const {
    return related_.data() + related_at_[size_t(token)];
}

// Returns the last ancestor that a window hides, or -1; its ancestors are hidden, too.
int32_t Planner::hidden_ancestor(int32_t token, int32_t window) const {
    if (!window || path_[size_t(token)] - window <= tree_start_[size_t(token)]) return -1;
    const int32_t begin = tree_begin_[size_t(token)];
    for (int32_t step = 0; step < window; ++step) token = begin + rows.parents[token];
    return token;
}

Visible Planner::visible(int32_t token, int32_t window, int32_t begin, const Block &block) const {
    const int32_t high = high_[size_t(token)], low = this->low(token, window);
    const int32_t tree = tree_start_[size_t(token)];
    const int32_t first = begin + block.first_page * PAGE_TOKENS;
    const int32_t last = begin + block.last_page * PAGE_TOKENS;
    Visible visible;
    visible.all = low <= first && last <= high && (tree < 0 || last <= tree);
    if (visible.all) return visible;
    const int32_t hidden = tree < 0 ? -1 : hidden_ancestor(token, window);
    for (int page = block.first_page; page < block.last_page; ++page) {
        const int32_t entry = begin + page * PAGE_TOKENS;
        // In a tree the window counts along the path: siblings do not count.
        const int32_t hides = tree < 0 ? low : std::min(low, tree);
        uint16_t mask = uint16_t(lowest(high - entry) & ~lowest(hides - entry));
        if (tree >= 0 && entry + PAGE_TOKENS > tree) {
            const int32_t words = tree_words_[size_t(token)], before = std::max(tree - entry, 0);
            const int32_t from = std::max(entry - tree, 0);
            unsigned bits = bits_at(related(token), words, from);
            if (hidden >= 0) bits &= ~bits_at(related(hidden), words, from);
            mask = uint16_t(mask & (lowest(before) | bits << before));
        }
        visible.pages[page] = mask;
    }
    return visible;
}

// ---- Spans ------------------------------------------------------------------------------------

void Planner::make_spans(int32_t window) {
    spans_.clear();
    targets_.clear();
    target_of_.assign(size_t(rows.tokens), -1);
    add_decodes(window);
    for (int32_t row = 0; row < rows.rows; ++row)
        if (rows.offsets[row + 1] - rows.offsets[row] > 1) add_prefill(row, window);
}

void Planner::add_prefill(int32_t row, int32_t window) {
    const int32_t each = std::max(QUERIES_MAX / shared_, 1);
    for (int32_t i = rows.offsets[row]; i < rows.offsets[row + 1]; i += each) {
        const int32_t count = std::min(each, rows.offsets[row + 1] - i);
        const int32_t first = int32_t(members.size());
        for (int32_t token = i; token < i + count; ++token) members.push_back(token);
        const bool tree = tree_start_[size_t(i)] >= 0;
        const int32_t from = tree && window ? std::max(rows.starts[row] + 1 - window, 0)
                                            : low(i, window);
        const int32_t high = high_[size_t(i + count - 1)];
        spans_.push_back({first, count, rows.table_offsets[row], from / BLOCK_TOKENS,
                          blocks_of(high), from, high, false, false});
    }
}

void Planner::add_decodes(int32_t window) {
    if (window) {
        for (int32_t row : decodes_) {
            const int32_t low = std::max(length(row) - window, 0);
            add_decode(row, low / BLOCK_TOKENS, low);
        }
        return;
    }
    // Rows with the same pages become neighbours.
    std::stable_sort(decodes_.begin(), decodes_.end(), [&](int32_t a, int32_t b) {
        const int32_t *one = table(a), *other = table(b);
        return std::lexicographical_compare(one, one + (length(a) - 1) / PAGE_TOKENS, other,
                                            other + (length(b) - 1) / PAGE_TOKENS);
    });
    share(decodes_.data(), decodes_.data() + decodes_.size(), 0);
}

// Splits rows that share all blocks before `block`: into groups that share more, and the remaining
// blocks of each row.
void Planner::share(const int32_t *begin, const int32_t *end, int32_t block) {
    while (begin < end) {
        const int32_t *next = begin + 1;
        int32_t same = INT32_MAX;
        while (next < end) {
            const int32_t with = same_blocks(*begin, *next, block);
            if (with == 0) break;
            same = std::min(same, with);
            ++next;
        }
        if (next == begin + 1) {
            add_decode(*begin, block, 0);
        } else {
            add_group(begin, next, block, block + same);
            share(begin, next, block + same);
        }
        begin = next;
    }
}

// The number of whole blocks from `block` on that two rows share, all of them present before.
int32_t Planner::same_blocks(int32_t one, int32_t other, int32_t block) const {
    const int32_t blocks = std::min(length(one) - 1, length(other) - 1) / BLOCK_TOKENS;
    int32_t same = 0;
    while (block + same < blocks &&
           std::memcmp(table(one) + (block + same) * BLOCK_PAGES,
                       table(other) + (block + same) * BLOCK_PAGES,
                       BLOCK_PAGES * sizeof(int32_t)) == 0)
        ++same;
    return same;
}

void Planner::add_decode(int32_t row, int32_t block_begin, int32_t low) {
    const int32_t first = int32_t(members.size()), high = length(row), token = rows.offsets[row];
    members.push_back(token);
    spans_.push_back({first, 1, rows.table_offsets[row], block_begin, blocks_of(high), low, high,
                      target_of_[size_t(token)] >= 0, true});
}

void Planner::add_group(const int32_t *begin, const int32_t *end, int32_t block_begin,
                        int32_t block_end) {
    const int32_t each = std::max(QUERIES_MAX / shared_, 1);
    while (begin < end) {
        const int32_t count = int32_t(std::min<ptrdiff_t>(each, end - begin));
        const int32_t first = int32_t(members.size()), table = rows.table_offsets[*begin];
        for (int32_t i = 0; i < count; ++i, ++begin) {
            members.push_back(rows.offsets[*begin]);
            if (target_of_[size_t(members.back())] < 0)
                add_target(first + i, 1, 0, blocks_of(length(*begin)));
        }
        spans_.push_back({first, count, table, block_begin, block_end, 0, block_end * BLOCK_TOKENS,
                          true, false});
    }
}

// From here on the partial sums of these queries are merged.
void Planner::add_target(int32_t first, int32_t count, int32_t begin, int32_t end) {
    for (int32_t i = first; i < first + count; ++i)
        target_of_[size_t(members[size_t(i)])] = int32_t(targets_.size());
    targets_.push_back({first, count, begin, end, int64_t(sources_.size())});
    sources_.resize(sources_.size() + size_t(end - begin) * size_t(kv_heads_));
}

// ---- Tasks ------------------------------------------------------------------------------------

float Planner::span_cost(const Span &span, int32_t blocks) const {
    const int32_t begin = std::max(span.low, span.block_begin * BLOCK_TOKENS);
    const int32_t entries = std::min(span.high - begin, blocks * BLOCK_TOKENS);
    const float pages = float(entries + PAGE_TOKENS - 1) / PAGE_TOKENS;
    return pages * (PAGE_COST + float(span.count * shared_)) * head_cost_;
}

// The maximum number of a task's blocks, so that the threads end together.
int32_t Planner::part_blocks() const {
    if (threads_ == 1) return INT32_MAX;
    float total = 0.0f, most = 0.0f;
    std::vector<float> costs;
    for (const Span &span : spans_) {
        const float cost = span_cost(span, span.block_end - span.block_begin);
        total += cost * float(kv_heads_);
        most = std::max(most, cost);
        costs.push_back(cost);
    }
    const float fair = total / float(threads_);
    const size_t tasks = costs.size() * size_t(kv_heads_);
    if (tasks >= size_t(8 * threads_) && most <= fair / 2) return INT32_MAX;
    if (tasks < 4096) {
        std::vector<float> all;
        for (int head = 0; head < kv_heads_; ++head) all.insert(all.end(), costs.begin(), costs.end());
        if (time_of(std::move(all), threads_) <= fair * UNEVEN + MERGE_COST) return INT32_MAX;
    }
    const float part = fair / PARTS_A_THREAD;
    float block_cost = 0.0f;  // of the most expensive task
    for (const Span &span : spans_) block_cost = std::max(block_cost, span_cost(span, 1));
    return std::max(int32_t(part / block_cost), 1);
}

// Whether there are so many decoding rows that one task may have all kv heads of a row. Their
// entries are neighbours in memory: reading them so is a fifth faster than head by head.
bool Planner::together() const {
    if (shared_ > QUERIES_MAX) return false;
    float total = 0.0f, most = 0.0f;
    for (const Span &span : spans_) {
        const float cost = span_cost(span, span.block_end - span.block_begin) * float(kv_heads_);
        total += cost;
        if (span.count == 1) most = std::max(most, cost);
    }
    return most * float(4 * threads_) <= total || threads_ == 1;
}

void Planner::cut(Span &span, int32_t blocks, Work &work) {
    if (!span.partial && span.block_end - span.block_begin > blocks) {
        span.partial = true;
        add_target(span.first, span.count, span.block_begin, span.block_end);
    }
    if (!span.partial && span.count == 1 && together_) {
        add_task(span, span.block_begin, span.block_end, 0, kv_heads_, work);
        return;
    }
    for (int32_t begin = span.block_begin; begin < span.block_end;) {
        const int32_t end = begin + std::min(span.block_end - begin, blocks);
        for (int32_t head = 0; head < kv_heads_; ++head) add_task(span, begin, end, head, 1, work);
        begin = end;
    }
}

void Planner::add_task(const Span &span, int32_t begin, int32_t end, int32_t kv_head,
                       int32_t kv_heads, Work &work) {
    Span part = span;
    part.block_begin = begin;
    const float cost = span_cost(part, end - begin) * float(kv_heads);
    const bool entering = span.entering && end == span.block_end;
    Task task{kv_head,  kv_heads,  span.first, span.count, span.table, begin,    end,
              span.low, span.high, -1,         false,      -1,         entering, cost};
    if (span.partial) {
        task.partial = partial_rows_;
        // Blocks are joined in order: what begins a query's order needs no sums of each block.
        task.joined = begin == target_of(span.first).block_begin;
        partial_rows_ += int64_t(task.joined ? 1 : end - begin) * span.count * shared_;
        note_sources(task);
    }
    work.tasks.push_back(task);
}

// Writes the places of a task's partial sums to the targets of its queries.
void Planner::note_sources(const Task &task) {
    for (int32_t i = 0; i < task.count; ++i) {
        const Target &target = target_of(task.first + i);
        if (i > 0 && target.count > 1) break;  // all of the task's queries have one target
        const int64_t blocks = target.block_end - target.block_begin;
        int64_t *sources = sources_.data() + target.sources + task.kv_head * blocks;
        for (int32_t block = task.block_begin; block < task.block_end; ++block)
            sources[block - target.block_begin] =
                task.joined && block + 1 < task.block_end
                    ? -1
                    : int64_t(partial(task, block)) + i * shared_;
    }
}

// Most expensive first, so that the threads end together. If tasks are many and small, one kv head
// after the other, so that its entries stay in the cache from task to task.
void Planner::arrange(std::vector<Task> &tasks) const {
    float total = 0.0f, most = 0.0f;
    for (const Task &task : tasks) {
        total += task.cost;
        most = std::max(most, task.cost);
    }
    const bool small = most * float(4 * threads_ * kv_heads_) <= total;
    std::stable_sort(tasks.begin(), tasks.end(), [small](const Task &a, const Task &b) {
        return small && a.kv_head != b.kv_head ? a.kv_head < b.kv_head : a.cost > b.cost;
    });
}

void Planner::make_merges(Work &work) {
    for (const Target &target : targets_)
        for (int32_t head = 0; head < kv_heads_; ++head) {
            const int64_t blocks = target.block_end - target.block_begin;
            work.merges.push_back({head, 1, target.first, target.count, 0, target.block_begin,
                                   target.block_end, 0, 0, -1, false, target.sources + head * blocks,
                                   false, 0.0f});
        }
}

}  // namespace symphony
